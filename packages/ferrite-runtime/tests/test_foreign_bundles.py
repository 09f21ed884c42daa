"""Bundles that somebody made up: nothing in them runs, views lie in their buffers, and refusals are closed errors."""

from __future__ import annotations

import json
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

from bundle_cases import EXAMPLE, opened, reseal  # noqa: E402
from bundle_mutations import _HEAD, MARK, STRINGS, _kernel_texts, attempt  # noqa: E402
from bundle_sources import make_sources  # noqa: E402
from example_model import Example, example_inputs  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    CheckFailed,
    ExternError,
    FerriteRuntimeError,
    MemoryOutOfBounds,
    OptionError,
    Options,
    PackageInvalid,
    ProgramFailed,
    SpecError,
    TrustNeeded,
    load,
)
from ferrite_runtime.formats.canonical_json import kernel_id  # noqa: E402
from ferrite_runtime.host.host_function import write_host  # noqa: E402

Manifest = dict[str, Any]
INTERPRET = Options(interpret=True, use_cache=False)
PROGRAM = "main.inference"
SOURCES = {source.name: source for source in make_sources()}


def changed(change: Callable[[Manifest], None], source: str = "example") -> Bundle:
    """Returns a bundle with something changed; every digest in it is right."""
    manifest, blobs = opened(SOURCES[source].data)
    change(manifest)
    text = json.dumps({**manifest, "kernels": []})
    for kernel in manifest["kernels"]:
        identity = kernel_id(kernel)
        text = text.replace(kernel["id"], identity)
        kernel["id"] = identity
    kernels = sorted(manifest["kernels"], key=lambda kernel: kernel["id"])
    return Bundle.from_bytes(reseal({**json.loads(text), "kernels": kernels}, blobs))


def loaded(change: Callable[[Manifest], None], source: str = "example", **more: Any) -> Any:
    bundle = changed(change, source)
    return load(bundle, weights=SOURCES[source].weights(), options=INTERPRET, **more)


def steps_of(manifest: Manifest) -> list[Manifest]:
    return next(iter(manifest["programs"].values()))["steps"]


def with_steps(*steps: Manifest, output: str | None = None) -> Callable[[Manifest], None]:
    """Puts steps before those of a program; the first result is an output, if it is named."""

    def change(manifest: Manifest) -> None:
        steps_of(manifest)[:0] = steps
        if output is not None:
            next(iter(manifest["programs"].values()))["outputs"][0] = {"value": output}

    return change


def extern(target: str, *arguments: Any, results: tuple[str, ...] = (), **keywords: Any) -> Manifest:
    return {"do": "extern", "target": target, "args": list(arguments), "kwargs": keywords, "results": list(results)}


def alloc(name: str, *shape: Any) -> Manifest:
    return {"do": "alloc", "name": name, "dtype": "f32", "shape": list(shape), "strides": [1]}


def let(name: str, value: Any) -> Manifest:
    return {"do": "let", "name": name, "value": value}


def view(name: str, base: str, size: Any, offset: Any = 0, **more: Any) -> Manifest:
    step = {"do": "view", "name": name, "base": base, "dtype": "f32", "shape": [size], "strides": [1]}
    return {**step, "offset": offset, **more}


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


def with_steps_last(*steps: Manifest) -> Callable[[Manifest], None]:
    return lambda manifest: steps_of(manifest).extend(steps)


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


# --- views and buffers ------------------------------------------------------------------------------------------------

OUTSIDE = {
    "past the end": (alloc("zz", 4), view("yy", "zz", 1 << 20)),
    "one element past the end": (alloc("zz", 4), view("yy", "zz", 4, 1)),
    "before the start": (alloc("zz", 4), view("yy", "zz", 4, -(1 << 20))),
    "by its strides": (alloc("zz", 4), view("yy", "zz", 3, strides=[2])),
    "by its dtype": (alloc("zz", 4), view("yy", "zz", 4, dtype="f64")),
    "by a view of a view": (alloc("zz", 4), view("yy", "zz", 2, 2), view("xx", "yy", 2, 1)),
    "of an input": (view("yy", "arg0_1", 50 * 32 + 1),),
    "by an integer with a name": (let("k", ["mul", 4, 9]), alloc("zz", 4), view("yy", "zz", "k")),
    "by a reused buffer": (alloc("zz", 4), {**alloc("yy", 5), "do": "reuse", "from": "zz"}),
    "by a negative stride": (alloc("zz", 4), view("yy", "zz", 4, 3, strides=[-1])),
    "of a dtype of no size": (alloc("zz", 4), view("yy", "zz", 4, dtype="torch.quint4x2")),
    "of more than there is": (alloc("zz", 1 << 50),),
    "of the square of that": ({**alloc("zz", 1 << 40, 1 << 40), "strides": [1 << 40, 1]},),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_views_outside_of_their_buffers_are_refused_at_load(name: str) -> None:
    with pytest.raises(SpecError, match=r"^programs\.main\.inference\.steps\[\d\]"):
        changed(with_steps(*OUTSIDE[name]))


def test_views_at_the_ends_of_their_buffers_are_fine() -> None:
    edges = (
        alloc("zz", 4),
        view("a0", "zz", 1, 3),
        view("a1", "zz", 2, 2),
        view("a2", "zz", 0, 4),
        view("a3", "a1", 1, 1),
    )
    changed(with_steps(*edges, view("a4", "a1", 4, -2), {**view("a5", "zz", 2), "dtype": "f64"}))


@pytest.mark.parametrize(
    ("size", "offset", "fits"),
    [("m", 0, True), (["sub", "m", 1], 1, True), ("m", 1, False), (["mul", "m", 2], 0, False),
     (4, ["sub", "m", 4], True), (4, ["sub", "m", 3], False), (["sub", 3, "m"], 0, False)],
)  # fmt: skip
def test_views_of_sizes_that_a_call_tells_are_checked_in_the_call(size: Any, offset: Any, *, fits: bool) -> None:
    model = loaded(with_steps_last(view("zz", "a", size, offset), extern("aten.neg.default", {"ref": "zz"})), "sized")
    if fits:
        SOURCES["sized"].call(model)
    else:
        with pytest.raises(CheckFailed, match="zz lies outside of a"):
            SOURCES["sized"].call(model)


@pytest.mark.parametrize(("size", "fits"), [(12, True), (13, False), (["add", "m", 0], True), (["add", "m", 1], False)])
def test_views_of_what_a_library_returns_are_compared_with_it(size: Any, *, fits: bool) -> None:
    steps = (extern("aten.neg.default", {"ref": "a"}, results=("zz",)), view("yy", "zz", size))
    model = loaded(with_steps_last(*steps), "sized")
    if fits:
        SOURCES["sized"].call(model)
    else:
        with pytest.raises(ProgramFailed, match="outside of the result"):
            SOURCES["sized"].call(model)


def test_programs_of_the_compiler_need_no_checks_where_sizes_are_known() -> None:
    from ferrite_runtime.formats.buffer_bounds import with_bounds
    from ferrite_runtime.formats.steps import Check, Within

    (program,) = Bundle.read(EXAMPLE).programs.values()
    added = [step for step in with_bounds(program).steps if isinstance(step, (Check, Within))]
    assert not [step for step in added if isinstance(step, Check)]
    assert {step.owner for step in added} == {"bmm", "bmm_1", "mm", "mm_1", "mm_2"}


def test_products_that_native_code_starts_need_no_comparison_either() -> None:
    from ferrite_runtime.formats.buffer_bounds import with_bounds
    from ferrite_runtime.host.launch_text import Sequencing
    from ferrite_runtime.host.product_steps import with_products

    (program,) = Bundle.read(EXAMPLE).programs.values()
    bounded = with_bounds(program)
    assert "_within" in write_host(bounded).source
    native = with_products(bounded, frozenset(("aten.mm.default", "aten.bmm.default")))
    sequencing = Sequencing(list, lambda product, places: [], native)
    assert "_within" not in write_host(bounded, lambda site: [], sequencing=sequencing).source


# --- calls ------------------------------------------------------------------------------------------------------------

_SQUARE = {"do": "alloc", "name": "zp", "dtype": "f32", "shape": [64, 64], "strides": [64, 1]}


@pytest.mark.parametrize(
    "call",
    [extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, out={"ref": "zo"}),
     extern("aten.addmm.default", {"ref": "zp"}, {"ref": "zp"}, {"ref": "zp"}, out={"ref": "zo"}),
     extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, mat2={"ref": "zp"}),
     extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, {"ref": "zp"}),
     extern("aten.ones.default", [1], names=None)],
)  # fmt: skip
def test_calls_have_the_arguments_that_the_operator_declares(call: Manifest) -> None:
    with pytest.raises(SpecError, match="argument"):
        SOURCES["sized"].call(loaded(with_steps_last(_SQUARE, alloc("zo", 1), call), "sized"))


@pytest.mark.parametrize(
    "target",
    ["aten._sparse_coo_tensor_with_dims_and_tensors.default", "aten.sparse_coo_tensor.indices_size",
     "aten._indices.default", "aten._nested_tensor_from_tensor_list.default", "aten._nested_tensor_size.default",
     "aten._to_sparse_csr.default",
     "aten.crow_indices.default", "aten._convert_indices_from_coo_to_csr.default", "aten._reshape_alias.default",
     "aten._sobol_engine_ff_.default", "aten.to_mkldnn.default", "aten._cudnn_rnn_flatten_weight.default"],
)  # fmt: skip
def test_operators_that_do_not_check_what_they_are_given_are_not_called(target: str) -> None:
    """With indices beyond a sparse tensor, sizes beyond a nested one, some of these end the process."""
    with pytest.raises(SpecError, match="not among the operators"):
        loaded(with_steps_last(extern(target, {"ref": "a"}, results=("zz",))), "sized")


@pytest.mark.parametrize(
    "step",
    [alloc("zz", "i0"), view("zz", "a", "i0"), view("zz", "a", 1, ["max", "i0", 0]), let("zz", ["add", "i0", 1]),
     extern("aten.ones.default", [{"size": "i0"}], results=("zz",)),
     {"do": "check", "holds": ["le", "i0", 4], "message": "m", "names": []}],
)  # fmt: skip
def test_numbers_with_fractions_are_no_sizes(step: Manifest) -> None:
    read = {"do": "item", "name": "i0", "from": "t", "dtype": "f32"}
    with pytest.raises(SpecError, match="'i0' is not an integer"):
        changed(with_steps_last(read, step), "sized")


def test_integers_that_a_library_returned_are_integers() -> None:
    half = extern("aten.full.default", [], 2.5, results=("zh",))
    read = {"do": "item", "name": "i0", "from": "zh", "dtype": "i64"}
    SOURCES["sized"].call(loaded(with_steps_last(half, read, alloc("zz", "i0")), "sized"))


# --- integers ---------------------------------------------------------------------------------------------------------


def squaring(count: int, first: Any) -> tuple[Manifest, ...]:
    lets = [{"do": "let", "name": "z0", "value": first}]
    lets += [{"do": "let", "name": f"z{n}", "value": ["mul", f"z{n - 1}", f"z{n - 1}"]} for n in range(1, count)]
    return tuple(lets)


@pytest.mark.parametrize("first", [1 << 62, {"size": ["arg0_1", 0]}])
def test_integers_that_grow_without_end_are_refused(first: Any) -> None:
    with pytest.raises(SpecError, match="can grow to"):
        changed(with_steps(*squaring(27, first)))
    changed(with_steps(*squaring(6, {"size": ["arg0_1", 0]})))


def nested(depth: int) -> Any:
    return 1 if depth == 0 else ["ceildiv", nested(depth - 1), 2]


@pytest.mark.parametrize(
    "value",
    [1 << 63, -(1 << 63) - 1, nested(34), ["add", *range(257)], ["floordiv", 1, 0], ["mod", "n", ["sub", 2, 2]]],
)
def test_integers_beyond_their_bounds_are_refused(value: Any) -> None:
    with pytest.raises(SpecError):
        changed(with_steps({"do": "let", "name": "n", "value": 3}, {"do": "let", "name": "zz", "value": value}))


def test_the_deepest_expression_that_is_read_is_compiled() -> None:
    model = loaded(with_steps_last({"do": "let", "name": "zz", "value": nested(33)}), "sized")
    SOURCES["sized"].call(model)


def test_products_of_long_sums_are_not_multiplied_out_without_end() -> None:
    names = [{"do": "let", "name": f"k{n}", "value": {"size": ["x", 0]}} for n in range(64)]
    sums = [["add", *(f"k{n}" for n in range(8 * row, 8 * row + 8))] for row in range(8)]
    with pytest.raises(CheckFailed):
        SOURCES["sized"].call(loaded(_behind_lets(*names, view("zz", "a", ["mul", *sums])), "sized"))


def _behind_lets(*steps: Manifest) -> Callable[[Manifest], None]:
    return lambda manifest: steps_of(manifest).__setitem__(slice(3, 3), steps)


# --- kernels ----------------------------------------------------------------------------------------------------------


def with_text(body: str) -> Callable[[Manifest], None]:
    """Gives the kernel of the bundle ``sized`` another body."""

    def change(manifest: Manifest) -> None:
        (kernel,) = manifest["kernels"]
        head, _, rest = kernel["source"].partition("XBLOCK: tl.constexpr):\n")
        assert rest
        kernel["source"] = f"{head}XBLOCK: tl.constexpr):\n" + "".join(f"    {line}\n" for line in body.splitlines())

    return change


SIGNATURE = "a_ptr, out_ptr, n, factor, XBLOCK: tl.constexpr"


@pytest.mark.parametrize("number", range(len(list(_kernel_texts("scaled", SIGNATURE)))))
def test_text_that_is_no_kernels_is_refused_and_not_run(number: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = list(_kernel_texts("scaled", SIGNATURE))[number]
    with pytest.raises((PackageInvalid, MemoryOutOfBounds, FerriteRuntimeError)):
        SOURCES["sized"].call(loaded(lambda m: m["kernels"][0].update(source=text), "sized"))
    assert not list(tmp_path.iterdir())


LIBERTIES = {
    "builtin": "print(1)",
    "name of the interpreter's": "x = np.zeros(3)",
    "attribute of a function": "x = tl.load.__globals__",
    "attribute of a value": "x = n.handle",
    "module of a module": "x = fmath.elementary.triton",
    "function that prints": "tl.static_print(1)",
    "assembly": "x = tl.inline_asm_elementwise('mov', '=r', [n], tl.int32, True, 1)",
    "loop without end": "while n > 0:\n    pass",
    "power": "x = 2 ** 100000",
    "shift": "x = 1 << XBLOCK",
    "comprehension": "x = [y for y in (1, 2)]",
    "lambda": "x = lambda: 1",
    "text": "x = 'abc'",
    "formatted text": "x = f'{n}'",
    "function inside": "def f():\n    pass",
    "import inside": "import os",
    "assignment to an attribute": "n.x = 3",
    "assignment in an expression": "x = (y := 3)",
    "tuples that are taken apart, in others": "(x, y), z = (n, n), n",
    "a tuple that is taken apart into an element": "n[0], y = n, n",
    "arguments that are taken apart": "x = tl.full(*n)",
    "second meaning of a module": "tl = n",
    "an element that grows": "n[0] += 1",
    "slice": "x = n[1:2]",
    "delete": "del n",
    "global": "global tl",
    "try": "try:\n    pass\nexcept ValueError:\n    pass",
    "string over lines": '"""\ndef scaled(x):\n    pass\n"""',
}


@pytest.mark.parametrize("name", LIBERTIES)
def test_text_that_takes_liberties_asks_for_trust_with_its_line(name: str) -> None:
    with pytest.raises(TrustNeeded, match=r"kernel scaled is more than a kernel: line \d+") as caught:
        loaded(with_text(LIBERTIES[name]), "sized")
    assert "trust=True" in caught.value.__notes__[0]


PLAIN = """\
'''What it does.'''
rows: tl.constexpr = 4
x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
mask = (x < n) & (x >= 0)
total = tl.zeros([XBLOCK], tl.float32)
for step in tl.range(0, 2, 1, num_stages=1):
    total += tl.load(a_ptr + x, mask, other=0.0, eviction_policy='evict_first') * (step + 1)
if n > 3:
    total = tl.where(total > 0, total, -total) if n > 2 else total
else:
    total = -total
low = tl.minimum(total, float('inf'))
value, place = tl.max(low[None, :], 1, return_indices=True), 1
tl.device_assert(n > 0, 'index out of bounds', mask)
tl.store(out_ptr + x, fmath.exp(low.to(tl.float32)) * factor + (n << 2), mask)
return
"""


def test_text_of_kernels_needs_no_trust() -> None:
    text = PLAIN.replace("value, place = tl.max(low[None, :], 1, return_indices=True), 1\n", "")
    SOURCES["sized"].call(loaded(with_text(text), "sized"))


TAKEN_APART = """\
x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
low, high = pair(x, n)
low, high = low, high + 0
out_ptr += 0
n -= 0
tl.store(out_ptr + x, low * 1.0, x < n)
"""


def test_pairs_are_taken_apart_and_names_count_up_without_trust() -> None:
    change = with_functions(("pair", "a, b", "return a, b"), body=TAKEN_APART)
    SOURCES["sized"].call(loaded(change, "sized"))


def test_with_trust_text_is_run_as_it_is(capsys) -> None:
    change = with_text("print('it was run')\n" + "tl.store(out_ptr + tl.arange(0, 4), 1.0)")
    with pytest.raises(TrustNeeded):
        loaded(change, "sized")
    SOURCES["sized"].call(loaded(change, "sized", trust=True))
    assert "it was run" in capsys.readouterr().out


REACH = {
    "store behind": "tl.store(out_ptr + n + tl.arange(0, 1024), 1.0)",
    "store before": "tl.store(out_ptr - 64, 1.0)",
    "load far away": "tl.store(out_ptr, tl.load(a_ptr + 1000000000))",
    "load at the end": "tl.store(out_ptr, tl.load(a_ptr + n))",
    "atomic": "tl.atomic_add(out_ptr + 4096, 1.0)",
    "exchange": "tl.atomic_cas(out_ptr.to(tl.pointer_type(tl.int32)) + 4096, 0, 1)",
    "address out of nothing": "tl.store((n * 0).to(tl.int64).to(tl.pointer_type(tl.float32)), 1.0)",
}


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("name", REACH)
def test_interpreted_kernels_touch_their_own_tensors_and_no_others(name: str, *, is_trusted: bool) -> None:
    if "pointer_type" in REACH[name] and not is_trusted:
        with pytest.raises(TrustNeeded):
            loaded(with_text(REACH[name]), "sized")
        return
    model = loaded(with_text(REACH[name]), "sized", trust=is_trusted)
    with pytest.raises(MemoryOutOfBounds, match="kernel scaled"):
        SOURCES["sized"].call(model)


def test_kernels_of_people_touch_the_elements_of_their_arguments() -> None:
    kernel = load(Bundle.from_bytes(SOURCES["user"].data), options=INTERPRET)["add"]
    whole = torch.zeros(200)
    with pytest.raises(MemoryOutOfBounds):
        kernel(torch.ones(100), torch.ones(100), whole[:100], 150)
    assert not whole[100:].any()
    kernel(torch.ones(100), torch.ones(100), whole[:100], 100)
    assert whole.sum() == 200


def huge(field: str, value: Any) -> Callable[[Manifest], None]:
    return lambda manifest: manifest["kernels"][0].update({field: value})


@pytest.mark.parametrize(
    "change",
    [huge("grid", 1 << 40), huge("grid", ["mul", "n", 1 << 20]), huge("grid", 1 << 20),
     with_text("for i in range(1 << 30):\n    tl.program_id(0)"),
     with_text("x = tl.zeros([1048576], tl.float32)\n" * 90)],
)  # fmt: skip
def test_work_out_of_proportion_ends_soon(change: Callable[[Manifest], None]) -> None:
    with pytest.raises(TrustNeeded, match="far more work"):
        SOURCES["sized"].call(loaded(change, "sized"))


def with_functions(*functions: tuple[str, str, str], body: str) -> Callable[[Manifest], None]:
    """Gives the kernel of the bundle ``sized`` another body, and functions of its own: name, parameters, body."""
    texts = (
        f"@triton.jit\ndef {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines.splitlines())
        for name, parameters, lines in (*functions, ("scaled", SIGNATURE, body))
    )
    return lambda manifest: manifest["kernels"][0].update(source=_HEAD + "\n\n".join(texts))


_TWICE = "if d > 0:\n    f(d - 1)\n    f(d - 1)"
_CHAIN = [("f0", "d", "pass"), *((f"f{n}", "d", f"f{n - 1}(d)\nf{n - 1}(d)") for n in range(1, 40))]
_SQUARES = [("f0", "d", "pass"), *((f"f{n}", "d", f"f{n - 1}(d * d)") for n in range(1, 34))]
GROWTH = {
    "calls that call twice": with_functions(("f", "d", _TWICE), body="f(40)"),
    "calls in a chain": with_functions(*_CHAIN, body="f39(1)"),
    "squares in a chain": with_functions(*_SQUARES, body="f33(9223372036854775807)"),
    "squares without end": with_functions(("f", "d", "f(d * d)"), body="f(9223372036854775807)"),
    "constants": with_text("x = tl.constexpr(9223372036854775807) * tl.constexpr(9223372036854775807)"),
    "rows in rows": with_text(
        "t = (1,)\n" + "t = (t, t)\n" * 40 + "u = (1,)\n" + "u = (u, u)\n" * 40 + "if t == u:\n    pass"
    ),
    "a row many times": with_text("t = (1, 2) * 10000000000"),
    "a row and itself": with_text("t = [1]\n" + "t = t + t\n" * 40),
    "a row and itself, in place": with_functions(("f", "", "return 1, 2"), body="t = f()\n" + "t += t\n" * 40),
    "a number and itself, in place": with_functions(
        ("f", "d", "for i in range(40):\n    d *= d"), body="f(9223372036854775807)"
    ),
    "rows of rows, taken apart": with_functions(("f", "", "return 1, 2"), body="x, y = f(), f()"),
    "a shape many times": with_text("t = tl.arange(0, 64).shape * 10000000000"),
    "a shape a constant of times": with_text("t = tl.arange(0, 64).shape * tl.constexpr(10000000000)"),
    "a text many times": with_functions(("f", "s", "x = s * 10000000000"), body="f('aaaa')"),
    "a shift": with_functions(
        ("f", "d, e", "x = (d + 0) << 64"), body="f(n.to(tl.int64), 1)\nx = 9223372036854775807 << 64"
    ),
    "bins": with_text("x = tl.histogram(tl.arange(0, 16), 268435456)"),
}


@pytest.mark.parametrize("name", GROWTH)
def test_values_of_python_do_not_grow_in_the_interpreter(name: str) -> None:
    with pytest.raises(TrustNeeded):
        SOURCES["sized"].call(loaded(GROWTH[name], "sized"))


def test_texts_in_a_kernel_do_not_become_its_lines() -> None:
    lines = "'what it does\\ndef scaled(a_ptr): 1 / 0'\ntl.device_assert(n > 0, 'a\\ndef scaled(a_ptr): 1 / 0')"
    SOURCES["sized"].call(loaded(with_text(lines), "sized"))


def test_functions_with_the_names_of_checks_do_not_leave_them_out() -> None:
    shadow = ("_operate_mult", "a, b", "return a")
    change = with_functions(shadow, body="x = (1, 2) * 10000000000")
    SOURCES["sized"].call(loaded(change, "sized"))  # it gives the row: nothing was multiplied


def test_an_axis_that_has_nothing_to_do_with_a_buffer_is_refused() -> None:
    def change(manifest: Manifest) -> None:
        manifest["kernels"][0]["axes"][0]["size"] = 48000144

    args, kwargs = example_inputs()
    with pytest.raises(FerriteRuntimeError):
        loaded(change)(*args, **kwargs)


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
    script = Path(__file__).with_name("bundle_mutations.py")
    done = subprocess.run(
        [sys.executable, str(script), "--count", "60", "--seed", "7"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "60 mutations" in done.stdout
    assert " ran\n" in done.stdout
