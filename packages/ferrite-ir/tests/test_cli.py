from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrite_ir import __version__
from ferrite_ir.__main__ import main

GOOD = """graph @f(x: f32[4]) -> (y) {
  v: f32[4] = loop [i < 4] exp(x[i])
  y: f32[4] = loop [i < 4] add(v[i], f32(-0.0))
}
"""
BAD = """graph @f(x: f32[4]) -> (y) {
  y: f32[5] = loop [i < 5] x[i]
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "good.fir"
    path.write_text(GOOD)
    return path


def test_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file)]) == 0
    assert "1 graphs, 2 definitions, no problems" in capsys.readouterr().out
    file.write_text(BAD)
    assert main(["check", str(file)]) == 1
    shown = capsys.readouterr().err
    assert "^ V08: the load of x has index i in 0…4 on dim 0 of extent 4" in shown


def test_parse_errors_show_the_place(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("graph @f(x: f33[4]) -> (x) {\n}\n")
    assert main(["print", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"{file}:1:13: unknown dtype 'f33'")


@pytest.mark.parametrize("command", ["check", "print", "opt", "fingerprint"])
@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [("missing", None, 2, "No such file"), ("folder", None, 2, "Is a directory"), ("pipe", None, 2, "is no file"),
     ("empty", b"", 1, ""), ("binary", b"\x7fELF\xff\xfe", 1, "no text in UTF-8"), ("text", b"words\n", 1, ":1:1:"),
     ("bundle", b"ferrite-bundle/2\n", 1, ":1:"), ("deep", b"(" * 100000, 1, ":1:1:")],
)  # fmt: skip
def test_what_is_no_program(
    command: str, name: str, content: bytes | None, status: int, said: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()
    elif name == "pipe":
        os.mkfifo(path)
    expected = 0 if name == "empty" and main([command, str(path)]) == 0 else status
    assert main([command, str(path)]) == expected
    if expected:
        assert said in (err := capsys.readouterr().err)
        assert str(path) in err
        assert main([command, str(path), "--json"]) == expected
        assert json.loads(capsys.readouterr().out)["error"]["message"] in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "COMMAND"), (["chek", "x"], "did you mean 'check'?"), (["check"], "file"), (["check", "x", "--jsn"], "--jsn"),
     (["eval", "FILE", "missing"], "missing cannot be read"),
     (["eval", "FILE", "INPUTS", "--size", "n"], "write one as")],
)  # fmt: skip
def test_wrong_arguments(arguments: list[str], said: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = file.with_name("inputs.json")
    inputs.write_text("[[1, 2, 3, 4]]")
    given = [{"FILE": str(file), "INPUTS": str(inputs)}.get(each, each) for each in arguments]
    assert main(given) == 2
    assert said in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ferrite-ir {__version__}\n"


def test_json_of_every_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for command in ("check", "print", "opt", "fingerprint"):
        assert main([command, str(file), "--json"]) == 0
        shown[command] = json.loads(capsys.readouterr().out)
    assert shown["check"] == {"graphs": 1, "definitions": 2}
    assert shown["print"]["program"] + "\n" == GOOD


@pytest.mark.parametrize("command", ["print", "fingerprint"])
def test_closed_pipes_and_full_disks_have_no_traceback(command: str, file: Path) -> None:
    run = f"{sys.executable} -m ferrite_ir {command} {file}"
    for ending, status in ((" | true; exit ${PIPESTATUS[0]}", (0, 141)), (" > /dev/full", (2,)), (" >&-", (0,))):
        done = subprocess.run(["bash", "-c", run + ending], capture_output=True, text=True, check=False)
        assert done.returncode in status, done.stderr
        assert "Traceback" not in done.stderr


def test_print_and_fingerprint(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print", str(file)]) == 0
    assert capsys.readouterr().out == GOOD
    assert main(["fingerprint", str(file)]) == 0
    digest = capsys.readouterr().out.strip()
    assert digest == "cb90263c2f0bbe649aff90fa5e15dd5cdb2fdd6b9c91312c504101009a9fcf18"


def test_opt(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(file)]) == 0
    assert capsys.readouterr().out == "graph @f(x: f32[4]) -> (y) {\n  y: f32[4] = loop [i < 4] exp(x[i])\n}\n"
    assert (
        main(["opt", str(file), "--passes", "simplify,inline{max_cost=3}", "--print-after-each", "--verify-each"]) == 0
    )
    out = capsys.readouterr().out
    assert out.index("# after simplify\n") < out.index("# after inline{max_cost=3}\n")
    assert main(["opt", str(file), "--passes", "simplfy"]) == 1
    assert "unknown pass 'simplfy'; known: simplify, " in capsys.readouterr().err


def test_opt_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert main(["opt", "-", "--passes", "dce"]) == 0
    assert capsys.readouterr().out == GOOD


def test_eval(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps([[0, "-inf", "inf", "nan"]]))
    assert main(["eval", str(file), str(inputs)]) == 0
    assert json.loads(capsys.readouterr().out) == [[1.0, 0.0, "inf", "nan"]]
    inputs.write_text("[[1, 2]]")
    assert main(["eval", str(file), str(inputs)]) == 1
    assert "input x has shape [2], expected [4]" in capsys.readouterr().err
    inputs.write_text("{}")
    assert main(["eval", str(file), str(inputs)]) == 1
    assert "JSON list with one entry for each input" in capsys.readouterr().err


def test_eval_with_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, inputs = tmp_path / "f.fir", tmp_path / "inputs.json"
    file.write_text("graph @f(x: f32[2*n]) -> (y) where n: size >= 1 {\n  y: f32[n] = loop [i < n] x[i]\n}\n")
    inputs.write_text("[[1, 2, 3, 4]]")
    assert main(["eval", str(file), str(inputs), "--size", "n=2"]) == 0
    assert json.loads(capsys.readouterr().out) == [[1.0, 2.0]]
