"""Reductions of every combine, persistent and looped, along contiguous and strided axes, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Run = Callable[..., tuple[Any, ...]]
Emit = Callable[..., Any]
SIZES = (1, 7, 64, 1000, 5000)
FORMS = ("persistent", "looped")
ROWS = 3
KINDS = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
    "bf16": torch.bfloat16,
}


def xor(values: torch.Tensor) -> torch.Tensor:
    result = values[:, 0].clone()
    for column in values.T[1:]:
        result ^= column
    return result


COMBINES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, ...]]] = {
    "sum": (lambda x: x.sum(1), ("f32", "f64", "i64")),
    "prod": (lambda x: x.prod(1), ("f32", "i64")),
    "max": (lambda x: x.amax(1), ("f32", "bf16", "i64", "i32", "bool")),
    "min": (lambda x: x.amin(1), ("f32", "bf16", "i64", "i32", "bool")),
    "any": (lambda x: x.any(1), ("bool",)),
    "all": (lambda x: x.all(1), ("bool",)),
    "xor": (xor, ("i64",)),
    "logaddexp": (lambda x: x.logsumexp(1), ("f32", "f64")),
}


def sample(dtype: str, *shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype == "bool":
        return torch.rand(shape) < 0.5
    if dtype in ("i32", "i64"):
        return torch.randint(-9, 10, shape).to(KINDS[dtype])
    return torch.randn(shape).to(KINDS[dtype])


def reduction_text(combine: str, dtype: str, size: int, *, outer: bool = False) -> str:
    shape, index = (f"[{size}, {ROWS}]", "[r0, d0]") if outer else (f"[{ROWS}, {size}]", "[d0, r0]")
    return (
        f"graph @f(x: {dtype}{shape}) -> (y) on cpu {{\n"
        f"  y: {dtype}[{ROWS}] = reduce {combine} [d0 < {ROWS} | r0 < {size}] x{index}\n}}"
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("combine", "dtype"), [(name, dtype) for name, (_, dtypes) in COMBINES.items() for dtype in dtypes]
)
def test_reduction(run: Run, combine: str, dtype: str, form: str, size: int) -> None:
    x = sample(dtype, ROWS, size)
    if combine == "prod" and dtype == "f32":
        x = 1 + x * 0.01
    (found,) = run(reduction_text(combine, dtype, size), x, form=form)
    expected = COMBINES[combine][0](x)
    tolerance = {"f32": 2e-5, "f64": 1e-12}.get(dtype, 0.0)
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [7, 100])
@pytest.mark.parametrize("combine", ["sum", "max"])
def test_reduction_along_the_slow_axis(run: Run, combine: str, form: str, size: int) -> None:
    x = sample("f32", size, ROWS)
    (found,) = run(reduction_text(combine, "f32", size, outer=True), x, form=form)
    torch.testing.assert_close(found, COMBINES[combine][0](x.T), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_reduction_of_everything(run: Run, form: str) -> None:
    x = sample("f32", 33, 21)
    text = "graph @f(x: f32[33, 21]) -> (y) on cpu {\n  y: f32[] = reduce sum [| r0 < 33, r1 < 21] x[r0, r1]\n}"
    torch.testing.assert_close(run(text, x, form=form)[0], x.sum())


@pytest.mark.parametrize("form", FORMS)
def test_reduction_with_two_grid_axes(run: Run, form: str) -> None:
    x = sample("f32", 4, 50, 6)
    text = (
        "graph @f(x: f32[4, 50, 6]) -> (y) on cpu {\n"
        "  y: f32[4, 6] = reduce sum [d0 < 4, d1 < 6 | r0 < 50] x[d0, r0, d1]\n}"
    )
    for placed in ({}, {"d0": "y"}):
        torch.testing.assert_close(run(text, x, form=form, placed=placed)[0], x.sum(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("combine", ["max", "min"])
def test_nan_wins(run: Run, combine: str, form: str) -> None:
    x = sample("f32", ROWS, 1000)
    x[1, 777] = float("nan")
    x[2] = float("-inf") if combine == "max" else float("inf")
    (found,) = run(reduction_text(combine, "f32", 1000), x, form=form)
    torch.testing.assert_close(found, COMBINES[combine][0](x), equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["f32", "i64", "bool", "bf16"])
@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_argument_of_the_best(run: Run, combine: str, dtype: str, form: str, size: int) -> None:
    x = (sample("f32", ROWS, size) * 2).round().to(KINDS[dtype]) if dtype != "bool" else sample("bool", ROWS, size)
    if size > 40 and dtype == "f32":
        x[1, [30, 40]] = float("nan")
        x[2] = float("-inf") if combine == "argmax" else float("inf")
    text = f"""graph @f(x: {dtype}[{ROWS}, {size}]) -> (v, i) on cpu {{
  v: {dtype}[{ROWS}], i: i64[{ROWS}] = reduce {combine} [d0 < {ROWS} | r0 < {size}] (x[d0, r0], index.i64(r0))
}}"""
    value, index = run(text, x, form=form)
    plain = x.to(torch.int8) if dtype == "bool" else x
    expected = getattr(plain, combine)(1)
    # torch promises no order among ties; ours is the lowest index.
    best = plain.gather(1, expected[:, None])
    hits = (plain == best) | (plain.isnan() & best.isnan()) if plain.is_floating_point() else plain == best
    assert torch.equal(index, hits.to(torch.int8).argmax(1))
    torch.testing.assert_close(value, x.gather(1, index[:, None])[:, 0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_welford(run: Run, form: str, size: int, shift: float) -> None:
    x = sample("f32", ROWS, size) + shift
    text = f"""graph @f(x: f32[{ROWS}, {size}]) -> (m, s, w) on cpu {{
  m: f32[{ROWS}], s: f32[{ROWS}], w: f32[{ROWS}] = reduce welford [d0 < {ROWS} | r0 < {size}] x[d0, r0]
}}"""
    mean, m2, weight = run(text, x, form=form)
    exact = x.double()
    torch.testing.assert_close(mean, exact.mean(1).float(), rtol=1e-6, atol=1e-6)
    expected = ((exact - exact.mean(1, keepdim=True)) ** 2).sum(1).float()
    torch.testing.assert_close(m2, expected, rtol=1e-4, atol=1e-4 * size if shift else 1e-4)
    assert weight.tolist() == [size] * ROWS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_welford_of_states(run: Run, form: str, size: int) -> None:
    mean, m2 = sample("f32", ROWS, size), sample("f32", ROWS, size).abs()
    weight = torch.arange(ROWS * size, dtype=torch.float32).reshape(ROWS, size) % 4
    weight[2] = 0
    names = f"m: f32[{ROWS}, {size}], s: f32[{ROWS}, {size}], w: f32[{ROWS}, {size}]"
    text = f"""graph @f({names}) -> (a, b, c) on cpu {{
  a: f32[{ROWS}], b: f32[{ROWS}], c: f32[{ROWS}] = reduce welford [d0 < {ROWS} | r0 < {size}]
    (m[d0, r0], s[d0, r0], w[d0, r0])
}}"""
    found = run(text, mean, m2, weight, form=form)
    total = weight.sum(1)
    middle = (mean * weight).sum(1) / total.clamp(min=1)
    squares = (m2 + weight * (mean - middle[:, None]) ** 2).sum(1)
    assert torch.equal(found[2], total)
    if size > 1:
        torch.testing.assert_close(found[0], middle, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], squares, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_online_softmax(run: Run, form: str, size: int) -> None:
    x = sample("f32", ROWS, size) * 20
    x[0, 0] = float("-inf") if size > 1 else 0.0
    text = f"""graph @f(x: f32[{ROWS}, {size}]) -> (m, s) on cpu {{
  m: f32[{ROWS}], s: f32[{ROWS}] = reduce online_softmax [d0 < {ROWS} | r0 < {size}] x[d0, r0]
}}"""
    top, mass = run(text, x, form=form)
    assert torch.equal(top, x.amax(1))
    torch.testing.assert_close(mass, (x - x.amax(1, keepdim=True)).exp().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((3, 4097), 1), ((3, 4098), 1), ((3, 4100), 1), ((300, 3), 0)])
def test_online_softmax_of_what_a_thread_holds(run: Run, shape: tuple[int, int], axis: int) -> None:
    """Rows that begin at multiples of 1, 2 and 4 elements, and columns that are read twice."""
    x = sample("f32", *shape) * 20
    x.select(axis, 1)[0], x.select(axis, 7)[1] = float("-inf"), float("inf")
    x.select(1 - axis, 2)[100:140] = float("-inf")
    rows, size, place = shape[1 - axis], shape[axis], "r0, d0" if axis == 0 else "d0, r0"
    bounds = {"d0": rows, "r0": size}
    dims = ", ".join(f"{name} < {bounds[name]}" for name in place.split(", "))
    text = f"""graph @f(x: f32[{shape[0]}, {shape[1]}]) -> (m, s, y) on cpu {{
  m: f32[{rows}], s: f32[{rows}] = reduce online_softmax [d0 < {rows} | r0 < {size}] x[{place}]
  y: f32[{shape[0]}, {shape[1]}] = loop [{dims}] sub(x[{place}], m[d0])
}}"""
    top, mass, distance = run(text, x, form="looped")
    assert torch.equal(top, x.amax(axis))
    expected = (x - x.amax(axis, keepdim=True)).exp().sum(axis)
    finite = top.isfinite()
    torch.testing.assert_close(mass[finite], expected[finite], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(distance, x - x.amax(axis, keepdim=True), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(300, 3), (5000, 40), (64, 64), (77, 131)])
def test_what_is_asked_for_ahead_are_elements_of_the_columns(
    monkeypatch: pytest.MonkeyPatch, run: Run, rows: int, columns: int, dtype: str
) -> None:
    """A GPU may not be asked for what does not exist, and it is no use to ask for what a program will not read."""
    if not run.is_interpreter:  # type: ignore[attr-defined]
        pytest.skip("addresses are seen in the interpreter")
    from ferrite_runtime import fmath

    asked: list[Any] = []

    def note(pointer: Any) -> None:
        asked.append(pointer.handle.data.copy())

    monkeypatch.setattr(fmath.prefetch, "_ferrite_interpreted", note, raising=False)
    x = sample(dtype, rows, columns)
    text = f"""graph @f(x: {dtype}[{rows}, {columns}]) -> (m, s, y) on cpu {{
  m: f32[{columns}], s: f32[{columns}] = reduce online_softmax [d0 < {columns} | r0 < {rows}] cast.f32(x[r0, d0])
  y: f32[{rows}, {columns}] = loop [r0 < {rows}, d0 < {columns}] sub(cast.f32(x[r0, d0]), m[d0])
}}"""
    run(text, x, form="looped")
    assert asked, "nothing was asked for ahead"
    size = x.element_size()
    places = {(int(address) - x.data_ptr()) // size for addresses in asked for address in addresses.flat}
    assert min(places) >= 0
    assert max(places) < x.numel()
    later = {place // columns for place in places}
    assert rows - 1 in later, "the last rows are asked for by whoever is at the rows before them"
    sectors = -(-columns * size // 32)
    assert len(places) <= len(later) * max(sectors, 1) + len(later)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", ["max", "sum", "online_softmax"])
def test_padded_rows_are_read_in_whole_vectors(run: Run, emit: Emit, reduction: str, form: str) -> None:
    """What lies behind a row's end is read where memory has it, and never counts."""
    x = sample("f32", 5, 1064)
    x[:, 1049:] = float("nan")
    found = "(m, s)" if reduction == "online_softmax" else "(m)"
    results = ", ".join(f"{name}: f32[5]" for name in found[1:-1].split(", "))
    text = f"""graph @f(x: f32[5, {{width}}]) -> {found} on cpu {{{{
  {results} = reduce {reduction} [d0 < 5 | r0 < 1049] x[d0, r0]
}}}}"""
    padded, exact = text.format(width=1064), text.format(width=1049)
    assert "r < 1052)" in emit(padded, form=form).kernels[0].source
    assert "r < 1052)" not in emit(exact, form=form).kernels[0].source
    for mine, theirs in zip(run(padded, x, form=form), run(exact, x[:, :1049].contiguous(), form=form), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)  # other threads hold other points


@pytest.mark.parametrize("form", FORMS)
def test_online_softmax_of_states(run: Run, form: str) -> None:
    top, mass = sample("f32", ROWS, 70) * 5, sample("f32", ROWS, 70).abs()
    top[0, :3], mass[0, :3] = float("-inf"), 0.0
    text = f"""graph @f(m: f32[{ROWS}, 70], s: f32[{ROWS}, 70]) -> (a, b) on cpu {{
  a: f32[{ROWS}], b: f32[{ROWS}] = reduce online_softmax [d0 < {ROWS} | r0 < 70] (m[d0, r0], s[d0, r0])
}}"""
    found = run(text, top, mass, form=form)
    torch.testing.assert_close(found[0], top.amax(1))
    torch.testing.assert_close(found[1], (mass * (top - top.amax(1, keepdim=True)).exp()).sum(1))


SOFTMAX = """graph @softmax(x: bf16[{n}, {m}]) -> (y) on cpu {{
  m: f32[{n}]        = reduce max [d0 < {n} | r0 < {m}] cast.f32(x[d0, r0])
  e: f32[{n}, {m}]   = loop [d0 < {n}, r0 < {m}] exp(sub(cast.f32(x[d0, r0]), m[d0]))
  s: f32[{n}]        = reduce sum [d0 < {n} | r0 < {m}] e[d0, r0]
  y: bf16[{n}, {m}]  = loop [d0 < {n}, r0 < {m}] cast.bf16(div(e[d0, r0], s[d0]))
}}"""

LAYER_NORM = """graph @layer_norm(x: bf16[{n}, {m}], w: f32[{m}], b: f32[{m}]) -> (y, mean) on cpu {{
  mean: f32[{n}], m2: f32[{n}], c: f32[{n}] = reduce welford [d0 < {n} | r0 < {m}] cast.f32(x[d0, r0])
  k: f32[{n}] = loop [d0 < {n}] rsqrt(add(div(m2[d0], c[d0]), f32(1e-05)))
  y: bf16[{n}, {m}] = loop [d0 < {n}, r0 < {m}]
    cast.bf16(add(mul(mul(sub(cast.f32(x[d0, r0]), mean[d0]), k[d0]), w[r0]), b[r0]))
}}"""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 512, 1000])
def test_softmax(run: Run, form: str, size: int) -> None:
    x = sample("bf16", 5, size)
    (y,) = run(SOFTMAX.format(n=5, m=size), x, form=form)
    torch.testing.assert_close(y.float(), x.float().softmax(1), rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [7, 512, 1000])
def test_layer_norm(run: Run, form: str, size: int) -> None:
    x, w, b = sample("bf16", 5, size), torch.randn(size), torch.randn(size)
    y, mean = run(LAYER_NORM.format(n=5, m=size), x, w, b, form=form)
    expected = torch.nn.functional.layer_norm(x.float(), (size,), w, b)
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(mean, x.float().mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_reductions_of_one_pass_and_values_of_the_row(run: Run, form: str) -> None:
    x, scale = sample("f32", 6, 300), torch.randn(6)
    text = """graph @f(x: f32[6, 300], k: f32[6]) -> (a, b, c) on cpu {
  t: f32[6, 300] = loop [d0 < 6, r0 < 300] mul(x[d0, r0], exp(k[d0]))
  a: f32[6] = reduce sum [d0 < 6 | r0 < 300] t[d0, r0]
  b: f32[6] = reduce max [d0 < 6 | r0 < 300] t[d0, r0]
  q: f32[6] = loop [d0 < 6] sub(b[d0], a[d0])
  c: f32[6, 300] = loop [d0 < 6, r0 < 300] add(q[d0], t[d0, r0])
}"""
    a, b, c = run(text, x, scale, form=form)
    t = x * scale.exp()[:, None]
    torch.testing.assert_close(a, t.sum(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(b, t.amax(1))
    torch.testing.assert_close(c, (t.amax(1) - t.sum(1))[:, None] + t, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_reduction_of_a_guarded_value(run: Run, form: str) -> None:
    text = """graph @f(x: f32[4, 90]) -> (y) on cpu {
  y: f32[4] = reduce min [d0 < 4 | r0 < 100] masked(lt(index.i64(r0), i64(90)), x[d0, r0], f32(5.0))
}"""
    x = sample("f32", 4, 90) + 9
    torch.testing.assert_close(run(text, x, form=form)[0], x.amin(1).clamp(max=5.0))


@pytest.mark.parametrize("form", FORMS)
def test_reduction_of_a_constant(run: Run, form: str) -> None:
    text = (
        "graph @f(x: f32[4]) -> (y, z) on cpu {\n"
        "  y: i64[4] = reduce sum [d0 < 4 | r0 < 100] i64(3)\n  z: f32[4] = reduce sum [d0 < 4 | r0 < 100] x[d0]\n}"
    )
    y, z = run(text, torch.arange(4.0), form=form)
    assert y.tolist() == [300] * 4
    assert z.tolist() == [0.0, 100.0, 200.0, 300.0]


@pytest.mark.parametrize("form", FORMS)
def test_sum_of_many_ones_in_half_precision(run: Run, form: str) -> None:
    text = (
        "graph @f(x: f16[1, 20000]) -> (y) on cpu {\n"
        "  y: f32[1] = reduce sum [d0 < 1 | r0 < 20000] cast.f32(x[d0, r0])\n}"
    )
    assert run(text, torch.ones(1, 20000, dtype=torch.float16), form=form)[0].item() == 20000.0
