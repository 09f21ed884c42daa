"""Rows combined by programs that own places, where one compilation serves any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ferrite_torch
import ferrite_triton.host.segment_shapes
import ferrite_triton.host.segmented_reductions
from against_eager import assert_all_close, devices, gradients, own_only, widened
from ferrite_runtime import CheckFailed, IndexOutOfBounds
from ferrite_triton.host.segment_shapes import SEGMENTS
from row_cases import PLACES, added, largest, looked_up, padded, places, put, scaled, smallest, summed

pytestmark = own_only("it looks at its kernels")

POLICY = {"segment_bytes": 0, "segment_row": 1, "segment_batch": 2}
COUNTS = (37, 2, 255, 3, 257, 256)
"""Primes, what is a power of two, and what is next to one."""


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels for at most 64 and 256 rows, and for more than were expected."""
    fewer = replace(SEGMENTS, least_class=64, most_rows=256, least_share=16, shares=8, many_shares=8)
    monkeypatch.setattr(ferrite_triton.host.segment_shapes, "SEGMENTS", fewer)


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no kernels for numbers of rows that a test does not call them with: all of them are compiled for a GPU."""
    fewer = replace(SEGMENTS, most_rows=SEGMENTS.least_class)
    monkeypatch.setattr(ferrite_triton.host.segment_shapes, "SEGMENTS", fewer)


@pytest.fixture(autouse=True)
def counted() -> None:
    ferrite_torch.reset_statistics()


def compiled(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    # What is stored of an earlier compilation would not know what a test has changed.
    options = {"fallback": False, "verify": True, "use_cache": False, "policy": POLICY, **options}
    return torch.compile(call, backend="ferrite", fullgraph=True, dynamic=True, options=options)


def given(kind: str, count: int, width: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a target, places and rows, of which the number is all that may change."""
    index, (x, target) = places(kind, count), (torch.randn(rows, width).to(dtype) for rows in (count, PLACES))
    found = target.to(device), index.to(device), x.to(device)
    torch._dynamo.mark_static(found[0])
    torch._dynamo.mark_static(found[2], 1)
    return found


def check_kernels(graphs: int = 1) -> dict[str, Any]:
    """Checks that one compilation has served all calls, and that its kernels are those that own places."""
    statistics, program = ferrite_torch.statistics(), ferrite_torch.compiled_programs()[-1]
    assert statistics["graphs"] == graphs
    assert statistics["specialised"] == {}
    names = [kernel["name"] for kernel in program["kernels"]]
    assert any(name.startswith("bin_rows") for name in names)
    assert not any("tl.atomic" in kernel["source"] for kernel in program["kernels"])
    return program


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("call", "dtypes"),
    [
        (added, (torch.float32, torch.bfloat16)),
        (summed, (torch.bfloat16,)),
        (largest, (torch.float32, torch.float16)),
        (smallest, (torch.bfloat16,)),
        (put, (torch.float32, torch.float16)),
        (looked_up, (torch.float32, torch.bfloat16)),
        (padded, (torch.bfloat16,)),
    ],
)
@pytest.mark.usefixtures("few_classes")
def test_one_compilation_serves_any_number_of_rows(call, dtypes: Sequence[torch.dtype], device: str) -> None:
    torch.manual_seed(0)
    for compilations, dtype in enumerate(dtypes):
        torch._dynamo.reset()
        mine = compiled(call)
        for number, count in enumerate(COUNTS):
            target, index, x = given(("any", "one", "ends", "skewed")[number % 4], count, 24, dtype, device)
            if call in (largest, smallest):
                x[count // 2, 1] = torch.nan
            wide = (widened(target), index, widened(x))
            assert_all_close([mine(target, index, x)], [call(target, index, x)], [call(*wide)])
        check_kernels(compilations + 1)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("call", [added, largest, looked_up])
@pytest.mark.usefixtures("few_rows")
def test_each_number_of_rows_takes_a_form_that_is_right_for_it(call, device: str) -> None:
    torch.manual_seed(0)
    mine = compiled(call)
    for count in (10, 63, 64, 65, 256, 257, 500, 2):
        for kind in ("one", "skewed"):
            target, index, x = given(kind, count, 24, torch.float32, device)
            wide = (widened(target), index, widened(x))
            assert_all_close([mine(target, index, x)], [call(target, index, x)], [call(*wide)])
    program = check_kernels()
    launches = [step for step in program["steps"] if step["do"] == "launch"]
    limits = [[other["when"][0][1] for other in step.get("alternatives", [])] for step in launches]
    assert limits == [[], [64], [64], [64]]


@pytest.mark.parametrize("device", devices())
@pytest.mark.usefixtures("few_rows")
def test_sums_repeat_bit_by_bit_in_all_forms(device: str) -> None:
    mine = compiled(summed)
    for count in (60, 250, 500):
        torch.manual_seed(0)
        target, index, x = given("skewed", count, 24, torch.float32, device)
        # What is lost of a sum in 32 bits depends on the order.
        x *= 10.0 ** torch.randint(-4, 5, (count, 1), device=device)
        first, *more = (mine(target, index, x) for _ in range(2 if device == "cpu" else 20))
        assert all(torch.equal(first, again) for again in more)
    check_kernels()


def test_what_a_call_computes_does_not_depend_on_the_sizes_before() -> None:
    torch.manual_seed(0)
    target, index, x = given("skewed", 250, 24, torch.float32, "cpu")
    x *= 10.0 ** torch.randint(-4, 5, (250, 1))
    results = []
    for first in (3, 250):
        torch._dynamo.reset()
        mine = compiled(summed)
        mine(*given("any", first, 24, torch.float32, "cpu"))
        results.append(mine(target, index, x))
    assert torch.equal(*results)


@pytest.mark.parametrize("device", devices())
def test_more_rows_than_the_first_form_is_for(device: str) -> None:
    torch.manual_seed(0)
    mine = compiled(summed)
    # The interpreter would take minutes for what the last forms are for.
    many = () if device == "cpu" else (20_000, 70_000, 300_000, 1_500_000, 5_000_000)
    for count in (20, 4096, 4097, *many):
        target, index, x = given("any", count, 8, torch.float32, device)
        x = x.mul(8).round()
        torch._dynamo.mark_static(x, 1)
        assert torch.equal(mine(target, index, x), summed(target, index, x))
    check_kernels()


@pytest.mark.parametrize("device", devices())
def test_no_row_at_all(device: str) -> None:
    def kept(target: Tensor, index: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        return target.index_add(0, index[mask], x[mask])

    torch.manual_seed(0)
    target, index, x = (value.to(device) for value in (torch.randn(PLACES, 24), places("any", 40), torch.randn(40, 24)))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        mine = torch.compile(
            kept, backend="ferrite", fullgraph=True, options={"fallback": False, "verify": True, "policy": POLICY}
        )
        for count in (5, 0, 1, 40):
            mask = torch.arange(40, device=device) < count
            torch.testing.assert_close(mine(target, index, x, mask), kept(target, index, x, mask))
    check_kernels()


@pytest.mark.usefixtures("few_classes")
def test_numbers_of_places_and_rows_may_lie_anyhow() -> None:
    def added_in_part(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
        return added(target, index, x[:, 8:32])

    torch.manual_seed(0)
    mine = compiled(added_in_part)
    for count in (30, 7, 130):
        index, target = places("any", count).int(), torch.randn(PLACES, 24, dtype=torch.float64)
        x = torch.randn(count, 40, dtype=torch.float64)
        torch._dynamo.mark_static(target)
        torch._dynamo.mark_static(x, 1)
        expected = added_in_part(target, index, x)
        assert_all_close([mine(target, index, x)], [expected], [expected])
    check_kernels()


@pytest.mark.usefixtures("few_classes")
def test_a_place_that_is_none_is_named() -> None:
    mine = compiled(added)
    target, index, x = given("any", 16, 8, torch.float32, "cpu")
    mine(target, index, x)
    with pytest.raises(IndexOutOfBounds, match="index_add"):
        mine(target, torch.tensor([0, PLACES] * 8), x)


@pytest.mark.usefixtures("few_classes")
def test_more_rows_than_can_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ferrite_triton.host.segmented_reductions, "most_rows", lambda shape: 50)
    mine = compiled(added)
    target, index, x = given("any", 50, 8, torch.float32, "cpu")
    torch.testing.assert_close(mine(target, index, x), added(target, index, x))
    with pytest.raises(CheckFailed, match=r"at most 50 rows to combine.*51"):
        mine(*given("any", 51, 8, torch.float32, "cpu"))


@pytest.mark.usefixtures("few_classes")
def test_rows_that_are_computed_are_written_first() -> None:
    torch.manual_seed(0)
    mine = compiled(scaled)
    target = torch.randn(700, 24).bfloat16()
    torch._dynamo.mark_static(target)
    for count in (3, 40):
        index, x = torch.randint(700, (count,)), torch.randn(count, 24).bfloat16()
        torch._dynamo.mark_static(x, 1)
        wide = scaled(widened(target), index, widened(x))
        assert_all_close([mine(target, index, x)], [scaled(target, index, x)], [wide])
    check_kernels()


@pytest.mark.usefixtures("few_classes")
def test_gradients_of_bags_are_added_to_the_rows_that_these_read() -> None:
    def bagged(index: Tensor, table: Tensor) -> Tensor:
        return F.embedding_bag(index, table, mode="sum", padding_idx=3)

    torch.manual_seed(0)
    table = torch.randn(900, 24).bfloat16().requires_grad_()
    torch._dynamo.mark_static(table)
    mine = compiled(bagged)
    for count in (5, 2, 33):
        index = torch.where(torch.rand(count, 4) < 0.5, 3, torch.randint(900, (count, 4)))
        torch._dynamo.mark_static(index, 1)
        wide = widened(table.detach()).requires_grad_()
        found = [gradients([call(index, x)], [x]) for call, x in ((mine, table), (bagged, table), (bagged, wide))]
        assert_all_close(*found)
    check_kernels(graphs=2)


class Tied(nn.Module):
    """A table that is read, and multiplied with what is made of its rows."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64, padding_idx=3, dtype=dtype)
        self.places = nn.Embedding(40, 64, dtype=dtype)

    def forward(self, index: Tensor) -> Tensor:
        position = torch.arange(index.shape[1], device=index.device)
        hidden = torch.tanh(self.table(index) + self.places(position))
        return F.linear(hidden, self.table.weight)


def trained(model: nn.Module, call: Callable[..., Tensor], index: Tensor) -> Sequence[Tensor]:
    """Returns the gradients of all parameters."""
    model.zero_grad()
    call(index).float().square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_tied_table_is_trained_with_batches_of_any_size(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    model = Tied(dtype).to(device)
    exact = Tied(dtype).to(device)
    exact.load_state_dict(model.state_dict())
    exact.double()
    mine = compiled(model)
    for batch, length in ((2, 7), (3, 16), (5, 31), (2, 2)):
        index = torch.randint(50, (batch, length), device=device)
        index[0, ::2] = 3
        own = trained(model, mine, index)
        assert_all_close(own, trained(model, model, index), trained(exact, exact, index))
        assert all(map(torch.equal, own, trained(model, mine, index)))
    check_kernels(graphs=2)
