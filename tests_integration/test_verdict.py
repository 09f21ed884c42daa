"""The figures that `benchmarks/kernels/verdict.py` judges: reached, missed, or open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.kernels import verdict
from benchmarks.kernels.plot import draw_kernels
from benchmarks.kernels.report import markdown_table
from benchmarks.kernels.results import as_json, read_results
from benchmarks.kernels.verdict import BARS, figures


def row(backend: str, share: float | None, *, case: str = "gelu+bias", **more: Any) -> dict[str, Any]:
    ms = None if share is None else 0.1 / share
    return {"case": case, "dtype": "bfloat16", "backend": backend, "share": share, "ms": ms, "failed": None} | more


def judged(tmp_path: Path, *rows: dict[str, Any]) -> list[Any]:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": rows}))
    return figures(read_results([path]))


def test_what_was_not_measured_is_open(tmp_path: Path) -> None:
    found = judged(tmp_path, row("eager", 0.5))
    assert {figure.reached for figure in found} == {None}


def test_shares_and_speed(tmp_path: Path) -> None:
    found = judged(tmp_path, row("ferrite", 0.9, compile_s=1.0), row("inductor", 0.6, compile_s=2.0))
    assert [figure.reached for figure in found[:4]] == [True, None, True, None]
    assert found[5].reached, "half of the time"


@pytest.mark.parametrize("share", [0.59, None])
def test_one_case_is_enough_to_miss(tmp_path: Path, share: float | None) -> None:
    low = row("ferrite", share, case="another", failed="why" if share is None else None)
    rows = [row("ferrite", 0.99), row("inductor", 0.5), low, row("inductor", 0.9, case="another")]
    found = judged(tmp_path, *rows)
    assert found[0].reached is False
    assert found[2].reached is False
    assert any("another" in line for line in found[2].against)


def test_arithmetic_is_no_floor(tmp_path: Path) -> None:
    assert judged(tmp_path, row("ferrite", 0.9), row("ferrite", 0.1, case="sort", limit="comparisons"))[0].reached


def test_bars(tmp_path: Path) -> None:
    rows = [row("ferrite", bar / 100, case=case) for case, bar in BARS.items()]
    assert judged(tmp_path, *rows)[4].reached
    assert judged(tmp_path, *rows[1:])[4].reached is None, "one of them was not measured"
    assert judged(tmp_path, *rows[1:], row("ferrite", 0.71))[4].reached is False


def test_predictions(tmp_path: Path) -> None:
    rows = [row("ferrite", 0.5, predicted_ms=0.1), row("ferrite", 0.5, case="b", predicted_ms=0.4)]
    assert "2.000 in geometric mean" in judged(tmp_path, *rows)[6].found


def test_the_table_has_ratios_predictions_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    rows = [
        row("inductor", 0.25, compile_s=3.0),
        row("ferrite", 0.5, compile_s=1.5, predicted_ms=0.1),
        row("inductor", 0.2, case="sort", limit="comparisons", compile_s=1.0),
        row("ferrite", 0.1, case="sort", limit="comparisons", compile_s=0.25),
    ]
    path.write_text(json.dumps({"results": rows}))
    table = markdown_table(read_results([path]), ["inductor", "ferrite"]).splitlines()
    assert table[2] == "| gelu+bias | bfloat16 | 0 | memory | 25 % (400 µs) | 50 % (200 µs) | 2.00 | 100 µs (x 2.00) |"
    assert table[3] == "| sort | bfloat16 | 0 | [1] | 20 % (500 µs) | 10 % (1000 µs) | 0.50 | - |"
    assert table[4].startswith("| geometric mean |  |  |  | 22.4 % | 22.4 % | 1.00 | x 2.00 either way |")
    assert table[5].startswith("| where memory bounds it |  |  |  | 25.0 % | 50.0 % |")
    assert table[7].startswith("| s to compile 2 rows |  |  |  | 4.0 | 1.8 |")
    assert table[-1] == "[1] comparisons"


def test_the_plot_has_rates_and_shares_of_every_cell(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row("ferrite", 0.5, bytes=1 << 20, predicted_ms=0.1),
        row("ferrite", 0.8, case="faster", bytes=1 << 21),
        row("ferrite", 0.9, case="sort", limit="comparisons"),
        row("eager", 0.25, bytes=1 << 20),
        row("eager", None, case="faster", failed="why"),
    ]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": rows}))
    roof, shares = draw_kernels(read_results([path]), ["eager", "ferrite"], 1e10, "a GPU").axes
    eager, ferrite = (2 * number for number in range(2))  # each has a point for the legend behind it

    def points(axes: Any, place: int) -> list[list[float]]:
        return axes.collections[place].get_offsets().tolist()  # type: ignore[no-any-return]

    assert points(roof, eager) == [[1.0, (1 << 20) / 0.4 / 1e9]]
    assert points(roof, ferrite) == [[1.0, (1 << 20) / 0.2 / 1e9], [2.0, (1 << 21) / 0.125 / 1e9], [0.0, 0.0]]
    assert [label.get_text() for label in shares.get_yticklabels()] == ["faster", "gelu+bias", "sort"]
    assert points(shares, eager) == [[25.0, 1.0]]
    assert points(shares, ferrite) == [[50.0, 1.0], [80.0, 0.0], [90.0, 2.0]]
    assert [text.get_text() for text in shares.get_legend().get_texts()] == ["25.0 %", "63.2 %"]


def test_nothing_measured_is_an_empty_plot() -> None:
    pytest.importorskip("matplotlib")
    roof, shares = draw_kernels([], ["eager", "ferrite"], 1e10, "a GPU").axes
    assert not any(len(drawn.get_offsets()) for axes in (roof, shares) for drawn in axes.collections)
    assert [text.get_text() for text in shares.get_legend().get_texts()] == ["-", "-"]


def test_results_of_several_runs_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, out = (tmp_path / name for name in ("first.json", "second.json", "out.json"))
    first.write_text(json.dumps({"bandwidth": [1e12], "results": [row("ferrite", 0.5), row("ferrite", 0.9, case="b")]}))
    second.write_text(json.dumps({"bandwidth": [2e12], "machine": "that", "results": [row("ferrite", 0.6)]}))
    arguments = ["verdict.py", str(first), str(second), "--machine", "this", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert verdict.main() == 1, "the mean is not reached"
    written = json.loads(out.read_text())
    assert written["bandwidth"] == [1e12, 2e12]
    assert written["machine"] == "this, that"
    assert [(r.case, r.share) for r in read_results([out])] == [("gelu+bias", 0.6), ("b", 0.9)]
    assert out.read_text() == as_json(written["bandwidth"], read_results([out]), machine="this, that")
