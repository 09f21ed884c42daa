"""Contractions: which are computed as such, how their kernels lie, and with what they share them."""

from __future__ import annotations

from random import Random

import pytest

from checks import check, refusal
from ferrite_ir.language.graph import Contract, Loop, Reduction
from ferrite_scheduler import Policy
from ferrite_scheduler.model.forms import Contraction
from ferrite_scheduler.model.schedule import Kernel


def product(rows: int = 3, columns: int = 20, points: int = 18, dtype: str = "bf16", more: str = "") -> str:
    """Returns the text of a product with a bias, and of what else reads its operands or its result."""
    results = "y, z" if more else "y"
    return f"""
    graph @f(x: {dtype}[{rows}, {points}], w: {dtype}[{columns}, {points}], b: f32[{columns}]) -> ({results}) {{
      p: f32[{rows}, {columns}] = contract [m < {rows}, n < {columns} | k < {points}] x[m, k] * w[n, k]
      y: f32[{rows}, {columns}] = loop [m < {rows}, n < {columns}] add(p[m, n], b[n])
      {more}
    }}"""


def sole(text: str, **policy: int) -> Kernel:
    (kernel,) = check(text, policy=Policy(**policy)).kernels
    return kernel


def test_rows_and_columns_have_axes_of_their_own() -> None:
    kernel = sole(product())
    assert isinstance(kernel.body[0], Contract)
    assert kernel.form.name == "contraction"
    assert {axis.name: axis.size for axis in kernel.axes} == {"y": 3, "x": 20, "r": 18}
    assert kernel.stored == ("y",)


@pytest.mark.parametrize(
    "text",
    [
        product(rows=17),
        product(rows=1),
        product(rows=17, dtype="f32"),
        product(columns=8),
        product(points=8),
    ],
    ids=["many rows", "one row", "many rows of f32", "few columns", "short"],
)
def test_others_are_reductions_of_products(text: str) -> None:
    assert isinstance(sole(text).body[0], Reduction)


def test_the_limit_of_rows_is_a_matter_of_policy() -> None:
    assert isinstance(sole(product(rows=3), product_rows=2).body[0], Reduction)
    assert isinstance(sole(product(rows=17), product_rows=32).body[0], Contract)
    assert isinstance(sole(product(rows=3, dtype="f32"), wide_product_rows=3).body[0], Contract)
    assert isinstance(sole(product(rows=3, dtype="f32"), wide_product_rows=2).body[0], Reduction)


CODES = """
graph @f(x: bf16[3, 18], w: {dtype}[20, 18], s: f32[{scales}]) -> (p) {{
  p: f32[3, 20] = contract [m < 3, n < 20 | k < 18] x[m, k] * cast.bf16({body})
}}"""


@pytest.mark.parametrize(
    ("rows", "dtype", "count"), [(4, "f32", 0), (5, "f32", 1), (2, "bf16", 1)], ids=["few", "more", "halves"]
)
def test_tensor_cores_take_what_would_wait_for_multiplications(rows: int, dtype: str, count: int) -> None:
    assert sole(product(rows=rows, dtype=dtype)).form == Contraction(tensor_cores=bool(count))


def test_how_many_rows_are_multiplied_one_by_one_is_a_matter_of_policy() -> None:
    assert sole(product(rows=5, dtype="f32"), multiplied_rows=5).form == Contraction(tensor_cores=False)
    assert sole(product(rows=4, dtype="f32"), multiplied_rows=3).form == Contraction()


def test_operands_that_both_have_columns_make_a_reduction() -> None:
    text = product(rows=3, columns=20, points=20).replace("x[m, k]", "x[m, n]")
    assert isinstance(sole(text).body[0], Reduction)


SCALED = "mul(cast.f32(w[n, k]), s[n])"


@pytest.mark.parametrize("body", [SCALED, "mul(s[n], cast.f32(w[n, k]))"])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_a_scale_for_each_column_is_applied_to_sums(dtype: str, body: str) -> None:
    random, lowest = Random(0), -128 if dtype == "i8" else 0
    x = [[random.randrange(-8, 9) / 8 for _ in range(18)] for _ in range(3)]
    w = [[random.randrange(lowest, lowest + 256) for _ in range(18)] for _ in range(20)]
    scales = [2.0 ** random.randrange(-3, 4) for _ in range(20)]  # nothing is rounded, whichever comes first
    (kernel,) = check(CODES.format(dtype=dtype, scales=20, body=body), inputs=[x, w, scales]).kernels
    contract, scaled = kernel.body
    assert isinstance(contract, Contract)
    assert str(contract.right) == "cast.bf16(w[x0, r0])"
    assert isinstance(scaled, Loop)
    assert kernel.stored == ("p",)


@pytest.mark.parametrize(
    ("parts", "policy"),
    [
        ({"dtype": "i16"}, {}),
        ({"scales": 18, "body": "mul(cast.f32(w[n, k]), s[k])"}, {}),
        ({"body": "add(cast.f32(w[n, k]), s[n])"}, {}),
        ({}, {"scale_sums": False}),
    ],
    ids=["not exact", "a scale for each row", "an offset", "policy"],
)
def test_other_weights_are_scaled_first(parts: dict[str, object], policy: dict[str, bool]) -> None:
    text = CODES.format(**{"dtype": "i8", "scales": 20, "body": SCALED} | parts)
    (contract,) = sole(text, **policy).body
    assert isinstance(contract, Contract)
    assert contract.right.args[0].op in ("mul", "add")


def test_products_with_the_same_rows_share_a_kernel() -> None:
    second = "z: f32[3, 20] = contract [m < 3, n < 20 | k < 18] x[m, k] * neg(w[n, k])"
    kernel = sole(product(more=second))
    assert sum(isinstance(definition, Contract) for definition in kernel.body) == 2


def test_products_whose_rows_are_columns_of_each_other_do_not() -> None:
    found = check("""
    graph @f(x: bf16[16, 18], w: bf16[16, 18]) -> (p, q) {
      p: f32[16, 16] = contract [m < 16, n < 16 | k < 18] x[m, k] * w[n, k]
      q: f32[16, 16] = contract [m < 16, n < 16 | k < 18] x[n, k] * w[m, k]
    }""")
    assert [isinstance(kernel.body[0], Contract) for kernel in found.kernels] == [True, True]


def test_reductions_keep_their_own_kernels() -> None:
    found = check("""
    graph @f(x: bf16[3, 18], w: bf16[20, 18]) -> (p, q) {
      p: f32[3, 20] = contract [m < 3, n < 20 | k < 18] x[m, k] * w[n, k]
      q: f32[3, 20] = reduce max [m < 3, n < 20 | k < 18] sub(cast.f32(x[m, k]), cast.f32(w[n, k]))
    }""")
    assert len(found.kernels) == 2
    assert refusal(found, "p", "q") == "F12"
