"""Rows listed by place, ordered where lists are too short, and combined, in the interpreter: each in its order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from ferrite_runtime import IndexOutOfBounds, Kernel
from runtime_kernels import spec, tensor

torch = pytest.importorskip("torch")

NONE = torch.iinfo(torch.int64).min
BLOCK, CAPACITY = 32, 16
LOW, HIGH, SHARE, TILE, CHUNK = 8, 16, 64, 32, 8
NEUTRAL = {"add": torch.zeros(6), "max": torch.full((6,), -torch.inf), "min": torch.full((6,), torch.inf)}
NAMES = {torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.bfloat16: "bf16"}


def run(call: str, programs: int, **tensors: tuple[torch.Tensor, str]) -> None:
    """Runs a kernel of one line over tensors, each with its access."""
    params = [tensor(name, NAMES[x.dtype], access) for name, (x, access) in tensors.items()]
    body = f"@triton.jit\ndef kernel({', '.join(tensors)}):\n    fmath.{call}\n"
    extra: dict[str, Any] = {"family": "template", "grid": programs}
    Kernel(spec("kernel", body, params, [], **extra))(*(x for x, _ in tensors.values()))


def listed(
    places: torch.Tensor, rows: int, *, wraps: bool = False, capacity: int = CAPACITY
) -> tuple[torch.Tensor, ...]:
    """Returns the counts and the lists of all places, and the counts of lower digits in each share."""
    count = len(places)
    counts, lists = torch.zeros(rows + 3, dtype=torch.int32), torch.full((rows, capacity), -7, dtype=torch.int32)
    low = torch.zeros(-(-count // SHARE), LOW, dtype=torch.int32)
    run(
        f"list_rows(places, counts, lists, low_counts, {count}, {rows}, {wraps}, {capacity}, {LOW}, {SHARE}, {BLOCK})",
        -(-count // BLOCK),
        places=(places, "read"),
        counts=(counts, "atomic"),
        lists=(lists, "write"),
        low_counts=(low, "atomic"),
    )
    return counts, lists, low


def ordered(
    places: torch.Tensor, counts: torch.Tensor, low: torch.Tensor, rows: int, capacity: int = CAPACITY
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the places of the rows that are in no list, and these rows, in the order in which they are combined."""
    count, shares = len(places), len(low)
    high = torch.zeros(shares, HIGH, dtype=torch.int32)
    partly, packed = torch.zeros(count, dtype=torch.int64), torch.full((count + CHUNK + 1,), 99, dtype=torch.int64)
    shape = f"{LOW}, {HIGH}, {SHARE}, {TILE}"
    numbers = f"{count}, {rows}, False, {capacity}, {shape}"
    run(
        f"order_low(places, counts, low_counts, high_counts, partly, {numbers})",
        shares,
        places=(places, "read"),
        counts=(counts, "read"),
        low_counts=(low, "read"),
        high_counts=(high, "atomic"),
        partly=(partly, "write"),
    )
    run(
        f"order_high(counts, high_counts, partly, packed, {count}, {rows}, {shape}, {CHUNK})",
        shares,
        counts=(counts, "readwrite"),
        high_counts=(high, "read"),
        partly=(partly, "read"),
        packed=(packed, "write"),
    )
    size = int(counts[rows + 2])
    if size:
        assert (packed[size : size + CHUNK + 1] >> 32 == -1).all()
        assert (packed[size : size + CHUNK + 1] & 0xFFFFFFFF == 0).all()
    return packed[:size] >> 32, packed[:size] & 0xFFFFFFFF


def combined(
    counts: torch.Tensor, lists: torch.Tensor, source: torch.Tensor, base: torch.Tensor, mode: str, batch: int = 4
) -> torch.Tensor:
    """Returns places with the rows of their lists combined into them."""
    rows, width = base.shape
    out, blocks = torch.full_like(base, 77.0), -(-width // 4)
    line = (
        f'combine_lists(counts, lists, source, base, out, tl.program_id(0), "{mode}", 0.0, {rows}, {width}, {width}, '
        f"{CAPACITY}, {batch}, 4, tl.float32)"
    )
    known = {"counts": counts, "lists": lists, "source": source, "base": base}
    run(line, rows * blocks, **{name: (x, "read") for name, x in known.items()}, out=(out, "write"))
    return out


def places_of(kind: str, count: int, rows: int) -> torch.Tensor:
    frequent = torch.randint(4, (count,)) * (rows // 4) + 3
    return {
        "any": torch.randint(rows, (count,)),
        "few": frequent,
        "skewed": torch.where(torch.rand(count) < 0.5, frequent, torch.randint(rows, (count,))),
        "one": torch.full((count,), rows - 1),
    }[kind]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_are_counted_and_listed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    places = torch.randint(100, (300,)).to(dtype)
    places[64:128] = 7  # blocks of one place
    places[200:220] = 9
    counts, lists, low = listed(places, 100)
    expected = torch.bincount(places, minlength=101).int()
    is_long = expected > CAPACITY
    assert torch.equal(counts[:101][~is_long], expected[~is_long])
    assert (counts[:101][is_long] > CAPACITY).all()
    assert (counts[:101] <= expected).all()
    assert counts[101:].tolist() == [int(is_long.sum()), 0]
    assert torch.equal(low, torch.stack([torch.bincount(part % LOW, minlength=LOW) for part in places.split(SHARE)]))
    for place in range(100):
        found = lists[place, : min(int(expected[place]), CAPACITY)]
        members = (places == place).nonzero().flatten().tolist()
        assert len(set(found.tolist())) == len(found)
        assert set(found.tolist()) <= set(members)


def test_places_count_from_the_end_and_the_lowest_number_is_none() -> None:
    counts, lists, _ = listed(torch.tensor([-1, 4, NONE, 0, -5]), 5, wraps=True)
    assert counts.tolist() == [2, 0, 0, 0, 2, 0, 0, 0]
    assert sorted(lists[0, :2].tolist()) == [3, 4]
    assert sorted(lists[4, :2].tolist()) == [0, 1]


def test_rows_of_no_place_are_in_no_list() -> None:
    counts, lists, _ = listed(torch.full((40,), NONE), 3)
    assert counts.tolist() == [0, 0, 0, 0, 0, 0]
    assert (lists == -7).all()


@pytest.mark.parametrize("place", [5, -1])
def test_a_place_that_there_is_not_is_refused(place: int) -> None:
    with pytest.raises(IndexOutOfBounds):
        listed(torch.tensor([0, place]), 5)


@pytest.mark.parametrize("capacity", [CAPACITY, 0])
@pytest.mark.parametrize("kind", ["any", "few", "skewed", "one"])
@pytest.mark.parametrize("count", [1, 17, 64, 300])
def test_rows_of_long_places_are_in_the_order_of_a_stable_sort(count: int, kind: str, capacity: int) -> None:
    torch.manual_seed(0)
    places = places_of(kind, count, 100)
    places[torch.rand(count) < 0.1] = NONE
    counts, _, low = listed(places, 100, capacity=capacity)
    found, rows = ordered(places, counts, low, 100, capacity)
    is_long = torch.bincount(places[places != NONE], minlength=100) > capacity
    expected = places.sort(stable=True)
    kept = (expected.values != NONE) & is_long[expected.values.clamp(min=0)]
    assert torch.equal(found, expected.values[kept])
    assert torch.equal(rows, expected.indices[kept])


@pytest.mark.parametrize("mode", ["add", "max", "min"])
def test_rows_of_a_list_are_combined_in_their_own_order_whenever_they_came(mode: str) -> None:
    torch.manual_seed(0)
    places = torch.randint(20, (120,))
    places[:40] = torch.randint(3, (40,)) + 5  # some are long
    counts, lists, _ = listed(places, 20)
    # Sums of these depend on their order.
    source = torch.randn(120, 6) * 10.0 ** torch.randint(-4, 5, (120, 1))
    base = torch.randn(20, 6)
    one_by_one, by_batches = (combined(counts, lists, source, base, mode, batch) for batch in (1, 4))
    function = {"add": torch.add, "max": torch.maximum, "min": torch.minimum}[mode]
    for place in range(20):
        rows = source[places == place]
        is_long = len(rows) > CAPACITY
        expected = torch.full((6,), 77.0) if is_long else function(base[place], reduce(function, rows, NEUTRAL[mode]))
        assert torch.equal(one_by_one[place], expected)
    for _ in range(3):
        came = torch.stack([listed_anyhow(*pair) for pair in zip(lists, counts[:20], strict=True)])
        assert torch.equal(combined(counts, came, source, base, mode), by_batches)


def listed_anyhow(rows: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Returns a list as if its rows had come in another order."""
    size = min(int(size), CAPACITY)
    return torch.cat([rows[:size][torch.randperm(size)], rows[size:]])


@pytest.mark.parametrize("before", ["base", "None"])
def test_places_of_no_row_are_what_they_were(before: str) -> None:
    counts = torch.tensor([0, 2, 1, 0, 0, 3, 0, 0], dtype=torch.int32)
    base, out = torch.randn(5, 6), torch.full((5, 6), 77.0)
    line = f"fill_places(counts, {before}, out, tl.program_id(0), -1.5, 5, 6, 2, 4)"
    run(line, 3, counts=(counts, "read"), base=(base, "read"), out=(out, "write"))
    is_empty = counts[:5] == 0
    assert torch.equal(out[is_empty], base[is_empty] if before == "base" else torch.full((3, 6), -1.5))
    assert (out[~is_empty] == 77.0).all()


def test_half_types_are_summed_in_32_bits() -> None:
    places = torch.zeros(10, dtype=torch.int64)
    counts, lists, _ = listed(places, 1)
    source = torch.full((10, 3), 1 + 2.0**-7).bfloat16()
    out = combined(counts, lists, source, torch.full((1, 3), 256.0).bfloat16(), "add")
    assert (out == torch.tensor(256 + 10 * (1 + 2.0**-7)).bfloat16()).all()
