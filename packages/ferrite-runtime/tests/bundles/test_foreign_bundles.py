"""Bundles that somebody made up: nothing in them runs, views lie in their buffers, and refusals are closed errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bundle_cases import EXAMPLE  # noqa: E402
from bundle_mutations import MARK, STRINGS, attempt  # noqa: E402
from example_model import Example, example_inputs  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    CheckFailed,
    ExternError,
    GuardFailed,
    OptionError,
    Options,
    PackageInvalid,
    ProgramFailed,
    SpecError,
    VersionUnsupported,
    load,
)
from ferrite_runtime.host.host_function import write_host  # noqa: E402
from foreign_bundles import (  # noqa: E402
    PROGRAM,
    SOURCES,
    Manifest,
    alloc,
    changed,
    extern,
    loaded,
    steps_of,
    with_steps,
    with_steps_last,
)


@pytest.mark.parametrize("name", SOURCES)
def test_bundles_are_fine_before_they_are_spoiled(name: str) -> None:
    assert attempt(SOURCES[name], SOURCES[name].data) == "ran"


# --- code in strings --------------------------------------------------------------------------------------------------


HOLES: dict[str, Callable[[str], Callable[[Manifest], None]]] = {
    "line break in an origin": lambda run: lambda m: m["kernels"][0].update(origin=[f"aten.add\n    {run}"]),
    "code at top level in an origin": lambda run: lambda m: m["kernels"][0].update(origin=[f"aten.add\n{run}\n#"]),
    "another line break in an origin": lambda run: lambda m: m["kernels"][0].update(origin=[f"aten.add\u2028{run}"]),
    "name of a keyword": lambda run: with_steps(extern("aten.ones.default", [1], **{f"a={run}, dtype": None})),
    "layout": lambda run: with_steps(extern("aten.ones.default", [1], layout={"layout": f"os and {run}"})),
    "memory format": lambda run: with_steps(extern("aten.ones.default", [1], {"memory_format": run})),
    "device": lambda run: with_steps(extern("aten.ones.default", [1], device={"device": run})),
    "dtype of a buffer": lambda run: with_steps({**alloc("zz", 4), "dtype": f"torch.float32 if {run} else 0"}),
    "dtype of a tag": lambda run: with_steps(extern("aten.ones.default", [1], dtype={"dtype": f"torch.{run}"})),
    "target": lambda run: with_steps(extern(f"aten.ones.default({run}) or _", [1])),
    "name of a value": lambda run: with_steps(alloc(f"zz = {run}; yy", 4)),
    "name with a letter that looks like another": lambda run: with_steps(alloc("ｈost", 4)),
    "name that the host function has a meaning for": lambda run: with_steps(alloc("args", 4)),
    "name of an integer": lambda run: with_steps({"do": "let", "name": "zz", "value": f"({run})"}),
    "operand": lambda run: with_steps({"do": "let", "name": "zz", "value": ["add", f"({run})", 1]}),
    "operator": lambda run: with_steps({"do": "let", "name": "zz", "value": [f"{run} or max", 1, 2]}),
    "constant of a person's kernel": lambda run: (
        lambda m: m["kernels"][0].update(form="user", axes=[], blocks={"B": run}, grid="B", configs=[])
    ),
    "importing": lambda run: with_steps(extern("import_module.__call__", "this")),
    "loading a library": lambda run: with_steps(extern("load_library.__call__", "/tmp/none.so")),
    "attribute of an operator": lambda run: with_steps(extern("aten.add.__class__", 1)),
    "operator that writes a file": lambda run: with_steps(
        extern("aten.from_file.default", "FILE", True, 16, results=("zz",))
    ),
    "operator that moves memory": lambda run: with_steps(extern("aten.resize_.default", {"ref": "arg0_1"}, [1 << 20])),
    "operator that writes where it is told": lambda run: with_steps(
        extern("aten.add.out", {"ref": "arg0_1"}, {"ref": "arg0_1"}, out={"ref": "arg0_1"})
    ),
    "block constant": lambda run: lambda m: m["kernels"][0]["axes"][0].update(block="n0"),
    "name of an entry": lambda run: lambda m: m["entries"].update({run: m["entries"]["main"]}),
}


@pytest.mark.parametrize("name", HOLES)
def test_code_in_a_bundle_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / MARK
    with pytest.raises(PackageInvalid) as caught:
        loaded(HOLES[name](f"open({str(mark)!r}, 'w').close()"))
    assert not list(tmp_path.iterdir())
    assert not Path("FILE").exists()
    assert str(caught.value).startswith(("kernels[", "programs.main.inference.", "entries")), "names the field"


def test_a_hole_in_a_message_or_a_mode_stays_text() -> None:
    text = "model.py:3: '); open('CANARY', 'w').close(); ('\n# \\"

    def change(manifest: Manifest) -> None:
        for step in steps_of(manifest):
            if step["do"] == "check":
                step |= {"message": text, "holds": ["lt", "u0", 0]}

    with pytest.raises(CheckFailed) as caught:
        SOURCES["sized"].call(loaded(change, "sized"))
    assert text in str(caught.value)
    with pytest.raises(ProgramFailed, match="approximate"):
        SOURCES["sized"].call(
            loaded(
                with_steps_last(extern("aten.gelu.default", {"ref": "r"}, results=("zz",), approximate=text)), "sized"
            )
        )
    assert not Path("CANARY").exists()


@pytest.mark.parametrize("name", ["example", "regression", "sized"])
def test_no_string_of_a_file_is_in_the_text_of_a_host_function(name: str) -> None:
    bundle = Bundle.from_bytes(SOURCES[name].data)
    for program in bundle.programs.values():
        text = write_host(program)
        assert "#" not in text.source
        assert not any(origin in text.source for kernel in program.kernels for origin in kernel.origin)
        assert all(ord(letter) < 128 for letter in text.source)
        assert "too many" not in text.source


# --- operators --------------------------------------------------------------------------------------------------------


def test_operators_beside_torchs_own_are_called_where_load_is_told_of_them() -> None:
    library = torch.library.Library("ferrite_foreign", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    change = with_steps_last(extern("ferrite_foreign.twice.default", {"ref": "a"}, results=("zz",)))
    with pytest.raises(SpecError, match=r"operators=\['ferrite_foreign.twice.default'\]"):
        loaded(change, "sized")
    for operators in (["ferrite_foreign.twice.default"], [torch.ops.ferrite_foreign.twice.default]):
        SOURCES["sized"].call(loaded(change, "sized", operators=operators))
    missing = with_steps_last(extern("nowhere.missing.default"))
    with pytest.raises(ExternError, match=r"nowhere\.missing\.default"):
        SOURCES["sized"].call(loaded(missing, "sized", operators=["nowhere.missing.default"]))


def test_a_bundle_cannot_call_a_captured_graph() -> None:
    change = with_steps_last(extern("captured.cond.7", {"ref": "a"}, results=("zz",)))
    with pytest.raises(SpecError, match=r"captured\.cond\.7 is a call of a captured graph, which a bundle cannot hold"):
        loaded(change, "sized")
    with pytest.raises(OptionError, match="operator"):
        loaded(change, "sized", operators=["captured.cond.7"])
    with pytest.raises(SpecError, match="cannot hold"):
        loaded(change, "sized", operators=["captured.cond.run"])


@pytest.mark.parametrize("wrong", ["aten.add.Tensor", ["add"], ["a.b.c; d"], [3]])
def test_what_is_no_operator_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="operator"):
        load(EXAMPLE, operators=wrong)


# --- what is around ---------------------------------------------------------------------------------------------------


def test_reading_takes_as_much_memory_as_the_file_has() -> None:
    tracemalloc.start()
    try:
        Bundle.read(EXAMPLE)
        assert tracemalloc.get_traced_memory()[1] < 64 * EXAMPLE.stat().st_size + (8 << 20)
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PackageInvalid, match="is no file"):
            load(path)


@pytest.mark.parametrize("text", [text for text in STRINGS if not text.isprintable()])
def test_what_people_see_is_one_line_of_text(text: str) -> None:
    fields = (
        lambda m: m.update(name=text),
        lambda m: m["producer"].update(name=text),
        lambda m: m["kernels"][0].update(origin=[text]),
        lambda m: m["programs"][PROGRAM].update(name=text),
        lambda m: m["entries"]["main"]["weights"][0].update(name=text),
    )
    for change in fields:
        with pytest.raises(PackageInvalid):
            changed(change)


def test_what_torch_refuses_in_a_call_is_one_of_the_closed_errors() -> None:
    model = loaded(with_steps_last(extern("aten.view.default", {"ref": "a"}, [5, 5], results=("zz",))), "sized")
    with pytest.raises(ProgramFailed, match="entry main of bundle sized failed: RuntimeError") as caught:
        SOURCES["sized"].call(model)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("name", ["dtype", "layout", "device"])
@pytest.mark.parametrize("value", [48000144, -1, {"size": "n"}, {"ref": "q"}])
def test_numbers_do_not_stand_for_dtypes_layouts_and_devices(name: str, value: Any) -> None:
    call = extern("aten.full.default", [2], 1.0, results=("zz",), **{name: value})
    with pytest.raises(SpecError, match=f"is a {name}"):
        SOURCES["sized"].call(loaded(with_steps_last(call), "sized"))


def test_example_runs_without_trust() -> None:
    args, kwargs = example_inputs()
    model = load(EXAMPLE, weights=Example().state_dict(), options=Options(interpret=True))
    for found, wanted in zip(model(*args, **kwargs).values(), Example()(*args, **kwargs).values(), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_a_sample_of_mutations_is_refused_or_runs_inside_its_buffers() -> None:
    script = Path(__file__).parents[1] / "bundle_mutations.py"
    done = subprocess.run(
        [sys.executable, str(script), "--count", "60", "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "60 mutations" in done.stdout
    assert " ran\n" in done.stdout


LONG = "long" * 100_000


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda manifest: manifest.update(name=[LONG]), PackageInvalid),
        (lambda manifest: manifest["kernels"][0].update(format=LONG), VersionUnsupported),
        (lambda manifest: manifest["programs"][PROGRAM].update(format=[LONG]), VersionUnsupported),
        (lambda manifest: manifest.update(must_understand=[LONG]), VersionUnsupported),
        (lambda manifest: manifest.update({LONG: 1}), PackageInvalid),
        (lambda manifest: manifest["entries"]["main"]["weights"][0].update(name=LONG), GuardFailed),
    ],
)
def test_what_a_file_holds_is_quoted_in_part(change: Callable[[Manifest], None], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        loaded(change)
    assert len(str(caught.value)) < 2000
