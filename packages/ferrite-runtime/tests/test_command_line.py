"""The command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferrite_runtime.__main__ import main
from runtime_kernels import one_kernel, pointwise


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
    ("text", "message"), [("{", "cannot be read"), ("[]", "an object is needed"), ("{}", "format")]
)
def test_file_that_is_no_program_is_an_error(tmp_path: Path, text: str, message: str, capsys) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main(["check", str(path)]) == 2
    assert message in capsys.readouterr().err
