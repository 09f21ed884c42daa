"""Every rewriting rule does what its example says, and the example means the same before and after."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import pytest

from ferrite_ir.language.dtypes import BF16, BOOL, F32, I32, I64, DType
from ferrite_ir.language.graph import TensorType, Value
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.passes.rewriting import Rewriter
from ferrite_ir.passes.rules import EXACT_RULES, FAST_RULES, Rule
from ferrite_ir.passes.simplify import simplifier
from ferrite_ir.reference.points import Point
from ferrite_ir.reference.tensors import filled
from ferrite_ir.text.expression_parser import parse_scalar

I = Dim("i", 8)
FLOATS = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 3.0e38]
INTEGERS = [0, 1, -1, 7, -8, 2**31 - 1, -(2**31), 3]
CONTENTS: dict[str, tuple[DType, list[Any]]] = {
    "x": (F32, FLOATS),
    "y": (F32, FLOATS),
    "h": (BF16, FLOATS),
    "k": (I32, INTEGERS),
    "j": (I32, INTEGERS),
    "l": (I64, [*INTEGERS[:6], 2**63 - 1, -(2**63)]),
    "b": (BOOL, [True, False] * 4),
    "c": (BOOL, [True, True, False, False] * 2),
}
VALUES = [Value(name, TensorType(dtype, (8,))) for name, (dtype, _) in CONTENTS.items()]
RULES = [*EXACT_RULES, *FAST_RULES]


def sides(rule: Rule) -> tuple[Scalar, Scalar]:
    before, _, after = rule.example.partition(" => ")
    return parse_scalar(before, VALUES, [I]), parse_scalar(after, VALUES, [I])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_alone_does_what_its_example_says(rule: Rule) -> None:
    before, after = sides(rule)
    assert before is not after
    assert Rewriter([rule])(before) is after


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_all_rules_together_agree_on_the_example(rule: Rule) -> None:
    before, after = sides(rule)
    simplify = simplifier("fast")
    assert simplify(before) is simplify(after)
    assert simplify(simplify(after)) is simplify(after)


@pytest.mark.parametrize("rule", [r for r in EXACT_RULES if r.name != "power"], ids=lambda rule: rule.name)
def test_exact_rule_keeps_every_bit(rule: Rule) -> None:
    before, after = sides(rule)
    # Second operands run through all values as well, against every first one.
    for turn in range(8):
        memory = {}
        for position, (name, (dtype, contents)) in enumerate(CONTENTS.items()):
            shift = turn if position % 2 else 0
            memory[name] = filled(contents[shift:] + contents[:shift], dtype, (8,), (1,))
        for i in range(8):
            given, expected = (Point(memory, {I: i}, {}).scalar(node) for node in (before, after))
            assert bits(given) == bits(expected), (i, turn, given, expected)


def test_names_of_rules_are_different() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


UNSOUND = [
    "add(x[i], f32(0.0))",
    "mul(x[i], f32(0.0))",
    "sub(x[i], x[i])",
    "sub(f32(0.0), x[i])",
    "neg(sub(x[i], y[i]))",
    "logical_not(lt(x[i], y[i]))",
    "eq(x[i], x[i])",
    "div(x[i], f32(3.0))",
    "add(add(x[i], f32(1.0)), f32(2.0))",
    "cast.f32(cast.i32(x[i]))",
    "cast.i64(cast.i32(l[i]))",
    "masked(lt(index.i64(i), i64(3)), x[i], f32(0.0))",
    "lt(index.i64(i), i64(7))",
]


@pytest.mark.parametrize("text", UNSOUND)
def test_tempting_but_wrong_rules_are_not_there(text: str) -> None:
    node = parse_scalar(text, VALUES, [I])
    assert simplifier("rounding")(node) is node


def test_rounding_numerics_keep_roundings() -> None:
    node = parse_scalar("cast.f32(cast.bf16(x[i]))", VALUES, [I])
    assert simplifier("rounding")(node) is node
    assert simplifier("fast")(node) is parse_scalar("x[i]", VALUES, [I])


def test_unknown_numerics_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown numerics 'exact'; known: fast, rounding"):
        simplifier("exact")


INDEX_TRUTHS = [
    ("lt(index.i64(i), i64(8))", "true"),
    ("ge(index.i64(i), i64(0))", "true"),
    ("eq(index.i64(i), i64(9))", "false"),
    ("ne(index.i64(i), i64(-1))", "true"),
    ("le(index.i64(i*2 + 1), i64(15))", "true"),
    ("gt(index.i64(i), index.i64(i + 1))", "false"),
    ("maximum(index.i64(i), i64(0))", "index.i64(i)"),
    ("maximum(index.i64(i), i64(7))", "i64(7)"),
    ("minimum(index.i64(i), index.i64(i + 3))", "index.i64(i)"),
    ("mod(index.i64(i + 8), i64(8))", "index.i64(i)"),
    ("x[at(index.i64(i), 8)]", "x[i]"),
    ("x[wrap(index.i64(i - 8), 8)]", "x[i]"),
    ("x[at(cast.i64(k[i]), 8)]", "x[at(k[i], 8)]"),
    ("x[at(where(lt(l[i], i64(0)), add(l[i], i64(8)), l[i]), 8)]", "x[wrap(l[i], 8)]"),
    ("mul(add(index.i64(i), i64(1)), i64(3))", "index.i64(i*3 + 3)"),
    ("pow(x[i], f32(0.5))", "sqrt(x[i])"),
    ("pow(x[i], f32(3.0))", "mul(mul(x[i], x[i]), x[i])"),
    ("add(exp(x[i]), f32(0.0))", "exp(x[i])"),
    ("mul(f32(2.0), add(f32(1.0), f32(2.0)))", "f32(6.0)"),
    ("where(logical_not(logical_not(b[i])), x[i], y[i])", "where(b[i], x[i], y[i])"),
]


@pytest.mark.parametrize(("before", "after"), INDEX_TRUTHS)
def test_combinations(before: str, after: str) -> None:
    simplify = simplifier("fast")
    assert simplify(parse_scalar(before, VALUES, [I])) is parse_scalar(after, VALUES, [I])


def test_every_op_of_a_rule_exists() -> None:
    from ferrite_ir.language.ops import OPS, SPECIAL_FORMS

    for rule, op in itertools.chain.from_iterable(((r, op) for op in r.ops) for r in RULES):
        assert op in OPS or op in SPECIAL_FORMS, rule.name
