"""Rows combined by programs that own places: empty ones, those of one program, and those that many have a part of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, widened
from ferrite_runtime import IndexOutOfBounds
from row_cases import PLACES, added, added_in_place, largest, looked_up, padded, places, put, scaled, smallest, summed

POLICY = {"segment_bytes": 0, "segment_row": 1, "segment_batch": 2}
"""Small batches: a program has several of them."""


OPTIONS = {"fallback": False, "verify": True, "policy": POLICY}


def ran(call, index: Tensor, target: Tensor, x: Tensor) -> Tensor:
    """Returns the result of our kernels, and checks that they are those that own places."""
    mine = compiled(call, fullgraph=True, dynamic=False, options=OPTIONS)(target, index, x)
    program = ferrite_torch.compiled_programs()[-1]
    names = [kernel["name"] for kernel in program["kernels"]]
    assert any(name.startswith("bin_rows") for name in names)
    assert not any("tl.atomic" in kernel["source"] for kernel in program["kernels"])
    return mine


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("kind", "count"), [("any", 280), ("one", 300), ("sorted", 77), ("ends", 130), ("ends", 50), ("skewed", 250)]
)
@pytest.mark.parametrize("call", [added, summed, largest, smallest, put, looked_up, padded])
def test_values(call, count: int, kind: str, device: str) -> None:
    torch.manual_seed(0)
    index = places(kind, count).to(device)
    for dtype, width in ((torch.float32, 24), (torch.bfloat16, 64)):
        x, target = (torch.randn(rows, width, device=device).to(dtype) for rows in (count, PLACES))
        if call in (largest, smallest):
            x[count // 2, 1] = torch.nan
        assert_all_close(
            [ran(call, index, target, x)], [call(target, index, x)], [call(widened(target), index, widened(x))]
        )


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["any", "one", "skewed"])
@pytest.mark.parametrize("call", [summed, looked_up])
def test_sums_repeat_bit_by_bit(call, kind: str, device: str) -> None:
    for count, runs in ((200, 2),) if device == "cpu" else ((200, 20), (300_000, 20)):
        torch.manual_seed(0)
        index = places(kind, count).to(device)
        # What is lost of a sum in 32 bits depends on the order.
        x = torch.randn(count, 64, device=device) * 10.0 ** torch.randint(-4, 5, (count, 1), device=device)
        first, *more = (ran(call, index, torch.zeros(PLACES, 64, device=device), x) for _ in range(runs))
        assert all(torch.equal(first, again) for again in more)


def test_numbers_of_places_and_rows_may_lie_anyhow() -> None:
    torch.manual_seed(0)
    index, target = places("any", 120).int(), torch.randn(PLACES, 24, dtype=torch.float64)
    x = torch.randn(120, 40, dtype=torch.float64)[:, 8:32]
    mine = ran(added_in_place, index, target, x)
    assert_all_close([mine], [added(target, index, x)], [added(target, index, x)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [PLACES, 80])
def test_rows_of_fewer_bits_are_summed_in_64_where_the_program_says_so(count: int, dtype: torch.dtype) -> None:
    def widely_added(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
        return target.index_add(0, index, x.double())

    torch.manual_seed(0)
    index, target, x = places("skewed", 40), torch.randn(count, 24).double() + 1e-9, torch.randn(40, 24).to(dtype)
    mine = ran(widely_added, index, target, x)
    torch.testing.assert_close(mine, widely_added(target, index, x), rtol=1e-14, atol=1e-14)


def test_sums_of_64_bits_that_are_rounded_afterwards_have_64() -> None:
    def rounded(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
        return torch.zeros_like(target).index_add(0, index, x.double()).float()

    torch.manual_seed(0)
    index, target, x = places("skewed", 40), torch.zeros(PLACES, 24, dtype=torch.float64), torch.randn(40, 24)
    assert torch.equal(ran(rounded, index, target, x), rounded(target, index, x))


def test_few_rows_may_be_computed() -> None:
    torch.manual_seed(0)
    index, x, target = torch.tensor([5, 0, 5]), torch.randn(3, 24).bfloat16(), torch.randn(PLACES, 24).bfloat16()
    mine = ran(scaled, index, target, x)
    assert_all_close([mine], [scaled(target, index, x)], [scaled(widened(target), index, widened(x))])


MANY = 4200
"""Places of which most have no rows, however many rows a program expects where their number is symbolic."""


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("call", "kind", "dynamic"),
    [(added, "any", False), (added, "one", False), (smallest, "any", False), (added, "any", True)],
)
def test_places_without_rows_are_copied_where_most_have_none(call, kind: str, dynamic: bool, device: str) -> None:  # noqa: FBT001
    torch.manual_seed(0)
    rows = {"any": torch.randint(MANY, (60,)), "one": torch.full((60,), MANY - 1)}
    index = rows[kind].to(device)
    for dtype, width in ((torch.float32, 8), (torch.bfloat16, 11)):  # whole vectors, and rows that begin anywhere
        x, target = (torch.randn(count, width, device=device).to(dtype) for count in (len(index), MANY))
        torch._dynamo.reset()
        torch._dynamo.mark_static(target)
        torch._dynamo.mark_static(x, 1)
        before = target.clone()
        mine = compiled(call, fullgraph=True, dynamic=dynamic, options={**OPTIONS, "use_cache": False})(
            target, index, x
        )
        kernels = ferrite_torch.compiled_programs()[-1]["kernels"]
        sources = [kernel["source"] for kernel in kernels if kernel["name"].startswith("bin_rows")]
        assert sources
        assert all("touched" in source and ("n0" in source) == dynamic for source in sources)
        assert_all_close([mine], [call(target, index, x)], [call(widened(target), index, widened(x))])
        assert torch.equal(target, before)


def test_a_place_that_is_none_is_named() -> None:
    index, x, target = torch.tensor([0, PLACES] * 8), torch.ones(16, 8), torch.ones(PLACES, 8)
    with pytest.raises(IndexOutOfBounds, match="index_add"):
        ran(added, index, target, x)
