"""Which writes to the places of a mask become choices in dynamo's graph, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ferrite_torch.rewrites.masked_writes import choose_by_masks

Write = Callable[[Tensor, Tensor, Tensor], Any]


def chosen(write: Write, values: Tensor) -> int:
    """Returns the number of choices in the graph of a write; checks that its result is eager's."""
    found: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        choose_by_masks(module)
        module.graph.lint()
        found.append(len(module.graph.find_nodes(op="call_function", target=torch.where)))
        return module.forward

    x, mask = torch.randn(3, 4, 5), torch.arange(12).view(3, 4) % 4 == 1
    mine = torch.compile(write, backend=backend, fullgraph=True)(x.clone(), mask, values)
    assert torch.equal(mine, write(x.clone(), mask, values))
    return found[0]


def put(index: Callable[[Tensor], Any]) -> Write:
    def write(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        x[index(mask)] = values
        return x

    return write


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        pytest.param(lambda mask: mask, (5,), id="a row"),
        pytest.param(lambda mask: mask, (1, 5), id="a row of a matrix"),
        pytest.param(lambda mask: mask, (), id="a number"),
        pytest.param(lambda mask: (mask, slice(None)), (5,), id="dims behind"),
        pytest.param(lambda mask: (slice(None), mask[0]), (5,), id="dims before"),
        pytest.param(lambda mask: (slice(None), mask[0]), (3, 1, 5), id="dims before, of values too"),
        pytest.param(lambda mask: (..., mask[0], slice(None)), (1, 5), id="an ellipsis before"),
        pytest.param(lambda mask: (mask[:, 0], ...), (4, 5), id="an ellipsis behind"),
    ],
)
def test_becomes_a_choice(index: Callable[[Tensor], Any], shape: tuple[int, ...]) -> None:
    assert chosen(put(index), torch.randn(shape, requires_grad=True)) == 1


def test_functions_become_choices() -> None:
    values = torch.randn(5, requires_grad=True)
    assert chosen(lambda x, mask, values: x.index_put_((mask,), values), values) == 1
    assert chosen(lambda x, mask, values: x.index_put((mask,), values) + x, values) == 1
    assert chosen(lambda x, mask, values: torch.index_put(x, (mask,), values) + x, values) == 1


def test_writes_to_what_was_written_become_choices() -> None:
    def written(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return x.index_put((mask,), values).index_put((~mask,), values * 2)

    def read(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        first = x.index_put((mask,), values)
        return x.index_put((mask,), first[0, 1])

    def in_place(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        first = x.index_put_((mask,), values)
        first[~mask] = values * 2
        return first

    values = torch.randn(5, requires_grad=True)
    assert [chosen(write, values) for write in (written, read, in_place)] == [2, 2, 2]


def test_one_value_for_each_place_stays() -> None:
    assert chosen(put(lambda mask: mask), torch.randn(3, 5, requires_grad=True)) == 0


def test_values_without_a_gradient_stay() -> None:
    assert chosen(put(lambda mask: mask), torch.randn(5)) == 0


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (4,), (3, 4, 1)])
def test_a_mask_of_other_extents_is_the_error_that_it_was(shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="shape of the mask"):
        chosen(
            lambda x, mask, values: put(lambda _: mask.new_ones(shape))(x, mask, values),
            torch.randn(5).requires_grad_(),
        )


def test_other_indices_stay() -> None:
    values = torch.randn(5, requires_grad=True)
    assert chosen(put(lambda mask: 1), values) == 0
    assert chosen(put(lambda mask: (mask[:, 0], torch.tensor([1]))), values) == 0
    assert chosen(put(lambda mask: (mask[:, 0], slice(0, 2))), values) == 0


def test_sums_stay() -> None:
    values = torch.randn(5, requires_grad=True)
    assert chosen(lambda x, mask, values: x.index_put((mask,), values, accumulate=True), values) == 0


def test_what_is_not_written_in_place_lies_as_a_clone() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        choose_by_masks(module)
        return module.forward

    def write(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return x.index_put((mask,), values[0, 0])

    x, mask = torch.randn(5, 4, 3).permute(2, 1, 0), torch.arange(60).view(3, 4, 5) % 4 == 1
    values = torch.randn(2, 5, requires_grad=True)
    actual, expected = torch.compile(write, backend=backend, fullgraph=True)(x, mask, values), write(x, mask, values)
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()
