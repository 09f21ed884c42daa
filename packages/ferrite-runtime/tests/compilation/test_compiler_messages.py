"""What compilers say, shortened: the cause first, no command lines, no temporary files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ferrite_runtime.__main__ import main
from ferrite_runtime.compilation.compiler_messages import explain_failure
from ferrite_runtime.errors import UserKernelCompileError, UserKernelError, compile_failure
from ferrite_runtime.formats.kernel_spec import KernelSpec
from runtime_kernels import pointwise

PTXAS = """PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas-blackwell /tmp/tmpvbh.ptx, line 60; error   : Not a name of any known instruction: 'nonsense'
ptxas-blackwell /tmp/tmpvbh.ptx, line 65; error   : Not a name of any known instruction: 'nonsense'
ptxas-blackwell /tmp/tmpvbh.ptx, line 70; error   : Arguments mismatch for instruction 'mov'
ptxas-blackwell fatal   : Ptx assembly aborted due to errors

Repro command: /lib/triton/backends/nvidia/bin/ptxas-blackwell -lineinfo -v /tmp/tmpvbh.ptx -o /tmp/tmpvbh.ptx.o
"""


def chained(outer: Exception, *inner: Exception) -> Exception:
    current = outer
    for each in inner:
        current.__cause__ = each
        current = each
    return outer


def test_errors_of_an_assembler_are_listed_once_each() -> None:
    error = chained(RuntimeError(PTXAS), subprocess.CalledProcessError(255, ["ptxas", "/tmp/tmpvbh.ptx"]))
    assert explain_failure(error).splitlines() == [
        "ptxas: Not a name of any known instruction: 'nonsense' (line 60 of the assembly, and 1 more like it)",
        "ptxas: Arguments mismatch for instruction 'mov' (line 70 of the assembly)",
    ]


def test_a_fatal_error_is_a_cause_where_there_is_no_other() -> None:
    error = RuntimeError("`ptxas` stderr:\nptxas fatal   : Value 'sm_9' is not defined for option 'gpu-name'\n")
    assert explain_failure(error) == "ptxas: Value 'sm_9' is not defined for option 'gpu-name'"


def test_the_innermost_cause_comes_first_and_once() -> None:
    error = chained(ValueError("at 6:14:\n    out = a + missing\n              ^"), NameError("missing is not defined"))
    assert explain_failure(error).splitlines()[:2] == ["NameError: missing is not defined", "ValueError: at 6:14:"]
    circle = ValueError("one")
    circle.__context__ = TypeError("other")
    circle.__context__.__context__ = circle
    assert explain_failure(circle) == "TypeError: other\nValueError: one"


def test_long_messages_keep_their_ends() -> None:
    text = explain_failure(ValueError("\n".join(f"line {number} {'x' * 50}" for number in range(1000))))
    assert len(text.splitlines()) <= 14
    assert len(text) <= 2001
    assert text.startswith("ValueError: line 0 ")
    assert "line 999" in text
    assert len(explain_failure(ValueError("y" * 100_000))) <= 2001


def test_many_causes_are_counted() -> None:
    lines = [f"ptxas /tmp/a.ptx, line {n}; error   : Unknown symbol 's{n}'" for n in range(9)]
    assert explain_failure(RuntimeError("\n".join(lines))).splitlines()[-1] == "and 5 other errors"


def test_kernels_that_were_written_by_hand_are_their_writers_to_correct() -> None:
    ours = compile_failure(KernelSpec.from_mapping(pointwise("a + 1")), "no such name")
    assert not isinstance(ours, UserKernelCompileError)

    class ByHand:
        name, form, origin = "mine", "user", ()

    theirs = compile_failure(ByHand(), "no such name")
    assert isinstance(theirs, UserKernelCompileError)
    assert isinstance(theirs, UserKernelError)
    assert "report" not in theirs.hint


def test_what_a_compiler_prints_does_not_get_into_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    text = 'tl.inline_asm_elementwise("nonsense.f32 $0, $1;", "=r,r", [a], dtype=tl.float32, is_pure=True, pack=1)'
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(pointwise(text)))
    assert main(["compile", str(path), "--workers", "0", "--json"]) == 1
    (row,) = json.loads(capfd.readouterr().out)["kernels"]
    assert row["error"].startswith("ptxas: Not a name of any known instruction: 'nonsense'")
    assert "/tmp" not in row["error"]
