"""Indices: transposes, broadcasts, merged and split dims, guarded and indirect loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Run = Callable[..., tuple[Any, ...]]


def arange(*shape: int) -> torch.Tensor:
    return torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape)


@pytest.mark.parametrize(("rows", "columns"), [(70, 130), (64, 128), (1, 9), (256, 3)])
@pytest.mark.parametrize("tiled", [False, True])
def test_transpose(run: Run, rows: int, columns: int, *, tiled: bool) -> None:
    text = f"""graph @f(x: f32[{columns}, {rows}], b: f32[{columns}]) -> (y) on cpu {{
  y: f32[{rows}, {columns}] = loop [d0 < {rows}, d1 < {columns}] add(x[d1, d0], b[d1])
}}"""
    x, b = arange(columns, rows), torch.randn(columns)
    (y,) = run(text, x, b, placed={"d0": "y"} if tiled else {})
    assert torch.equal(y, x.T + b)


def test_three_grid_axes(run: Run) -> None:
    text = (
        "graph @f(x: f32[5, 7, 33]) -> (y) on cpu {\n"
        "  y: f32[33, 7, 5] = loop [d0 < 33, d1 < 7, d2 < 5] x[d2, d1, d0]\n}"
    )
    x = arange(5, 7, 33)
    assert torch.equal(run(text, x, placed={"d0": "z", "d1": "y"})[0], x.permute(2, 1, 0))


def test_dims_of_one_axis_are_recovered(run: Run) -> None:
    text = (
        "graph @f(x: f32[3, 5, 7], b: f32[5]) -> (y) on cpu {\n"
        "  y: f32[3, 5, 7] = loop [d0 < 3, d1 < 5, d2 < 7] add(x[d0, d1, d2], b[d1])\n}"
    )
    x, b = arange(3, 5, 7), torch.randn(5)
    assert torch.equal(run(text, x, b)[0], x + b[:, None])


def test_strided_input(run: Run) -> None:
    text = "graph @f(x: f32[6, 4]{1, 6}) -> (y) on cpu {\n  y: f32[6, 4] = loop [d0 < 6, d1 < 4] x[d0, d1]\n}"
    x = arange(4, 6).T
    assert torch.equal(run(text, x)[0], x)


def test_division_of_negative_indices(run: Run) -> None:
    text = (
        "graph @f(x: f32[9]) -> (y) on cpu {\n"
        "  y: i64[9] = loop [d0 < 9] index.i64((d0 - 5) // 3 + 10*((d0 - 5) % 3))\n}"
    )
    n = torch.arange(9) - 5
    assert torch.equal(run(text, torch.zeros(9))[0], n.div(3, rounding_mode="floor") + 10 * n.remainder(3))


def test_concatenation(run: Run) -> None:
    text = """graph @f(a: f32[3, 5], b: f32[3, 4]) -> (y) on cpu {
  y: f32[3, 9] = loop [d0 < 3, d1 < 9]
    masked(lt(index.i64(d1), i64(5)), a[d0, d1], masked(ge(index.i64(d1), i64(5)), b[d0, d1 - 5], f32(0.0)))
}"""
    a, b = arange(3, 5), -arange(3, 4)
    assert torch.equal(run(text, a, b)[0], torch.cat([a, b], 1))


@pytest.mark.parametrize("fill", [0.0, -1.5, float("-inf")])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_padding(run: Run, dtype: str, fill: float) -> None:
    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    text = f"""graph @f(a: {dtype}[5]) -> (y, z) on cpu {{
  y: {dtype}[9] = loop [d0 < 9]
    masked(bitand(ge(index.i64(d0), i64(2)), lt(index.i64(d0), i64(7))), a[d0 - 2], {dtype}({fill}))
  z: f32[9] = loop [d0 < 9]
    masked(bitand(ge(index.i64(d0), i64(2)), lt(index.i64(d0), i64(7))), cast.f32(a[d0 - 2]), f32({fill}))
}}"""
    a = torch.randn(5).to(kind)
    expected = torch.nn.functional.pad(a, (2, 2), value=fill)
    y, z = run(text, a)
    assert torch.equal(y, expected)
    assert torch.equal(z, expected.float())


def test_guards_nest(run: Run) -> None:
    text = """graph @f(a: f32[6], i: i64[8]) -> (y) on cpu {
  y: f32[8] = loop [d0 < 8]
    masked(lt(index.i64(d0), i64(6)), add(masked(gt(a[d0], f32(2.0)), a[d0 - 3], f32(-1.0)), a[d0]), f32(100.0))
}"""
    a = arange(6)
    inner = torch.tensor([-1.0, -1.0, -1.0, 0.0, 1.0, 2.0])
    assert run(text, a, torch.zeros(8, dtype=torch.int64))[0].tolist() == [*(inner + a).tolist(), 100.0, 100.0]


@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_gather(run: Run, dtype: str) -> None:
    kind = {"i64": torch.int64, "i32": torch.int32}[dtype]
    text = (
        f"graph @f(t: f32[10, 6], i: {dtype}[7]) -> (y) on cpu {{\n"
        f"  y: f32[7, 6] = loop [d0 < 7, d1 < 6] t[wrap(i[d0], 10), d1]\n}}"
    )
    table, index = arange(10, 6), torch.tensor([0, 9, -1, 3, -10, 5, 5], dtype=kind)
    assert torch.equal(run(text, table, index)[0], table[index.long()])


def test_guarded_gather(run: Run) -> None:
    text = """graph @f(t: f32[10], i: i64[4]) -> (y) on cpu {
  y: f32[6] = loop [d0 < 6] masked(lt(index.i64(d0), i64(4)), t[at(i[d0], 10)], f32(7.0))
}"""
    table, index = arange(10), torch.tensor([3, 1, 9, 0])
    assert run(text, table, index)[0].tolist() == [3.0, 1.0, 9.0, 0.0, 7.0, 7.0]


def test_same_index_under_two_guards(run: Run) -> None:
    text = """graph @f(t: f32[4], i: i64[4]) -> (y) on cpu {
  y: f32[8] = loop [d0 < 8]
    add(
      masked(lt(index.i64(d0), i64(4)), t[at(i[d0], 4)], f32(7.0)),
      masked(lt(index.i64(d0), i64(2)), t[at(i[d0], 4)], f32(1.0))
    )
}"""
    table, index = arange(4), torch.tensor([3, 1, 2, 0])
    assert run(text, table, index)[0].tolist() == [6.0, 2.0, 3.0, 1.0, 8.0, 8.0, 8.0, 8.0]


def test_scalars_and_single_elements(run: Run) -> None:
    text = (
        "graph @f(x: f32[], v: f32[1]) -> (y, z) on cpu {\n"
        "  y: f32[] = loop [] exp(x[])\n  z: f32[1] = loop [d0 < 1] add(v[d0], x[])\n}"
    )
    x, v = torch.tensor(0.5), torch.tensor([2.0])
    y, z = run(text, x, v)
    torch.testing.assert_close(y, x.exp())
    torch.testing.assert_close(z, v + x)


def test_neighbours_of_the_buffers_stay_untouched(run: Run) -> None:
    """A result written through a narrow view leaves everything around it alone."""
    text = """graph @f(x: f32[5, 33], y: f32[5, 33]) -> (z) mutates (y: z) on cpu {
  z: f32[5, 33] = update set y [d0 < 5, d1 < 33] at [d0, d1] mul(x[d0, d1], f32(2.0))
}"""
    for form, placed in (("pointwise", {}), ("pointwise", {"d0": "y"})):
        memory = torch.full((1000,), -7.0)
        target = memory[100 : 100 + 165].view(5, 33)
        x = arange(5, 33)
        run(text, x, target, form=form, placed=placed)
        assert torch.equal(target, x * 2)
        assert (memory[:100] == -7).all()
        assert (memory[265:] == -7).all()
