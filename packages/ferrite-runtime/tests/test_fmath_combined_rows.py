"""Rows brought in the order of their places, in the interpreter: each once, and every place where it starts."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_runtime import IndexOutOfBounds, Kernel
from runtime_kernels import spec, tensor

torch = pytest.importorskip("torch")

NONE = torch.iinfo(torch.int64).min
BLOCK = 64


def run(call: str, programs: int, **tensors: tuple[torch.Tensor, str]) -> None:
    """Runs a kernel of one line over tensors, each with its access."""
    names = {torch.int32: "i32", torch.int64: "i64", torch.int16: "i16"}
    params = [tensor(name, names[x.dtype], access) for name, (x, access) in tensors.items()]
    body = f"@triton.jit\ndef kernel({', '.join(tensors)}):\n    fmath.{call}\n"
    extra: dict[str, Any] = {"family": "template", "grid": programs}
    Kernel(spec("kernel", body, params, [], **extra))(*(x for x, _ in tensors.values()))


def ordered(places: torch.Tensor, rows: int, *, wraps: bool = False, end: int) -> tuple[torch.Tensor, ...]:
    """Returns the counts, the places in order, and the rows, as `count_places` and those after it store them."""
    count = len(places)
    counts, starts = (torch.zeros(rows + 1, dtype=torch.int32) for _ in range(2))
    ranks, packed = torch.zeros(count, dtype=torch.int32), torch.zeros(end, dtype=torch.int64)
    numbers, programs = f"{count}, {rows}, {wraps}", -(-end // BLOCK)
    given = {"places": (places, "read")}
    run(
        f"count_places(places, counts, ranks, {numbers}, {BLOCK})",
        -(-count // BLOCK),
        **given,
        counts=(counts, "atomic"),
        ranks=(ranks, "write"),
    )
    run(
        f"start_places(counts, starts, {rows}, 16, 32)",
        -(-(rows + 1) // 16),
        counts=(counts, "read"),
        starts=(starts, "write"),
    )
    run(
        f"order_rows(places, ranks, starts, packed, {numbers}, {end}, {BLOCK})",
        programs,
        **given,
        ranks=(ranks, "read"),
        starts=(starts, "read"),
        packed=(packed, "write"),
    )
    return counts, packed >> 32, packed & 0xFFFFFFFF


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_of_one_place_follow_each_other(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    places = torch.randint(100, (200,)).to(dtype)
    places[64:128] = 7  # a block of one place
    counts, found, rows = ordered(places, 100, end=209)
    assert torch.equal(counts[:100], torch.bincount(places, minlength=100).int())
    assert torch.equal(found[:200], places.long().sort().values)
    assert torch.equal(rows[:200].sort().values, torch.arange(200))
    assert torch.equal(places.long()[rows[:200]], found[:200])
    assert (found[200:] == -1).all()
    assert (rows[200:] == 0).all()


def test_places_count_from_the_end_and_the_lowest_number_is_none() -> None:
    places = torch.tensor([-1, 4, NONE, 0, -5])
    counts, found, rows = ordered(places, 5, wraps=True, end=6)
    assert counts.tolist() == [2, 0, 0, 0, 2, 1]
    assert found.tolist() == [0, 0, 4, 4, 5, -1]
    assert rows[4] == 2


@pytest.mark.parametrize("place", [5, -1])
def test_a_place_that_there_is_not_is_refused(place: int) -> None:
    with pytest.raises(IndexOutOfBounds):
        ordered(torch.tensor([0, place]), 5, end=3)
