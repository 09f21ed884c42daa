"""Results lie in memory as eager's do, and readers of memory see what they see in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled, devices, meaningful_strides, tensors_of

Function = Callable[[Tensor], Any]
SHAPE = (6, 4)
HIDDEN = torch.arange(24).view(SHAPE) % 3 == 0
SOME = torch.tensor([0, 2, 3])

IN_PLACE: dict[str, Function] = {
    "masked_fill_": lambda x: x.masked_fill_(HIDDEN, 7),
    "masked_scatter_": lambda x: x.masked_scatter_(HIDDEN, x * 2),
    "index_copy_": lambda x: x.index_copy_(0, SOME, x[1:4].clone()),
    "index_add_": lambda x: x.index_add_(0, SOME, x[1:4].clone()),
    "index_fill_": lambda x: x.index_fill_(0, SOME, 9),
    "index_put_": lambda x: x.index_put_((SOME,), x[:3].clone()),
    "scatter_": lambda x: x.scatter_(0, torch.zeros_like(x[:1], dtype=torch.int64), 5),
    "scatter_add_": lambda x: x.scatter_add_(0, torch.zeros_like(x[:2], dtype=torch.int64), x[1:3].clone()),
    "scatter_reduce_": lambda x: x.scatter_reduce_(
        0, torch.zeros_like(x[:2], dtype=torch.int64), x[1:3].clone(), "amax"
    ),
    "cumsum_": lambda x: x.cumsum_(0),
    "tril_": lambda x: x.tril_(),
    "div_ by a transposed": lambda x: x.div_(torch.arange(1, 25).view(SHAPE[::-1]).mT, rounding_mode="floor"),
    "copysign_": lambda x: x.float().copysign_(torch.arange(24.0).sub(9).view(SHAPE[::-1]).mT),
    "add_": lambda x: x.add_(1),
    "pow_ by a number": lambda x: x.pow_(2),
    "pow_ of a float by a number": lambda x: x.float().pow_(2.0),
    "pow_ by numbers of a tensor": lambda x: x.float().pow_(torch.arange(24).view(SHAPE[::-1]).mT % 3),
    "float_power_ by a number": lambda x: x.double().float_power_(2),
    "mul_ by a transposed": lambda x: x.mul_(torch.arange(24, dtype=torch.int16).view(SHAPE[::-1]).mT),
    "clamp_": lambda x: x.clamp_(3, 11),
    "through a view": lambda x: x.mT.masked_fill_(HIDDEN.mT, 7).mT,
    "twice": lambda x: x.masked_fill_(HIDDEN, 7).tril_(),
}
"""Writes to a tensor that the graph makes; they return it."""


def transposed() -> Tensor:
    return (torch.arange(24) * 7 % 23).to(torch.int16).view(SHAPE[::-1]).mT


def assert_as_eager(function: Callable[..., Any], *inputs: Tensor, dynamic: bool) -> None:
    """Fails unless results have eager's values, strides, and places within what they are views of."""
    eager, found = (tensors_of(each(*inputs)) for each in (function, compiled(function, dynamic=dynamic)))
    for mine, theirs in zip(found, eager, strict=True):
        assert torch.equal(mine, theirs)
        assert meaningful_strides(mine) == meaningful_strides(theirs)
        assert mine.storage_offset() == theirs.storage_offset()


INTO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, y: torch.add(x, 1, out=y),
    "neg": lambda x, y: torch.neg(x, out=y),
    "mul by itself": lambda x, y: torch.mul(x, x, out=y),
    "clamp": lambda x, y: torch.clamp(x, 3, 11, out=y),
    "where": lambda x, y: torch.where(HIDDEN, x, x * 2, out=y),
    "cumsum": lambda x, y: torch.cumsum(x, 0, dtype=torch.int16, out=y),
    "tril": lambda x, y: torch.tril(x, out=y),
    "index_select": lambda x, y: torch.index_select(x, 0, torch.arange(6).flip(0), out=y),
    "cat": lambda x, y: torch.cat([x[2:], x[:2]], out=y),
    "sort": lambda x, y: torch.sort(x, 1, out=(y, torch.zeros(SHAPE[::-1], dtype=torch.int64).mT)),
}
"""Calls that write their result into the second tensor; they return that."""


@pytest.mark.parametrize("is_input", [False, True], ids=["a tensor that is computed", "an input"])
@pytest.mark.parametrize("lies", ["row by row", "transposed"])
@pytest.mark.parametrize("name", INTO)
def test_results_that_are_given_keep_their_layout(name: str, lies: str, *, is_input: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        y = y if is_input else y + 0
        found = INTO[name](x, y)
        return found, y, (line := y.as_strided((24,), (1,))) * 1, line.view(torch.uint8)

    x, y = transposed(), torch.zeros(SHAPE, dtype=torch.int16)
    inputs = (x, y) if lies == "row by row" else (y + x, x.clone())
    assert_as_eager(lambda x, y: function(x, y.clone()) if not is_input else function(x, y), *inputs, dynamic=False)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_in_place_keep_the_layout(name: str, *, dynamic: bool) -> None:
    def function(x: Tensor) -> Any:
        y = IN_PLACE[name](x * 1)
        return y, y.as_strided((12,), (1,), 0) + 1

    assert_as_eager(function, transposed(), dynamic=dynamic)


WRITTEN: dict[str, Function] = {
    "index_put": lambda x: x.index_put((SOME,), x.new_ones(())),
    "index_add": lambda x: x.index_add(0, SOME, x[:3] * 1),
    "index_copy": lambda x: x.index_copy(0, SOME, x[:3] * 1),
    "index_fill": lambda x: x.index_fill(0, SOME, 3),
    "index_reduce": lambda x: x.index_reduce(0, SOME, x[1:4] * 1, "amin"),
    "scatter": lambda x: x.scatter(0, SOME[:, None], 2),
    "scatter_add": lambda x: x.scatter_add(0, SOME[:, None], x[:3] * 1),
    "scatter_reduce": lambda x: x.scatter_reduce(0, SOME[:, None], x[:3] * 1, "amax"),
    "masked_fill": lambda x: x.masked_fill(HIDDEN, 1),
    "masked_scatter": lambda x: x.masked_scatter(HIDDEN, x * 2),
    "put": lambda x: x.put(SOME, x[0, :3] * 1),
    "select_scatter": lambda x: x.select_scatter(x[1] * 2, 0, 2),
    "slice_scatter": lambda x: x.slice_scatter(x[1:3] * 2, 0, 2, 4),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[1] * 2),
}
"""Copies of a tensor, parts of which are other elements."""
APART: dict[str, tuple[int, int]] = {"columns": (1, 10), "rows": (10, 1), "all": (16, 2), "on each other": (0, 1)}
"""Strides of tensors whose storage has other elements between theirs, or fewer."""


@pytest.mark.parametrize("lies", APART)
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_copies_of_tensors_with_gaps_lie_as_eagers(name: str, lies: str) -> None:
    """They have no gaps: what counts positions in their memory finds as many elements as they have."""

    def function(x: Tensor) -> Any:
        y = WRITTEN[name](x)
        return y, y[::2].clone(), y.as_strided((24,), (1,), 0) + 1, y[::2].as_strided((24,), (1,), 0) * 2

    storage = torch.arange(100, dtype=torch.int16) * 7 % 23
    assert_as_eager(function, storage.as_strided(SHAPE, APART[lies]), dynamic=False)


WINDOWS: dict[str, Function] = {
    "index_reduce": lambda x: x.index_reduce(0, SOME, x[1:4], "amin").unfold(0, 2, 1),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x, "amax").unfold(1, 2, 1),
    "index_add": lambda x: x.index_add(0, SOME, x[1:4]).unfold(0, 3, 2)[1:].mT,
    "masked_fill": lambda x: x.masked_fill(x > 9, 1).as_strided((3, 2), (1, 1)),
    "repeated": lambda x: (x * 2).unfold(0, 3, 1).expand(2, 4, 4, 3),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_windows_of_results_lie_on_each_other(name: str, *, dynamic: bool) -> None:
    assert_as_eager(WINDOWS[name], transposed(), dynamic=dynamic)


OF_AN_INPUT: dict[str, Function] = {
    "behind a half": lambda x: x[:, x.shape[1] // 2 :].view(torch.uint16),
    "narrowed": lambda x: x.narrow(1, x.shape[1] // 2, x.shape[1] - x.shape[1] // 2).view(torch.uint16),
    "transposed": lambda x: x.mT[x.shape[1] // 2 :].view(torch.uint16),
    "several": lambda x: (x[1:].diagonal().view(torch.uint16), x[2:].view(torch.uint16), x.mT[2:, 3:]),
    "smaller elements": lambda x: x[:, 2:].view(torch.int8),
    "written before": lambda x: x.add_(1)[:, 2:].view(torch.uint16),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OF_AN_INPUT)
def test_views_of_inputs_in_another_type_begin_where_they_should(name: str, *, dynamic: bool) -> None:
    function = compiled(OF_AN_INPUT[name], dynamic=dynamic)
    for shape in ((6, 8), (8, 12)):
        given, own = (torch.arange(shape[0] * shape[1], dtype=torch.int16).view(shape) for _ in range(2))
        eager, found = tensors_of(OF_AN_INPUT[name](given)), tensors_of(function(own))
        for mine, theirs in zip(found, eager, strict=True):
            assert mine.tolist() == theirs.tolist()
            assert (mine.stride(), mine.storage_offset()) == (theirs.stride(), theirs.storage_offset())
            assert mine.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["or", "and", "xor", "shift"])
def test_operators_on_expanded_tensors_are_no_writes(name: str, *, dynamic: bool) -> None:
    operators: dict[str, Function] = {
        "or": lambda x: x | (x + 1),
        "and": lambda x: x & (x + 1),
        "xor": lambda x: x ^ 3,
        "shift": lambda x: x << (x & 3),
    }
    assert_as_eager(operators[name], torch.arange(5).expand(4, 5), dynamic=dynamic)


ROLLS: dict[str, Function] = {
    "by nothing": lambda x: x.roll(0, 0),
    "by a whole axis": lambda x: x.roll(x.shape[1], 1),
    "as a line": lambda x: x.roll(3),
    "along two axes, one of them by nothing": lambda x: x.roll((1, 0), (0, 1)),
    "along an axis": lambda x: x.roll(1, 1),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ROLLS)
def test_rolled_images_lie_as_eagers(name: str, *, dynamic: bool) -> None:
    images = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert_as_eager(ROLLS[name], images, dynamic=dynamic)


def test_operands_that_are_broadcast_along_axes_of_one_element_are_sorted_as_in_eager_mode() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        row = x.mT[None, ..., None, None, :-1]
        return row == x, row * x, torch.maximum(row, x), torch.where(row > x, row, x), y * y.mT[:1], y - x[:1]

    x, y = torch.arange(1.0, 4).as_strided((3, 1), (1, 1)), torch.arange(1.0, 10).view(3, 1, 3)
    assert_as_eager(function, x, y, dynamic=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gelu_of_large_halves_is_zero_or_the_number_itself(dtype: torch.dtype) -> None:
    x = torch.tensor([-3e38 if dtype is torch.bfloat16 else -6e4, -1e4, -300, -12, -7, 7, 300, 1e4]).to(dtype)
    assert torch.equal(compiled(F.gelu)(x), F.gelu(x))
    assert torch.equal(compiled(lambda x: x * (1 + torch.erf(x)))(x), x * (1 + torch.erf(x)))


INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda x, where: x[where],
    "elements": lambda x, where: x[where, 1],
    "columns": lambda x, where: x[:, where % 4],
    "by two that lie alike": lambda x, where: x[where, where % 4],
    "by two that do not": lambda x, where: x[where, where.t().contiguous().t()[:, :1] % 4],
    "of what is transposed": lambda x, where: x.t()[where % 4],
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", INDEXED)
def test_what_indices_take_lies_as_they_lie(name: str, device: str) -> None:
    """Where it lies decides what a write to a view of it reaches: a reshaped tensor is one, or a copy."""

    def function(x: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        taken = INDEXED[name](x, where)
        written = taken.clone()
        written.reshape(-1)[::3] = 2
        return taken, written

    x = torch.arange(24, device=device).view(SHAPE)
    where = (torch.arange(15, device=device).view(5, 3) % 6).t()
    eager = function(x, where)
    for mine, theirs in zip(compiled(function, dynamic=False)(x, where), eager, strict=True):
        assert torch.equal(mine, theirs)
        assert meaningful_strides(mine) == meaningful_strides(theirs)


NORMALISED = {
    "a channels-last image with a stride of its batch": ((1, 7, 3, 2), (1, 1, 14, 7)),
    "a slice of such an image": ((1, 7, 3, 2), (99, 1, 28, 7)),
    "images of one element, channels-last": ((2, 7, 1, 1), (7, 1, 7, 7)),
    "one of them": ((1, 7, 1, 1), (1, 1, 1, 1)),
    "one channel": ((2, 1, 3, 2), (6, 1, 2, 1)),
    "one channel of a channels-last image": ((1, 1, 3, 2), (1, 1, 2, 1)),
    "a channels-last volume": ((1, 7, 2, 3, 2), (1, 1, 42, 14, 7)),
    "volumes of one element": ((2, 7, 1, 1, 1), (7, 1, 7, 7, 7)),
    "transposed": ((2, 7, 3, 2), (1, 2, 14, 42)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NORMALISED)
def test_normalised_images_lie_as_eagers(name: str, *, dynamic: bool) -> None:
    if dynamic and name.startswith("a slice"):
        pytest.skip("which of a row and the stride behind it is longer is not known of symbolic sizes (torch 2.14)")
    shape, strides = NORMALISED[name]
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    images = torch.arange(float(reach)).as_strided(shape, strides)
    mean, variance = torch.linspace(0, 1, shape[1]), torch.linspace(1, 2, shape[1])

    def norm(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, m, v)

    eager, mine = (each(images, mean, variance) for each in (norm, compiled(norm, dynamic=dynamic)))
    torch.testing.assert_close(mine, eager)
    assert meaningful_strides(mine) == meaningful_strides(eager)
