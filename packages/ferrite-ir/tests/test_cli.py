from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

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


def test_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "no/such.fir"]) == 1
    assert "No such file" in capsys.readouterr().err


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
