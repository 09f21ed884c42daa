"""Sorting in tiles: the network and what stands in for it in the interpreter, against torch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ferrite_runtime import fmath, load_program
from ferrite_runtime.interpreter import runner
from runtime_kernels import grid_axis, layout, program, reduction_axis, spec, tensor, tensor_input

torch = pytest.importorskip("torch")

TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
}
UNSIGNED = {"u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64}
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, -math.nan, 1.0, -0.0, 0.0]


@pytest.fixture(params=["network", "stand-in"])
def _sorter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "network":
        monkeypatch.delitem(runner.STAND_INS, "sort_stable")
        monkeypatch.delitem(runner.STAND_INS, "sort_first")
    for function in (fmath.sort_stable, fmath.sort_first):
        monkeypatch.setattr(function, runner._REWRITTEN, None, raising=False)


def sort_kernel(
    dtype: str, rows: int, size: int, *, axis: int = 1, descending: bool = False, kept: int | None = None
) -> dict[str, Any]:
    """A kernel that sorts the rows of a matrix in a tile that has them along ``axis``, and keeps some of each."""
    call = "sort_stable(" if kept is None else "sort_first("
    expand = "[None, :]" if axis else "[:, None]"
    wanted, lanes = (size, "r") if kept is None else (kept, f"tl.arange(0, {kept}){expand}")
    given = "" if kept is None else f" {kept},"
    block = 1 << (size - 1).bit_length()
    x, r = ("[:, None]", "[None, :]") if axis == 1 else ("[None, :]", "[:, None]")
    body = f"""@triton.jit
def sort(x_ptr, y_ptr, i_ptr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    x = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)){x}
    r = tl.arange(0, RBLOCK){r}
    mask = (x < {rows}) & (r < {size})
    row = tl.load(x_ptr + x * {size} + r, mask)
    values, places = fmath.{call}row,{given} {size}, {axis}, {descending})
    to = {lanes}
    stored = (x < {rows}) & (to < {wanted})
    tl.store(y_ptr + x * {wanted} + to, values, stored)
    tl.store(i_ptr + x * {wanted} + to, places, stored)
"""
    params = [tensor("x_ptr", dtype), tensor("y_ptr", dtype, "write"), tensor("i_ptr", "i32", "write")]
    axes = [grid_axis("x", rows), reduction_axis(size, max_block=block)]
    kernel = spec("sort", body, params, axes, form="sort", blocks={"RBLOCK": block})
    shape = [rows, size]
    steps = [
        {"do": "alloc", "name": "y", **layout([rows, wanted], dtype)},
        {"do": "alloc", "name": "i", **layout([rows, wanted], "i32")},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "y", "i"]},
    ]
    return program([tensor_input("x", shape, dtype)], [kernel], steps, [{"value": "y"}, {"value": "i"}])


def sample(dtype: str, rows: int, size: int) -> torch.Tensor:
    """Numbers with many ties and, among floats, everything that is special about order."""
    torch.manual_seed(size)
    values = torch.randint(-9, 9, (rows, size)).to(torch.float64)
    if TYPES[dtype].is_floating_point:
        values[:, : len(SPECIAL)] = torch.tensor(SPECIAL[:size], dtype=torch.float64)
        values = values[:, torch.randperm(size)]
    return values.to(TYPES[dtype])


def assert_identical(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    if wanted.is_floating_point():
        assert torch.equal(torch.signbit(found) & (found == 0), torch.signbit(wanted) & (wanted == 0))


@pytest.mark.usefixtures("_sorter")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_order_is_that_of_torch(dtype: str, *, descending: bool) -> None:
    x = sample(dtype, 3, 13)
    values, places = load_program(sort_kernel(dtype, 3, 13, descending=descending))(x)
    wanted = x.sort(dim=1, stable=True, descending=descending)
    assert_identical(values, wanted.values)
    assert torch.equal(places.long(), wanted.indices)


@pytest.mark.usefixtures("_sorter")
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_large_unsigned_numbers_are_large(dtype: str) -> None:
    bits = torch.iinfo(UNSIGNED[dtype]).bits
    numbers = [[(1 << bits) - 1, 0, 1 << (bits - 1), 5, (1 << (bits - 1)) - 1]]
    values, places = load_program(sort_kernel(dtype, 1, 5))(torch.tensor(numbers, dtype=UNSIGNED[dtype]))
    assert values.tolist() == [sorted(numbers[0])]
    assert places.tolist() == [[1, 3, 4, 2, 0]]


@pytest.mark.usefixtures("_sorter")
@pytest.mark.parametrize("dtype", ["f32", "f64", "i16"])
@pytest.mark.parametrize("size", [2, 9, 64, 100])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_length_and_layout(dtype: str, size: int, axis: int) -> None:
    x = sample(dtype, 5, size)
    values, places = load_program(sort_kernel(dtype, 5, size, axis=axis))(x)
    wanted = x.sort(dim=1, stable=True)
    assert_identical(values, wanted.values)
    assert torch.equal(places.long(), wanted.indices)


@pytest.mark.parametrize("dtype", ["i32", "i64", "i8"])
@pytest.mark.usefixtures("_sorter")
def test_the_largest_number_comes_before_what_pads_the_row(dtype: str) -> None:
    top, low = torch.iinfo(TYPES[dtype]).max, torch.iinfo(TYPES[dtype]).min
    x = torch.tensor([[top, low, top, 0, low]], dtype=TYPES[dtype])
    for descending in (False, True):
        values, places = load_program(sort_kernel(dtype, 1, 5, descending=descending))(x)
        wanted = x.sort(dim=1, stable=True, descending=descending)
        assert torch.equal(values, wanted.values)
        assert torch.equal(places.long(), wanted.indices)


@pytest.mark.usefixtures("_sorter")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kept", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_only_the_first_of_each_row(dtype: str, kept: int, axis: int) -> None:
    x = sample(dtype, 5, 32)
    values, places = load_program(sort_kernel(dtype, 5, 32, axis=axis, descending=True, kept=kept))(x)
    wanted = x.sort(dim=1, stable=True, descending=True)
    assert_identical(values, wanted.values[:, :kept])
    assert torch.equal(places.long(), wanted.indices[:, :kept])
