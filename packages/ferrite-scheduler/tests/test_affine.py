"""Chains of sums and products with numbers of a channel: one product and one sum of each element."""

from __future__ import annotations

import pytest

from ferrite_ir.language.dtypes import BF16, F32
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, apply, cast, const, load
from ferrite_scheduler.kernels.affine_factors import join_factors

CHANNEL, PLACE = Dim("k", 8), Dim("p", 16)
X = load("x", [CHANNEL.index, PLACE.index], F32)
A, B, C = (load(name, [CHANNEL.index], F32) for name in "abc")


def joined(body: Scalar) -> Scalar:
    return join_factors(body, lambda node: PLACE in node.dims)


def test_a_norm_is_one_product_and_one_sum() -> None:
    found = joined(apply("add", apply("mul", apply("sub", X, A), B), C))
    shift = apply("add", apply("mul", apply("neg", A), B), C)
    assert found is apply("add", apply("mul", X, B), shift)


def test_operands_stand_on_either_side() -> None:
    found = joined(apply("add", C, apply("mul", B, apply("add", A, X))))
    assert found is apply("add", apply("mul", X, B), apply("add", apply("mul", A, B), C))


def test_what_follows_stays_as_it_is() -> None:
    chain = apply("add", apply("mul", apply("sub", X, A), B), C)
    found = joined(apply("mul", chain, apply("sigmoid", chain)))
    assert found is apply("mul", joined(chain), apply("sigmoid", joined(chain)))


@pytest.mark.parametrize(
    "body",
    [
        apply("add", apply("mul", X, A), B),  # nothing to gain
        apply("sub", A, apply("mul", X, B)),  # an element is subtracted
        apply("mul", apply("add", X, A), X),  # elements with each other
        apply("div", apply("sub", X, A), B),
        apply("add", apply("mul", cast(cast(apply("sub", X, A), BF16), F32), B), C),  # rounded between
    ],
)
def test_other_chains_stay_as_they_are(body: Scalar) -> None:
    assert joined(body) is body


def test_a_value_that_is_used_twice_is_joined_where_it_ends() -> None:
    inner = apply("mul", apply("sub", X, A), B)
    both = apply("add", apply("add", inner, C), apply("sqrt", inner))
    found = joined(both)
    assert found.args[1] is apply("sqrt", inner)
    assert found.args[0].op == "add"


def test_numbers_count_as_those_of_a_channel() -> None:
    found = joined(apply("add", apply("mul", apply("mul", X, const(2.0, F32)), A), B))
    assert found is apply("add", apply("mul", X, apply("mul", const(2.0, F32), A)), B)
