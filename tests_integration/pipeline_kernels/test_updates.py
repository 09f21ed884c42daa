"""Updates in place: stores, atomics, conditions, and what has no instruction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_triton import UnsupportedUpdate

Run = Callable[..., tuple[Any, ...]]
KINDS = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def scatter_text(mode: str, dtype: str) -> str:
    return f"""graph @f(t: {dtype}[10], i: i64[40], x: {dtype}[40]) -> () mutates (t: u) on cpu {{
  u: {dtype}[10] = update {mode} t [d0 < 40] at [wrap(i[d0], 10)] x[d0]
}}"""


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i64"])
def test_scatter_add(run: Run, dtype: str) -> None:
    torch.manual_seed(0)
    target, index = torch.zeros(10).to(KINDS[dtype]), torch.randint(-10, 10, (40,))
    x = torch.randint(-8, 9, (40,)).to(KINDS[dtype])
    expected = target.index_put((index,), x, accumulate=True)
    run(scatter_text("add", dtype), target, index, x)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_scatter_of_extremes(run: Run, mode: str, dtype: str) -> None:
    torch.manual_seed(1)
    target, index = torch.zeros(10).to(KINDS[dtype]), torch.randint(0, 10, (40,))
    x = (torch.randn(40) * 5).to(KINDS[dtype])
    expected = target.scatter_reduce(0, index, x, "a" + mode)
    run(scatter_text(mode, dtype), target, index, x)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_scatter_of_factors(run: Run, dtype: str) -> None:
    torch.manual_seed(2)
    target, index = torch.ones(10).to(KINDS[dtype]), torch.randint(0, 10, (40,))
    x = torch.tensor([-2, -1, 1, 2]).to(KINDS[dtype])[torch.randint(0, 4, (40,))]
    expected = target.scatter_reduce(0, index, x, "prod")
    run(scatter_text("mul", dtype), target, index, x)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_nan_wins_whatever_its_sign_and_wherever_it_is(run: Run, mode: str, dtype: str) -> None:
    index = torch.arange(10).repeat(4)
    x = torch.randn(40)
    x[3], x[15] = math.nan, -math.nan
    target = torch.zeros(10)
    target[7], target[8], target[9] = math.nan, -math.nan, -math.inf
    assert torch.signbit(target[8])
    target, x = target.to(KINDS[dtype]), x.to(KINDS[dtype])
    expected = target.scatter_reduce(0, index, x, "a" + mode)
    run(scatter_text(mode, dtype), target, index, x)
    torch.testing.assert_close(target, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("mode", "start", "wanted"), [("mul", 3.0, 3.0 * 2.0**7), ("max", 1.0, 2.0)])
def test_one_number_for_all_points(run: Run, mode: str, start: float, wanted: float) -> None:
    text = f"""graph @f(t: f32[3]) -> () mutates (t: u) on cpu {{
  u: f32[3] = update {mode} t [d0 < 7] at [1] f32(2.0)
}}"""
    target = torch.full((3,), start)
    run(text, target)
    assert target.tolist() == [start, wanted, start]


@pytest.mark.parametrize(("mode", "dtype"), [("mul", "bf16"), ("add", "i8"), ("max", "bf16")])
def test_missing_atomics_are_refused(emit: Callable[..., Any], mode: str, dtype: str) -> None:
    with pytest.raises(UnsupportedUpdate, match=rf"no atomic {mode} on {dtype}.*extern call"):
        emit(scatter_text(mode, dtype))


@pytest.mark.parametrize("mode", ["add", "mul", "max", "min", "set"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
def test_points_that_cannot_meet_need_no_atomics(run: Run, emit: Callable[..., Any], mode: str, dtype: str) -> None:
    text = f"""graph @f(t: {dtype}[8, 9], x: {dtype}[4, 9]) -> () mutates (t: u) on cpu {{
  u: {dtype}[8, 9] = update {mode} t [d0 < 4, d1 < 9] at [2*d0 + 1, d1] x[d0, d1]
}}"""
    torch.manual_seed(2)
    target, x = (torch.randn(8, 9) * 4).to(KINDS[dtype]), (torch.randn(4, 9) * 4).to(KINDS[dtype])
    assert "atomic" not in emit(text, placed={"d0": "y"}).kernels[0].source
    meaning = {"add": torch.add, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum, "set": lambda _, b: b}[
        mode
    ]
    expected = target.clone()
    expected[1::2] = meaning(expected[1::2], x)
    run(text, target, x, placed={"d0": "y"})
    assert torch.equal(target, expected)


def test_condition(run: Run) -> None:
    text = """graph @f(t: f32[6], x: f32[6]) -> () mutates (t: u) on cpu {
  u: f32[6] = update set t [d0 < 6] at [d0] x[d0] if gt(x[d0], f32(0.0))
}"""
    target, x = torch.arange(6.0), torch.tensor([-1.0, 2.0, -3.0, 4.0, -5.0, 6.0])
    run(text, target, x)
    assert target.tolist() == [0.0, 2.0, 2.0, 4.0, 4.0, 6.0]


def test_one_place_for_all_points(run: Run) -> None:
    text = """graph @f(t: f32[3], x: f32[100]) -> () mutates (t: u) on cpu {
  u: f32[3] = update add t [d0 < 100] at [1] x[d0]
}"""
    target, x = torch.zeros(3), torch.arange(100.0)
    run(text, target, x)
    assert target.tolist() == [0.0, x.sum().item(), 0.0]


@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_reduction_added_in_place(run: Run, form: str) -> None:
    text = """graph @f(t: f32[4], i: i64[4], x: f32[4, 70]) -> (s) mutates (t: u) on cpu {
  s: f32[4] = reduce sum [d0 < 4 | r0 < 70] x[d0, r0]
  u: f32[4] = update add t [d0 < 4] at [wrap(i[d0], 4)] s[d0]
}"""
    target, index, x = torch.zeros(4), torch.tensor([1, 1, 3, 0]), torch.randn(4, 70)
    (sums,) = run(text, target, index, x, form=form)
    torch.testing.assert_close(sums, x.sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(target, torch.zeros(4).index_add(0, index, x.sum(1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_update_along_the_reduction_axis(run: Run, form: str) -> None:
    text = """graph @f(t: f32[4, 300], x: f32[4, 300]) -> () mutates (t: u) on cpu {
  m: f32[4] = reduce max [d0 < 4 | r0 < 300] x[d0, r0]
  u: f32[4, 300] = update set t [d0 < 4, r0 < 300] at [d0, r0] sub(x[d0, r0], m[d0])
}"""
    target, x = torch.zeros(4, 300), torch.randn(4, 300)
    run(text, target, x, form=form)
    assert torch.equal(target, x - x.amax(1, keepdim=True))


@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_old_contents_are_read_before_they_are_overwritten(run: Run, form: str) -> None:
    """A value of the old contents that is needed after the update, in a later pass even, is not one of the new."""
    text = """graph @f(t: f32[4, 300]) -> (y) mutates (t: u) on cpu {
  old: f32[4, 300] = loop [d0 < 4, r0 < 300] mul(t[d0, r0], f32(2.0))
  m: f32[4] = reduce max [d0 < 4 | r0 < 300] t[d0, r0]
  u: f32[4, 300] = update set t [d0 < 4, r0 < 300] at [d0, r0] m[d0]
  s: f32[4] = reduce sum [d0 < 4 | r0 < 300] sub(old[d0, r0], m[d0])
  y: f32[4, 300] = loop [d0 < 4, r0 < 300] add(old[d0, r0], s[d0])
}"""
    x = torch.randn(4, 300)
    target, top = x.clone(), x.amax(1, keepdim=True)
    (y,) = run(text, target, form=form)
    assert torch.equal(target, top.expand(4, 300))
    torch.testing.assert_close(y, 2 * x + (2 * x - top).sum(1, keepdim=True), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_new_contents_are_reduced_in_a_later_pass(run: Run, form: str) -> None:
    text = """graph @f(t: f32[4, 300], x: f32[4, 300]) -> (s) mutates (t: u) on cpu {
  u: f32[4, 300] = update set t [d0 < 4, r0 < 300] at [d0, r0] mul(x[d0, r0], f32(2.0))
  m: f32[4] = reduce max [d0 < 4 | r0 < 300] x[d0, r0]
  s: f32[4] = reduce sum [d0 < 4 | r0 < 300] sub(u[d0, r0], m[d0])
}"""
    target, x = torch.zeros(4, 300), torch.randn(4, 300)
    (sums,) = run(text, target, x, form=form)
    assert torch.equal(target, x * 2)
    torch.testing.assert_close(sums, (x * 2 - x.amax(1, keepdim=True)).sum(1), rtol=1e-4, atol=1e-3)


def test_new_contents_in_the_same_kernel(run: Run) -> None:
    text = """graph @f(t: f32[40], x: f32[40]) -> (y) mutates (t: u) on cpu {
  u: f32[40] = update add t [d0 < 40] at [d0] x[d0]
  y: f32[40] = loop [d0 < 40] mul(u[d0], f32(3.0))
}"""
    target, x = torch.randn(40), torch.randn(40)
    expected = target + x
    (y,) = run(text, target, x)
    assert torch.equal(target, expected)
    assert torch.equal(y, expected * 3)
