"""Torch's symbolic floats and truths as scalar expressions of the language."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F64, I64
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.sizes.size_names import written
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_sizes import translated_size
from ferrite_torch.torch_private.symbolic_shapes import symbolic_value, unsimplified_value


def scalar_of(value: torch.SymFloat, known: Mapping[str, Scalar] = MappingProxyType({})) -> Scalar:
    """Returns a torch float that is computed from integers, and from ``known`` symbols, as an expression in f64.

    Raises:
        NeedsNumber: it is no such number, or computed by a function that the language does not have.
    """
    expression, environment = symbolic_value(value)
    return _scalar(expression, environment, known)


def truth_of(value: torch.SymBool, known: Mapping[str, Scalar]) -> tuple[Scalar, str]:
    """Returns a condition on floats, and sizes, as a truth that a program computes, and as people write it.

    Raises:
        NeedsNumber: as `scalar_of`.
    """
    expression, environment = unsimplified_value(value)
    return _truth(expression, environment, known), written(expression)


def _truth(expression: Any, environment: Any, known: Mapping[str, Scalar]) -> Scalar:
    name = type(expression).__name__
    if name in COMPARISONS:
        return sc.apply(COMPARISONS[name], *(_scalar(side, environment, known) for side in expression.args))
    if name not in _TRUTH_RULES:
        raise NeedsNumber("", f"{name} of floats", ())
    parts = [_truth(part, environment, known) for part in expression.args]
    return (
        functools.reduce(functools.partial(sc.apply, _TRUTH_RULES[name]), parts)
        if len(parts) > 1
        else sc.apply(_TRUTH_RULES[name], *parts)
    )


_TRUTH_RULES = {"And": "bitand", "Or": "bitor", "Not": "logical_not"}
COMPARISONS = {
    "LessThan": "le",
    "StrictLessThan": "lt",
    "GreaterThan": "ge",
    "StrictGreaterThan": "gt",
    "Equality": "eq",
    "Unequality": "ne",
}
"""Comparisons of torch's symbolic numbers, by the name of their class."""


def _scalar(expression: Any, environment: Any, known: Mapping[str, Scalar]) -> Scalar:
    if expression.is_Number:
        return sc.const(float(expression), F64)
    if expression.is_Symbol and str(expression) in known:
        return known[str(expression)]
    name = type(expression).__name__
    if name == "ToFloat":
        return sc.cast(sc.index_value(ix.constant(translated_size(expression.args[0], environment)), I64), F64)
    if expression.is_integer and name not in _FLOAT_RULES:
        return sc.cast(sc.index_value(ix.constant(translated_size(expression, environment)), I64), F64)
    if name not in _FLOAT_RULES:
        raise NeedsNumber("", f"{name} of sizes", ())
    operands = [_scalar(operand, environment, known) for operand in expression.args]
    return (
        functools.reduce(lambda a, b: sc.apply(_FLOAT_RULES[name], a, b), operands[1:], operands[0])
        if (len(operands) > 1)
        else sc.apply(_FLOAT_RULES[name], operands[0])
    )


_FLOAT_RULES = {
    "Add": "add",
    "Mul": "mul",
    "Pow": "pow",
    "FloatPow": "pow",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "Max": "maximum",
    "Min": "minimum",
    "Abs": "abs",
    **{f"OpaqueUnaryFn_{name}": name for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tan")},
    **{f"OpaqueUnaryFn_{name}": name for name in ("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh")},
}
"""Torch's functions of symbolic floats, by the name of their class, in the language."""
