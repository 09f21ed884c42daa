"""Indices that are tensors of one element: places that eager mode reads on the host, and kernels on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import compiled, compiled_or_eager, devices, own_only, tensors_of

each_device = pytest.mark.parametrize("device", devices())
own = own_only("torch's other backends run such graphs eagerly")

READS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "a row": lambda x, i, j: x[i] + 1,
    "a column": lambda x, i, j: x[:, i] * 2,
    "from the end": lambda x, i, j: x[..., i].sin(),
    "before an ellipsis": lambda x, i, j: x[i, ..., 1] + 1,
    "behind a new axis": lambda x, i, j: x[None, i, 1:] + 1,
    "two": lambda x, i, j: x[i, j] * 2,
    "two apart": lambda x, i, j: x[i, :, j] * 2,
    "beside a number": lambda x, i, j: x[0, i] + x[i, 0],
    "beside places": lambda x, i, j: x[torch.tensor([2, 0]), i] + 1,
    "beside a mask": lambda x, i, j: x[torch.tensor([True, False, True, True]), i] + 1,
    "of what is computed": lambda x, i, j: x.cumsum(0)[i].cos(),
    "views": lambda x, i, j: x[i].view(-1).split(7)[1] + 1,
    "returned": lambda x, i, j: (x + 1)[i].t(),
    "read before the write": lambda x, i, j: [(y := x * 2)[i] + 1, y.add_(1)],
    "in a checkpoint": lambda x, i, j: torch.utils.checkpoint.checkpoint(
        lambda y: y.sin()[i].cos(), x, use_reentrant=False
    ),
}


@each_device
@pytest.mark.parametrize("sizes", ["fixed", "symbolic"])
@pytest.mark.parametrize("name", READS)
def test_reads(name: str, sizes: str, device: str) -> None:
    x = torch.randn(4, 5, 6, device=device, requires_grad=True)
    check(READS[name], x, dynamic=sizes == "symbolic")


WRITES = """
    x[i] = v;  x[i] = 0.5;  x[:, i] = w[:4, :6];  x[i, j] = v[0];  x[i, :, j] = v[:, 0];  x[i, 0] = v[0]
    x[0, i] = v[0];  x[..., i] = w[:4, :5];  x[i, 1:3] = v[1:3];  x[i, None] = v;  x[i] = v.double()
    x[:, i, j] = w[:4, 0];  x[i, :, j] = w[0, 0];  x[i] = v[:1];  x[i] = v[None];  x[:, i] = w[0, :6]
    x[:, i] = w[:4, :1];  x[i, ..., j] = v[:, 0];  x[1:, i, None, ::2] = w[:3, None, :3];  x[i, 0, j] = v[0, 0]
    x[None, :, i] = w[:4, :6];  x[i] += 1;  x[i] -= v;  x[i, j] *= 2;  x[i] += x.sum();  x[:, i] += w[:4, :6]
    x[i] = x[j];  x[i] -= x[j];  x[j] = x[i] * 2
"""


def writing(statement: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(f"def write(y, i, j, v, w):\n    x = y * 1\n    {statement}\n    return x", names)
    found: Callable[..., Any] = names["write"]
    return found


@each_device
@pytest.mark.parametrize("statement", [each.strip() for each in WRITES.replace("\n", ";").split(";") if each.strip()])
def test_writes(statement: str, device: str) -> None:
    x, v, w = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((4, 5, 6), (5, 6), (8, 8)))
    check(writing(statement), x, v, w)


def skip_where_dynamo_fails(function: Callable[..., Any], x: Tensor, *more: Tensor, dynamic: bool) -> None:
    """Skips a test where no graph is captured at all: dynamo of torch 2.11 wants the number of an index on a GPU."""
    places = torch.tensor(2, device=x.device), torch.tensor(3, device=x.device)
    try:
        torch.compile(function, backend="eager", fullgraph=True, dynamic=dynamic)(x, *places, *more)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        pytest.skip(f"torch captures no graph: {str(error).splitlines()[0]}")
    torch._dynamo.reset()


def check(function: Callable[..., Any], x: Tensor, *more: Tensor, dynamic: bool = False) -> None:
    """Compares results and gradients, for places from the start and from the end."""
    if x.device.type == "cuda":
        skip_where_dynamo_fails(function, x, *more, dynamic=dynamic)
    made = compiled(function, dynamic=dynamic, fullgraph=True)
    for i, j in ((2, 3), (-1, -3)):
        places = torch.tensor(i, device=x.device), torch.tensor(j, device=x.device)
        mine, theirs = (tensors_of(call(x, *places, *more)) for call in (made, function))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        leaves = (x, *more)
        mine, theirs = (
            torch.autograd.grad([y.sum() for y in results], leaves, allow_unused=True) for results in (mine, theirs)
        )
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def test_an_input_is_written() -> None:
    def write(x: Tensor, i: Tensor) -> Tensor:
        x[i] += 1
        x[0] = x[i] * 2
        return x[i] + 1

    x, mine, i = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4), torch.tensor(1)
    assert torch.equal(compiled(write, fullgraph=True)(mine, i), write(x, i))
    assert torch.equal(mine, x)


@pytest.mark.parametrize("place", [3, -4])
def test_places_that_there_are_not(place: int) -> None:
    def write(x: Tensor, i: Tensor) -> Tensor:
        x[i] = 1
        return x

    for function in (READS["a row"], write):
        torch._dynamo.reset()
        with pytest.raises(IndexError):
            compiled(function)(torch.randn(3, 4), torch.tensor(place), *[None] * (function is not write))


VIEWS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "of an input": lambda x, i: x[i],
    "of another result": lambda x, i: ((y := x * 2)[i], y),
    "written": lambda x, i: (y := x * 2, y[i].add_(1)),
    "of what is written later": lambda x, i: ((y := x * 2), (z := y[i]), y.add_(1), z + 1)[3],
}


@own
@pytest.mark.parametrize("name", VIEWS)
def test_views_stay_views(name: str) -> None:
    """What a caller, or a write, can tell from a copy is no copy: such a graph runs eagerly, and says so.

    From torch 2.15 on some are captured as views at a place that the graph computes.
    """
    x, i = torch.randn(4, 5), torch.tensor(1)
    ferrite_torch.reset_statistics()
    mine, theirs = (tensors_of(call(x, i)) for call in (compiled_or_eager(VIEWS[name]), VIEWS[name]))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
    shared = [len({each.untyped_storage().data_ptr() for each in (x, *results)}) for results in (mine, theirs)]
    assert shared[0] == shared[1]
    told = "".join(ferrite_torch.statistics()["fallbacks"])
    assert "x[i].clone()" in told or "GuardOnDataDependentSymNode" not in told
