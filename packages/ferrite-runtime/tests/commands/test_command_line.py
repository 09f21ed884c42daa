"""The command line."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bundle_cases import EXAMPLE
from ferrite_runtime.__main__ import main
from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.store.interface import MemoryStore
from runtime_kernels import one_kernel, pointwise, scaled


@pytest.fixture
def program_file(tmp_path: Path) -> str:
    path = tmp_path / "program.json"
    path.write_text(json.dumps(one_kernel(pointwise("a + 1", origin=["aten.add (m.py:1)"]))))
    return str(path)


def test_check(program_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", program_file]) == 0
    assert capsys.readouterr().out == "test: 1 kernels, 2 steps, correct\n"


def test_show(program_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", program_file]) == 0
    out = capsys.readouterr().out
    assert "input in0: tensor f32[1000] strides [1]" in out
    assert "launch kernel=pointwise, args=['in0', 'out']" in out
    assert "kernel pointwise (pointwise; x=1000) <- aten.add (m.py:1)" in out
    assert "tl.store(out_ptr + x, out, mask)" in out


def test_compile(program_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", program_file, "--target", "sm_80", "--workers", "1"]) == 0
    assert "sm_80" in capsys.readouterr().out


def test_single_kernel_is_taken_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(pointwise("a + missing")))
    assert main(["check", str(path)]) == 0
    assert main(["compile", str(path), "--workers", "1"]) == 1
    assert "missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"), [("{", "bad.json:1:2: neither a bundle nor JSON"), ("[]", "an object"), ("{}", "format")]
)
def test_file_that_is_no_program_is_an_error(tmp_path: Path, text: str, message: str, capsys) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert str(path) in said


# --- bundles --------------------------------------------------------------------------------------------------------


def test_inspect_shows_what_is_in_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    for word in ("entry", "program", "measurements", "config on NVIDIA H200", "XBLOCK="):
        assert word in out
    assert main(["inspect", str(EXAMPLE), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["kernels"]) >= 10
    assert {"name", "form", "config", "bytes", "programs", "registers"} <= set(facts["kernels"][0])
    name = facts["kernels"][0]["name"]
    assert main(["inspect", str(EXAMPLE), "--kernel", name, "--device", "a100"]) == 0
    assert f"def {name}(" in capsys.readouterr().out
    assert main(["inspect", str(EXAMPLE), "--kernel", "nothing"]) == 2
    assert main(["inspect", str(EXAMPLE), "--device", "abacus"]) == 2
    assert "no device is described as 'abacus'; known: a100" in capsys.readouterr().err


def test_inspect_takes_programs_and_kernels_as_well(program_file: str, tmp_path: Path, capsys) -> None:
    assert main(["inspect", program_file]) == 0
    assert "program test: 1 inputs" in capsys.readouterr().out
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(scaled()))
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["programs"] == {}
    assert main(["inspect", str(tmp_path / "nothing")]) == 2


def test_damaged_bundle_is_refused_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.ferrite"
    path.write_bytes(EXAMPLE.read_bytes()[:-3])
    for command in ("verify", "inspect", "tune", "bench"):
        assert main([command, str(path)]) == 1
        assert "hint: the file is damaged" in capsys.readouterr().err


def test_commands_import_neither_torch_nor_triton() -> None:
    code = (
        "import sys\nfrom ferrite_runtime.__main__ import main\n"
        f"assert main(['inspect', {str(EXAMPLE)!r}, '--json']) == 0\nassert main(['verify', {str(EXAMPLE)!r}]) == 0\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- on a device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU that interprets; the sessions that commands opened on it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from ferrite_runtime.ahead_of_time import program_tuning
    from ferrite_runtime.commands import bench
    from runtime_fakes import FakeMeter, FakeStreams, fake_machine

    opened: list[Any] = []

    def open_session(bundle, options, *, inputs=None, sizes=None, elements=None, operators=(), trust=False):
        programs = {name: each.on_cpu() for name, each in bundle.programs.items()}
        machine = fake_machine(tune=options.tune, meter=FakeMeter([0.004, 0.002]), store=store)
        bundle = dataclasses.replace(bundle, programs=programs)
        place = torch.device("cpu", 0)
        session = program_tuning.Session(
            bundle, machine, FakeStreams().platform(), place, inputs or {}, sizes or {}, elements
        )
        opened.append(session)
        return session

    store = MemoryStore()
    monkeypatch.setattr(program_tuning, "open_session", open_session)
    monkeypatch.setattr(bench, "open_session", open_session)
    return opened


def test_tune_prints_a_table_and_tells_how_it_goes(
    device: list[Any], program_file: str, tmp_path: Path, capsys
) -> None:
    kept = tmp_path / "tuned.ferrite"
    assert main(["tune", program_file, "--effort", "quick", "--output", str(kept)]) == 0
    shown = capsys.readouterr()
    row = next(line for line in shown.out.splitlines() if line.startswith("pointwise"))
    assert row.split()[1:6] == ["measured", "4.0", "2.0", "2.00", "4"]
    assert "NVIDIA H200: 4 configs measured" in shown.out
    events = [json.loads(line) for line in shown.err.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["started", "finished"]
    assert sum(record.is_chosen for record in Bundle.read(kept).tuning) == 1
    assert main(["tune", program_file, "--effort", "quick", "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["measured"] == 0
    assert json.loads(shown.out)["kernels"][0]["state"] == "known"
    assert shown.err == ""
    assert main(["tune", program_file, "--effort", "quick", "--json", "--quiet", "--again"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["measured"] == 4
    (best,) = [trial for trial in again["kernels"][0]["trials"] if trial["config"] == again["kernels"][0]["config"]]
    assert best["ms"]["median"] == again["kernels"][0]["ms"]
    assert best["uses"]["registers"] == 32


def test_tune_of_a_kernel_alone_wants_its_sizes(device: list[Any], tmp_path: Path, capsys) -> None:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(scaled()))
    assert main(["tune", str(path), "--quiet"]) == 1
    assert "needs a value for its size 'n'" in capsys.readouterr().out
    assert main(["tune", str(path), "--quiet", "--effort", "quick", "--size", "n=64"]) == 0
    assert main(["tune", str(path), "--size", "n"]) == 2
    assert "--size 'n' is not of the form NAME=NUMBER" in capsys.readouterr().err


def test_bench_prints_times_beside_the_floor(device: list[Any], program_file: str, capsys) -> None:
    assert main(["bench", program_file]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("pointwise"))
    assert row.split()[:6] == ["pointwise", "1", "4.0", "±0.0%", "7.8", "KiB"]
    assert "policy" in row
    assert "1 launches, 4.0 µs" in out
    assert main(["bench", program_file, "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["bytes"] == 8000
    assert kernel["bound_ms"] == pytest.approx(8000 / 4.25e12 * 1e3)
    assert kernel["share"] == pytest.approx(kernel["bound_ms"] / 0.004)


def test_plot_without_matplotlib_says_so(
    device: list[Any], program_file: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", program_file, "--plot", str(tmp_path / "a.png")]) == 2
    shown = capsys.readouterr()
    assert "ferrite-runtime[plot]" in shown.err
    assert "pointwise" in shown.out, "the table is there all the same"


class FakeAxes:
    """Notes what is drawn."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append((name, args, options))


def test_plot_draws_the_floor_and_every_kernel(
    device: list[Any], program_file: str, tmp_path: Path, monkeypatch
) -> None:
    from ferrite_runtime.ahead_of_time import roofline

    axes = FakeAxes()

    class Figure:
        def savefig(self, path: Path, **options: Any) -> None:
            path.write_bytes(b"\x89PNG")

    class Pyplot:
        subplots = staticmethod(lambda **options: (Figure(), axes))
        close = staticmethod(lambda figure: None)

    monkeypatch.setattr(roofline, "_pyplot", lambda: Pyplot)
    assert main(["bench", program_file, "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes() == b"\x89PNG"
    drawn = {name: args for name, args, _ in axes.calls}
    assert drawn["plot"][1] == pytest.approx([4000 / 4.25e12 * 1e6, 16000 / 4.25e12 * 1e6])
    scattered = [args for name, args, _ in axes.calls if name == "scatter"]
    assert ([8000 / 2**20], [4.0]) in scattered


def test_plot_is_a_picture(device: list[Any], program_file: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["bench", program_file, "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
