"""Ranks come to one choice, whoever measures, fails or is late."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferrite_runtime.devices.streams import rank_board
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.store.interface import MemoryStore
from ferrite_runtime.tuning.agreement import RankAgreement
from ferrite_runtime.tuning.known_configs import Choices
from runtime_fakes import FakeBoard

SITUATIONS = [Situation(f"{i:064x}", "NVIDIA H200", "sm_90", "3.6.0", (("x", 1024),)) for i in range(6)]
CONFIGS = [Config.of({"XBLOCK": 128 << i}, 4) for i in range(4)]


def ranks(mode: str, count: int = 3, patience: float = 10.0) -> list[Choices]:
    board = FakeBoard()
    return [
        Choices(MemoryStore(), agreement=RankAgreement(mode, lambda rank=rank: (rank, board), patience))
        for rank in range(count)
    ]


def settle_all(all_ranks: list[Choices], decide: Any) -> list[Config | None]:
    with ThreadPoolExecutor(len(all_ranks)) as pool:
        done = [
            pool.submit(choices.settle, SITUATIONS[0], lambda rank=rank: decide(rank))
            for rank, choices in enumerate(all_ranks)
        ]
        return [each.result() for each in done]


@pytest.mark.parametrize("mode", ["rank0", "first"])
def test_one_rank_measures_for_all(mode: str) -> None:
    asked: list[int] = []

    def decide(rank: int) -> Config:
        asked.append(rank)
        return CONFIGS[rank]

    taken = settle_all(ranks(mode), decide)
    assert len(asked) == 1
    assert taken == [CONFIGS[asked[0]]] * 3
    assert mode == "first" or asked == [0]


def test_what_rank_0_remembers_counts_for_all() -> None:
    all_ranks = ranks("rank0")
    for rank, choices in enumerate(all_ranks):
        choices.add([Measurement(SITUATIONS[0], CONFIGS[rank], 1.0, 1.0, 1.0, 5, is_chosen=True)])
        assert choices.recall(SITUATIONS[0]) is None, "what one rank remembers is not known to be the others'"
    assert settle_all(all_ranks, lambda rank: pytest.fail("nothing is to be measured")) == [CONFIGS[0]] * 3


def test_rank_that_does_not_run_a_kernel_holds_up_nobody_for_ever() -> None:
    late, *others = ranks("rank0", patience=0.1)
    assert settle_all(others, lambda rank: CONFIGS[rank + 1])[0] in CONFIGS[1:]
    taken = {choices.settle(SITUATIONS[0], lambda: CONFIGS[0]) for choices in (late, *others)}
    assert len(taken) == 1
    assert taken != {CONFIGS[0]}, "rank 0 takes what was chosen without it"


def test_decision_that_is_put_off_is_put_off_by_all() -> None:
    all_ranks = ranks("rank0")
    assert settle_all(all_ranks, lambda rank: None) == [None] * 3
    assert settle_all(all_ranks, lambda rank: CONFIGS[rank]) == [CONFIGS[0]] * 3


def test_another_rank_decides_where_the_first_puts_it_off() -> None:
    first, second, third = ranks("first")
    assert first.settle(SITUATIONS[0], lambda: None) is None
    assert second.settle(SITUATIONS[0], lambda: CONFIGS[1]) == CONFIGS[1]
    assert third.settle(SITUATIONS[0], lambda: pytest.fail("it is decided")) == CONFIGS[1]
    assert first.settle(SITUATIONS[0], lambda: pytest.fail("it is decided")) == CONFIGS[1]


def test_failure_of_the_rank_that_decides_is_no_deadlock() -> None:
    zero, one, two = ranks("rank0")

    def fail() -> Config:
        raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        zero.settle(SITUATIONS[0], fail)
    started = time.monotonic()
    assert one.settle(SITUATIONS[0], lambda: CONFIGS[1]) == CONFIGS[1]
    assert two.settle(SITUATIONS[0], lambda: CONFIGS[1]) == CONFIGS[1]
    assert time.monotonic() - started < 5.0, "nobody waits for a rank that gave up"


def test_without_a_process_group_everybody_decides() -> None:
    pytest.importorskip("torch.distributed")
    choices = Choices(MemoryStore(), agreement=RankAgreement("rank0", rank_board))
    assert choices.settle(SITUATIONS[0], lambda: CONFIGS[2]) == CONFIGS[2]


def test_two_processes_choose_alike_over_gloo(tmp_path: Path) -> None:
    """Each would choose otherwise, in another order, and one of them runs a kernel more."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch has no process groups")
    context: Any = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=join_group, args=(rank, str(tmp_path / "group"), answers)) for rank in (0, 1)]
    for child in children:
        child.start()
    found = dict(answers.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for mode in ("rank0", "first"):
        assert found[0][mode][:5] == found[1][mode], mode
    assert found[0]["rank0"] == [0] * 6


def join_group(rank: int, meeting: str, answers: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    taken = {}
    for mode, situations in (("rank0", SITUATIONS), ("first", [Situation(s.kernel, "b", "", "") for s in SITUATIONS])):
        choices = Choices(MemoryStore(), agreement=RankAgreement(mode, rank_board, 30.0))
        mine = situations if rank == 0 else situations[:5]
        order = mine if rank == 0 or mode == "rank0" else mine[::-1]
        chosen = {each.kernel: choices.settle(each, lambda: CONFIGS[rank]) for each in order}
        taken[mode] = [CONFIGS.index(chosen[each.kernel]) for each in mine]
    dist.barrier()
    answers.put((rank, taken))
    dist.destroy_process_group()
