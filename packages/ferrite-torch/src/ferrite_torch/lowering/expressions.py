"""Short spellings of scalar expressions: operands may be numbers, which take the type of the scalar beside them."""

from __future__ import annotations

from functools import partial, reduce
from typing import TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, Symbolic, is_provably_at_most

Operand: TypeAlias = Scalar | Symbolic | bool | int | float


def call(name: str, *operands: Operand) -> Scalar:
    """Returns the operation of the scalar vocabulary applied to operands, at least one of them a scalar.

    Raises:
        ScalarTypeError: the operands do not fit the operation.
    """
    like = next(operand.dtype for operand in operands if isinstance(operand, Scalar))
    return sc.apply(name, *(lifted(operand, like) for operand in operands))


def lifted(operand: Operand, dtype: DType) -> Scalar:
    """Returns the operand if it is a scalar expression, else the number, or the symbolic size, in ``dtype``."""
    if isinstance(operand, Symbolic):
        return sc.cast(number_of(ix.constant(operand)), dtype)
    return operand if isinstance(operand, Scalar) else sc.const(operand, dtype)


sub, div = partial(call, "sub"), partial(call, "div")
neg, absolute = partial(call, "neg"), partial(call, "abs")
exp, log, expm1, log1p = partial(call, "exp"), partial(call, "log"), partial(call, "expm1"), partial(call, "log1p")
sqrt, rsqrt, reciprocal = partial(call, "sqrt"), partial(call, "rsqrt"), partial(call, "reciprocal")
erf, tanh, sigmoid = partial(call, "erf"), partial(call, "tanh"), partial(call, "sigmoid")
floor, trunc = partial(call, "floor"), partial(call, "trunc")
eq, ne, lt, le, gt, ge = (partial(call, name) for name in ("eq", "ne", "lt", "le", "gt", "ge"))
larger, smaller = partial(call, "maximum"), partial(call, "minimum")
inverted = partial(call, "logical_not")


def add(a: Operand, b: Operand) -> Scalar:
    """Returns ``a + b``; of bools, whether either holds, as torch adds them."""
    return call("bitor" if _are_bools(a, b) else "add", a, b)


def mul(a: Operand, b: Operand) -> Scalar:
    """Returns ``a * b``; of bools, whether both hold, as torch multiplies them."""
    return call("bitand" if _are_bools(a, b) else "mul", a, b)


def _are_bools(a: Operand, b: Operand) -> bool:
    return BOOL in (getattr(a, "dtype", None), getattr(b, "dtype", None))


def choose(condition: Scalar, yes: Operand, no: Operand) -> Scalar:
    """Returns ``yes`` where the condition holds, else ``no``; at least one of them is a scalar."""
    dtype = yes.dtype if isinstance(yes, Scalar) else no.dtype  # type: ignore[union-attr]
    return sc.apply("where", condition, lifted(yes, dtype), lifted(no, dtype))


def guarded(condition: Scalar, value: Scalar, other: Operand) -> Scalar:
    """Returns ``value`` where the condition holds, without any of its loads elsewhere, else ``other``."""
    if sc.is_constant(condition, True):
        return value
    return sc.apply("masked", condition, value, lifted(other, value.dtype))


def both(*conditions: Scalar) -> Scalar:
    """Returns whether all the conditions hold; true for none."""
    return reduce(partial(call, "bitand"), conditions) if conditions else sc.const(True, BOOL)


def either(*conditions: Scalar) -> Scalar:
    """Returns whether one of the conditions holds; there is at least one."""
    return reduce(partial(call, "bitor"), conditions)


def is_true(value: Scalar) -> Scalar:
    """Returns whether the value is not zero (NaN is not)."""
    return value if value.dtype is BOOL else ne(value, 0)


def is_nan(value: Scalar) -> Scalar:
    """Returns whether the value is NaN; never for integers."""
    return call("isnan", value) if value.dtype.is_float else sc.const(False, BOOL)


def is_infinite(value: Scalar) -> Scalar:
    """Returns whether the value is an infinity; never for integers."""
    return call("isinf", value) if value.dtype.is_float else sc.const(False, BOOL)


def number_of(index: Index) -> Scalar:
    """Returns an index expression as a number."""
    return sc.index_value(index, I64)


def amount(size: Size, dtype: DType) -> Operand:
    """Returns a size as a float: a constant, or what the program computes where the size is symbolic."""
    return float(size) if isinstance(size, int) else sc.cast(number_of(ix.constant(size)), dtype)


def is_between(index: Index, low: Size | None, high: Size | None) -> Scalar:
    """Returns whether ``low <= index < high``; bounds that are None or hold anyway are not tested."""
    tests = []
    if low is not None and not (index.lo is not None and is_provably_at_most(low, index.lo)):
        tests.append(ge(number_of(index), number_of(ix.constant(low))))
    if high is not None and not (index.hi is not None and is_provably_at_most(index.hi + 1, high)):
        tests.append(lt(number_of(index), number_of(ix.constant(high))))
    return both(*tests)
