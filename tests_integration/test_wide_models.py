"""The benchmark of many models: what is drawn, shared out, and said of its rows."""

from __future__ import annotations

import fcntl
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

pytest.importorskip("torch")

import torch

from benchmarks.figures.wide_figures import wide_figures
from benchmarks.models import run
from benchmarks.models.cell import Cell, build_module, build_reference, timed_steps, workload_of
from benchmarks.models.precision import PRECISIONS
from benchmarks.models.report import busy_share, geomean
from benchmarks.models.variants import Variant, part_of, variants_of
from benchmarks.models.wide import WIDE
from benchmarks.tools.cores import share_of
from benchmarks.tools.profiling import union_length
from benchmarks.tools.turns import Turn

PLAIN = [name for name, architecture in WIDE.items() if architecture.library == "torch"]


def test_there_are_thirty_architectures_without_timm_too() -> None:
    assert sum(architecture.library != "timm" for architecture in WIDE.values()) >= 30
    assert len(WIDE) == len(set(WIDE)) >= 35
    assert {"torch", "timm", "torchvision", "transformers"} == {each.library for each in WIDE.values()}


def test_rows_are_drawn_alike_and_each_choice_is_drawn() -> None:
    drawn = list(variants_of(WIDE))
    assert drawn == list(variants_of(WIDE))
    assert [each.model for each in drawn] == list(WIDE)
    assert {each.batch for each in drawn} == {1, 8, 32}
    assert {each.dtype for each in drawn} == {"float32", "tf32", "bfloat16", "autocast"}
    assert {each.layout for each in drawn if WIDE[each.model].images} == {"nchw", "nhwc"}
    assert {each.layout for each in drawn if not WIDE[each.model].images} == {""}
    assert drawn != list(variants_of(WIDE, seed=1))
    few = {"bert": WIDE["bert"], "unet": WIDE["unet"]}
    assert list(variants_of(few)) == [each for each in drawn if each.model in few], "what others draw changes nothing"


def test_what_is_listed_is_crossed() -> None:
    few = {"bert": WIDE["bert"], "unet": WIDE["unet"]}
    names = [each.name for each in variants_of(few, ("1", "8"), ("nchw", "nhwc"), ("tf32",))]
    assert names[:2] == ["bert-b1-tf32", "bert-b8-tf32"]
    assert list(variants_of({"mixtral": WIDE["mixtral"]}, dtypes=("tf32",))) == [], "it has no row in TF32"
    assert names[2:] == ["unet-b1-nchw-tf32", "unet-b1-nhwc-tf32", "unet-b8-nchw-tf32", "unet-b8-nhwc-tf32"]


def test_parts_hold_each_row_once() -> None:
    rows = list(range(10))
    parts = [part_of(rows, f"{number}/4") for number in range(4)]
    assert sorted(row for part in parts for row in part) == rows
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("4/4", "1", "a/2", "-1/2", "0/0"):
        with pytest.raises(ValueError, match="k/n"):
            part_of(rows, wrong)


@pytest.mark.parametrize("count", [1, 2, 16, 17])
@pytest.mark.parametrize("parts", [1, 3, 12, 16, 20])
def test_shares_of_cores_are_equal_and_leave_none_idle(count: int, parts: int) -> None:
    cores = [2 * number for number in range(count)]
    shares = [share_of(cores, number, parts) for number in range(parts)]
    assert set().union(*shares) == set(cores)
    assert {len(share) for share in shares} == {-(-count // parts)}


def test_busy_time_counts_kernels_that_run_at_once_only_once() -> None:
    assert union_length([]) == 0.0
    assert union_length([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.6), (3.0, 4.0)]) == 5.0
    assert busy_share({"union_ms": 5.0}, 10.0) == 0.5
    assert busy_share({"union_ms": 11.0}, 10.0) == 1.0
    assert busy_share({}, 10.0) is None
    assert busy_share({"union_ms": 5.0}, None) is None


def test_slow_steps_are_timed_less_often() -> None:
    assert [timed_steps(100, seconds) for seconds in (1e-6, 0.02, 10.0)] == [100, 50, 5]
    assert timed_steps(3, 10.0) == 3


def row(model: str, mode: str, ms: dict[str, float | None], **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"busy": {}, "mib": {}, "cold_s": {}, "warm_s": {}, "right": {}}
    return {"model": model, "mode": mode, "ms": ms} | empty | more


def test_figures_of_rows() -> None:
    rows = [
        row("one", "inference", {"eager": 8.0, "inductor": 4.0, "ferrite": 1.0}, busy={"ferrite": 0.4}),
        row("two", "inference", {"eager": 4.0, "inductor": 1.0, "ferrite": 1.0}, busy={"ferrite": 0.9}),
        row("two", "training", {"eager": 1.0, "inductor": 1.0, "ferrite": 2.0}, mib={"eager": 1.0, "ferrite": 3.0}),
        row("wrong", "training", {"eager": 1.0, "inductor": 1.0, "ferrite": 0.1}, right={"ferrite": False}),
        row("lost", "training", {"eager": 1.0, "inductor": 1.0, "ferrite": None}),
    ]
    lines = list(wide_figures(rows))
    assert "ferrite is wrong in 1 of 5: wrong training" in lines
    assert "ferrite has no time of 1 of 5: lost training" in lines
    assert "inference, ferrite: 2.000 x inductor of 2 (0 below 1), 5.657 x eager of 2 (0 below 1), busy 0.60" in lines
    assert any(line.startswith("training, ferrite: 0.500 x inductor of 1 (1 below 1)") for line in lines)
    assert "    0.50  two training  (ms: eager 1.000, inductor 1.000, ferrite 2.000)" in lines
    assert "ferrite slower than eager: two training 0.50" in lines
    assert "ferrite peaks above eager's: two training 3.00" in lines
    assert geomean([1.0, 4.0]) == 2.0


@pytest.mark.parametrize(
    ("dtype", "mode"), [("float32", "training"), ("bfloat16", "inference"), ("autocast", "training")]
)
@pytest.mark.parametrize("name", PLAIN)
def test_models_of_plain_torch_compute_in_their_precision(name: str, dtype: str, mode: str) -> None:
    layout = "nhwc" if WIDE[name].images else ""
    cell = Cell(name, mode, "eager", "cold", "tiny", "cpu", dtype, 1, 1, 1, layout)
    module, inputs = build_module(cell, workload_of(cell))
    call = PRECISIONS[dtype].around(module, "cpu")
    result = call(*inputs)
    assert all(p.dtype == PRECISIONS[dtype].weights for p in module.parameters())
    exact, wide = build_reference(cell, workload_of(cell))
    expected = exact(*wide)
    assert expected.dtype == (torch.float64 if dtype == "float32" else torch.float32)
    assert (result.double() - expected.double()).norm() <= 0.05 * expected.double().norm()
    if mode == "training":
        result.backward()
        assert all(p.grad is not None for p in module.parameters())


def test_rows_of_parts_are_printed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launches = {"breaks": {}, "launches": {}, "failed": {}, "correct": None}
    paths = []
    for name, ms in (("one", 1.0), ("two", 4.0)):
        found = row(name, "inference", {"eager": 8.0, "inductor": 4.0, "ferrite": ms}) | launches
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps({"verdict": {"rows": [found]}}))
    plan = run.read_plan(["--set", "wide", "--out", str(tmp_path), "--merge", *map(str, paths)])
    assert run.run(plan) == 0
    assert "inference, ferrite: 2.000 x inductor of 2" in capsys.readouterr().out


def test_prepared_cells_are_timed_in_their_second_process() -> None:
    plan = run.read_plan(["--set", "wide", "--models", "bert", "--modes", "training", "--prepare", "2"])
    cells = list(run.cells_of(plan))
    assert [(cell.backend, cell.phase, cell.reps) for cell in cells] == [
        *((backend, "cold", 0) for backend in run.BACKENDS),
        *((backend, "warm", 100) for backend in run.BACKENDS),
    ]
    (variant,) = plan.variants
    assert cells[0].key == f"{variant.name}-training-eager-cold"
    five = run.read_plan(["--models", "bert", "--modes", "training"])
    assert five.variants == (Variant("bert", "bfloat16"),)
    assert [cell.key for cell in run.cells_of(five)][:2] == ["bert-training-eager-cold", "bert-training-inductor-cold"]


def test_a_second_process_does_not_compile_what_failed_in_the_first() -> None:
    cell = Cell("bert", "training", "inductor", "warm", "tiny", "cpu", "tf32", 1, 1, 1)
    failed = {replace(cell, phase="cold").key: {"failed": "timed out after 240 s"}}
    record = run.time_cell(None, cell, (0, 1), failed)  # type: ignore[arg-type]
    assert record["failed"] == "not run: its first process failed"


def test_a_turn_lasts(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "turn")
    with (tmp_path / "turn").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)
        turn.take_when_compiled("eager")
        turn.take()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        turn.end()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_turn_comes_when_the_first_graph_is_compiled(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "turn")
    held = []

    def backend(graph: Any, inputs: Any) -> Any:
        held.append(turn.is_mine)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    turn.take_when_compiled("ferrite")
    try:
        compiled(torch.ones(2))
    finally:
        torch._dynamo.callback.callback_handler.remove_end_callback(turn.take)
    turn.end()
    assert (held, turn.is_mine) == ([False], True)


@pytest.mark.parametrize(
    "wrong", [["--dtype", "drawn"], ["--dtype", "int8"], ["--batches", "0"], ["--workers", "2"], ["--part", "2/2"]]
)
def test_plans_that_make_no_sense_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.read_plan(wrong)
    assert "error:" in capsys.readouterr().err
