"""Elements of masks as functions of their place are what torch computes, at sizes that were not traced with too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from ferrite_torch.rewrites.mask_elements import CAUSAL, AtMostZero, Element, Elements, Hiding, Line

HIDDEN = -1e30
LEAST = torch.finfo(torch.float32).min


def of_last(function: Callable[..., Tensor]) -> Element | None:
    """Returns what is found for the result of a function of two sizes, which are symbolic."""
    found: list[Element | None] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        elements = Elements(lambda node: node.op in ("call_function", "call_method"), HIDDEN)
        (output,) = module.graph.find_nodes(op="output")
        (result,) = (node for node in output.args[0] if isinstance(node, Node))
        found.append(elements.of(result))
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda x: function(*x.shape), backend=backend, fullgraph=True, dynamic=True)
    compiled(torch.empty(4, 5))
    return found[0]


def value(element: Element, place: tuple[int, ...]) -> float:
    """Returns an element's value at indices, as a mask that is added holds it."""
    if isinstance(element, Hiding):
        return 0.0 if value(element.seen, place) else LEAST
    if isinstance(element, AtMostZero):
        return value(element.sum, place) <= 0
    return element.constant + sum(factor * place[axis] for axis, factor in element.factors)


def rows_and_columns(n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(n)[:, None], torch.arange(n)[None, :]


def seen(n: int) -> Tensor:
    rows, columns = rows_and_columns(n)
    return columns <= rows


def steps(n: int, m: int, start: int) -> Tensor:
    place = torch.arange(m)[None].expand(n, -1)
    return torch.diff(place, prepend=place[:, :1] - start, dim=-1)


KNOWN: dict[str, Callable[[int, int], Tensor]] = {
    "positions": lambda n, m: torch.arange(n),
    "positions from and by": lambda n, m: torch.arange(2, n + 2, 3),
    "sum": lambda n, m: torch.arange(n)[:, None] * 3 + torch.arange(m) - 2,
    "negative": lambda n, m: -torch.arange(n).unsqueeze(-1).expand(n, m),
    "difference of numbers": lambda n, m: 5 - torch.arange(m),
    "below": lambda n, m: torch.arange(m) < torch.arange(n)[:, None],
    "above": lambda n, m: torch.arange(m) > torch.arange(n)[:, None] + 1,
    "at least": lambda n, m: torch.arange(m) >= torch.arange(n).unsqueeze(1),
    "always": lambda n, m: torch.arange(m) + 1 > 0,
    "never": lambda n, m: torch.arange(m) < 0,
    "not": lambda n, m: ~seen(n),
    "and true": lambda n, m: seen(n) & torch.ones(n, n, dtype=torch.bool),
    "and itself": lambda n, m: torch.logical_and(seen(n), seen(n)),
    "or false": lambda n, m: seen(n) | torch.zeros((), dtype=torch.bool),
    "or true": lambda n, m: torch.logical_or(seen(n), torch.full((n, n), True)),
    "equal to true": lambda n, m: seen(n) == True,  # noqa: E712
    "not equal to true": lambda n, m: seen(n) != True,  # noqa: E712
    "equal lines": lambda n, m: torch.arange(n) + 2 == torch.arange(n) + 2,
    "lower triangle": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(1),
    "upper triangle": lambda n, m: torch.ones(n, m).triu(-1).bool(),
    "triangle of ones": lambda n, m: torch.tril(torch.ones(n, n)) == 0,
    "both triangles": lambda n, m: torch.ones(n, n, dtype=torch.bool).tril().tril(),
    "transposed": lambda n, m: seen(n)[None].transpose(1, 2),
    "new axes": lambda n, m: torch.arange(n)[None, ..., None] + torch.arange(m)[None, None],
    "slices": lambda n, m: (torch.arange(n)[:, None] * 7 + torch.arange(m))[1:, 1:4:2],
    "one row": lambda n, m: (torch.arange(n)[:, None] * 7 + torch.arange(m))[1],
    "of one place": lambda n, m: torch.arange(1)[:, None] + torch.arange(m),
    "gathered": lambda n, m: (torch.arange(n)[:, None] * 7 + torch.arange(m))[
        torch.arange(n)[:, None, None], torch.arange(m - 1)[None, None, :] + 1
    ],
    "truths gathered": lambda n, m: seen(n)[torch.arange(n)[:, None], torch.arange(n)[None, :]],
    "steps": lambda n, m: steps(n, m, 1),
    "steps without a first": lambda n, m: torch.diff(torch.arange(m) * 4),
    "packed": lambda n, m: (steps(n, m, 1) != 1).cumsum(-1),
    "running sum": lambda n, m: torch.ones(n, m, dtype=torch.int64).cumsum(0),
    "hidden": lambda n, m: torch.zeros(n, n).masked_fill(~seen(n), torch.finfo(torch.float32).min),
    "chosen": lambda n, m: torch.where(seen(n), 0.0, torch.finfo(torch.float32).min),
    "chosen otherwise": lambda n, m: torch.where(
        ~seen(n), torch.full((), torch.finfo(torch.float32).min), torch.scalar_tensor(0.0)
    ),
    "converted": lambda n, m: torch.arange(n).int().to(torch.int64).contiguous().clone(),
}
UNKNOWN: dict[str, Callable[[int, int], Tensor]] = {
    "rounded": lambda n, m: torch.arange(n).float() + 0.0,
    "first step of another": lambda n, m: steps(n, m, 2),
    "wrapped": lambda n, m: torch.arange(n)[torch.arange(n) - 1],
    "backwards": lambda n, m: torch.arange(n)[-1:],
    "from a size": lambda n, m: torch.arange(n, n + m),
    "of a size": lambda n, m: torch.arange(m) + n,
    "equal at places": lambda n, m: torch.arange(n)[:, None] == torch.arange(m),
    "two conditions": lambda n, m: seen(n) & (torch.arange(n) > 2),
    "nearly hidden": lambda n, m: torch.zeros(n, n).masked_fill(seen(n), -1000.0),
    "square": lambda n, m: torch.arange(n)[:, None] * torch.arange(m),
    "scaled sum": lambda n, m: torch.add(torch.arange(n), torch.arange(n), alpha=2),
    "and of numbers": lambda n, m: torch.arange(n) & 1,
    "not of numbers": lambda n, m: ~torch.arange(n),
    "reduced": lambda n, m: torch.arange(n).sum(),
    "bytes": lambda n, m: torch.arange(n).to(torch.int8),
    "second differences": lambda n, m: torch.diff(torch.arange(m), n=2),
}


@pytest.mark.parametrize("name", KNOWN)
def test_elements_are_what_torch_computes_at_any_size(name: str) -> None:
    found = of_last(KNOWN[name])
    assert found is not None
    for sizes in ((4, 5), (2, 3), (7, 2), (3, 9)):
        tensor = KNOWN[name](*sizes)
        for place in itertools.product(*map(range, tensor.shape)):
            assert value(found, place) == tensor[place].item()


@pytest.mark.parametrize("name", UNKNOWN)
def test_elements_that_are_no_such_functions_are_not_found(name: str) -> None:
    assert of_last(UNKNOWN[name]) is None


def test_a_causal_mask_is_causal() -> None:
    assert of_last(lambda n, m: seen(n)) == CAUSAL
    assert of_last(lambda n, m: torch.where(seen(n), 0.0, torch.finfo(torch.float32).min)) == Hiding(CAUSAL)
    assert of_last(lambda n, m: seen(n).expand(m, 1, n, n)) == CAUSAL


def test_sums_have_one_form() -> None:
    twice = Line(1, ((-1, 2),))
    assert twice + twice.times(-1) == Line(0)
    assert twice + Line(0, ((-2, 1),)) == Line(1, ((-2, 1), (-1, 2)))
