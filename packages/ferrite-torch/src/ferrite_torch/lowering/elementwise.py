"""The engine of pointwise ops: broadcasting, torch's type promotion, and one loop.

An `Elementwise` row says what one element of the result is; everything else is the same for all pointwise ops. The
result type is always that of the fake result. The type that elements are computed in is the computation type of the
result, or, for tests such as ``lt``, of the promoted operands: f32 for narrower floats (torch's "opmath"), the type
itself otherwise.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BF16, BOOL, F16, F64, I64, DType
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.scalar import Scalar, ScalarTypeError
from ferrite_ir.language.sizes import Symbolic, Undecided
from ferrite_ir.reference.rounding import wrap
from ferrite_torch.devices.dtypes import dtype_of, torch_dtype
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.expressions import number_of
from ferrite_torch.lowering.requirements import required
from ferrite_torch.lowering.tensors import Point, Tensor, is_dense
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of

Formula: TypeAlias = Callable[..., Scalar]
Number: TypeAlias = "bool | int | float | Symbolic"
Element: TypeAlias = "Tensor | bool | int | float"

RESULT, PROMOTED, OWN = "result", "promoted", "own"
"""What elements are computed in: the type of the result, the promoted type of the operands, or each in its own."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """What one element of a pointwise result is.

    Attributes:
        formula: gets the op's arguments in order, with a scalar expression in place of each element, and returns the
            element of the result.
        elements: positions of the arguments that are tensors or numbers standing for tensors; all others reach the
            formula as they are.
        computes_in: ``RESULT``, ``PROMOTED`` or ``OWN``.
        rounds_operands: whether operands are of the type that is stored, Python numbers too, as torch's comparisons
            take them. Roundings to half types are not skipped then: one of the elements equals their maximum.
        divides: whether the second element divides the first: integers on a CPU then must not be divided by zero.
        jumps: positions of elements at which the result jumps where they pass some number, as ``floor`` and ``isinf``
            do. Those of half types are read without excess precision: the least of it would change the result
            altogether.
    """

    formula: Formula
    elements: tuple[int, ...]
    computes_in: str = RESULT
    rounds_operands: bool = False
    divides: bool = False
    jumps: tuple[int, ...] = ()


def lower_elementwise(
    b: Builder, row: Elementwise, fake: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> Tensor:
    """Returns the loop of a pointwise op with this fake result.

    Raises:
        Unlowered: an operand or the result is of a type that kernels do not compute with, or the formula has no such
            case.
    """
    elements = [args[position] for position in row.elements if position < len(args)]
    result = dtype_of(fake.dtype)
    refuse_opaque(result, *(e.dtype for e in elements if isinstance(e, Tensor)))
    promoted = promoted_type(elements) if row.computes_in == PROMOTED else fake.dtype
    compute: DType | None = None
    if row.computes_in != OWN:
        stored = dtype_of(promoted)
        compute = stored if row.rounds_operands and stored in (BF16, F16) else stored.compute
    shape = sizes_of(fake.shape)

    def body(point: Point) -> Scalar:
        given = list(args)
        for position in row.elements:
            if position < len(args) and args[position] is not None:
                element = args[position]
                if row.rounds_operands and not isinstance(element, Tensor):
                    element = rounded(element, promoted)
                given[position] = element_at(element, shape, point, compute, stored=position in row.jumps)
        if row.divides and b.device == "cpu" and given[1].dtype.is_integer:
            given[1] = required("divisor", sc.apply("ne", given[1], sc.const(0, given[1].dtype)), given[1])
        return row.formula(*given, **kwargs)

    try:
        return b.loop(shape, result, body, strides=packed_strides(fake))
    except ScalarTypeError as error:
        raise Unlowered(str(error)) from error


def packed_strides(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides of a fake result if it is packed in memory, else None: then a result of ours is row-major."""
    shape, strides = sizes_of(fake.shape), steps_of(fake)
    return strides if is_dense(TensorType(I64, shape, strides)) else None


def refuse_opaque(*dtypes: DType) -> None:
    """Checks that kernels compute with all these types.

    Raises:
        Unlowered: one of them is complex or otherwise opaque.
    """
    for dtype in dtypes:
        if dtype.kind == "opaque":
            raise Unlowered(f"kernels do not compute with {dtype}")


def element_at(
    element: Element, shape: Sequence[int], point: Point, dtype: DType | None, *, stored: bool = False
) -> Scalar:
    """Returns the element of a tensor broadcast to ``shape``, or a number, as a ``dtype``.

    None stands for the operand's own computation type. With ``stored`` the element is taken as it is stored.
    """
    if isinstance(element, Tensor):
        position = broadcast_point(element.shape, shape, point)
        loaded = element.stored_at(position) if stored else element.at(position)
        return sc.cast(loaded, element.dtype.compute if dtype is None else dtype)
    if isinstance(element, Scalar):
        return sc.cast(element, F64 if dtype is None else dtype)
    number = plain_number(element)
    if isinstance(number, Symbolic):
        whole = number_of(ix.constant(number))
        return sc.cast(whole if dtype is not BOOL else sc.apply("ne", whole, sc.const(0, I64)), dtype or I64)
    if dtype is None:
        dtype = dtype_of(number_type(number)).compute
    if dtype is BOOL:
        return sc.const(bool(number), BOOL)
    if dtype.is_integer and isinstance(number, float):
        raise Unlowered(f"the fraction {number} as an {dtype}")
    return sc.const(wrap(int(number), dtype) if dtype.is_integer else float(number), dtype)


def stated_at(x: Tensor, shape: Sequence[int], point: Point, dtype: DType) -> Scalar:
    """Returns the element of a tensor broadcast to ``shape`` as a conversion that the program states gives it.

    It is made of the element as it is stored, and rounded: neither has excess precision.
    """
    if dtype is x.dtype or not x.dtype.is_float:
        return element_at(x, shape, point, dtype)
    element = x.stored_at(broadcast_point(x.shape, shape, point))
    return sc.rounded(element, dtype) if dtype.is_half else sc.cast(element, dtype)


def converted_at(x: Tensor, point: Point, dtype: DType) -> Scalar:
    """Returns the element of a tensor as an op that is told a ``dtype`` takes it: converted to that type first.

    Between floats only; others come in their own type.
    """
    is_stated = x.dtype.is_float and dtype.is_float and dtype is not x.dtype
    return stated_at(x, x.shape, point, dtype) if is_stated else x.at(point)


def broadcast_point(old: Sequence[int], new: Sequence[int], point: Point) -> Point:
    """Returns the point of a tensor of shape ``old`` that is seen at ``point`` when it is broadcast to ``new``."""
    skipped = len(new) - len(old)
    zero = ix.constant(0)
    pairs = zip(old, new[skipped:], point[skipped:], strict=True)
    return tuple(zero if size == 1 and wanted != 1 else index for size, wanted, index in pairs)


def plain_number(value: Any) -> Number:
    """Returns a Python number, or a symbolic integer as it is; other symbolic numbers are specialised.

    Raises:
        Unlowered: the value is complex, or no number.
    """
    match value:
        case bool() | torch.SymBool():
            return bool(value)
        case int() | torch.SymInt() | Symbolic():
            return size_of(value)  # type: ignore[no-any-return]
        case float() | torch.SymFloat():
            return float(value)
    raise Unlowered(f"an operand of type {type(value).__name__}")


def known_number(value: Any) -> bool | int | float:
    """Returns a Python number that is known now; asking a symbolic integer for its value has it fixed.

    Raises:
        Unlowered: the value is complex, or no number.
        Undecided: it is symbolic.
    """
    number = plain_number(value)
    return int(number) if isinstance(number, Symbolic) else number


def rounded(number: Any, dtype: torch.dtype) -> Any:
    """Returns a Python number as it is stored in ``dtype``; types narrower than 16 bits are left alone."""
    if isinstance(number, Scalar):
        if dtype in _ROUNDING:
            raise Unlowered(f"a symbolic float rounded to {dtype}")
        return number
    plain = plain_number(number)
    if isinstance(plain, Symbolic):
        if dtype in _ROUNDING and dtype is not torch.float32:
            raise Undecided(f"{plain} rounded to {dtype}", plain)
        return plain
    if dtype not in _ROUNDING or not math.isfinite(plain):
        return plain
    try:
        return _ROUNDING[dtype](float(plain))
    except OverflowError:
        return math.copysign(math.inf, plain)


def _through(code: str) -> Callable[[float], float]:
    def store(number: float) -> float:
        return float(struct.unpack(code, struct.pack(code, number))[0])

    return store


def _as_bfloat16(number: float) -> float:
    (bits,) = struct.unpack("I", struct.pack("f", number))
    bits += 0x7FFF + (bits >> 16 & 1)  # to nearest, ties to even
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0])


_ROUNDING: dict[torch.dtype, Callable[[float], float]] = {
    torch.float16: _through("e"),
    torch.bfloat16: _as_bfloat16,
    torch.float32: _through("f"),
}


def number_type(number: Number) -> torch.dtype:
    """Returns the type that torch gives a Python number."""
    match number:
        case bool():
            return torch.bool
        case int() | Symbolic():
            return torch.int64
    return torch.get_default_dtype()


def promoted_type(elements: Sequence[Element | None]) -> torch.dtype:
    """Returns the type that torch promotes operands to.

    Tensors with dims decide; 0-d tensors, and after them Python numbers, count only if they are of a higher category
    (bool < integer < float).
    """
    ranked: list[list[torch.dtype]] = [[], [], []]
    for element in elements:
        if isinstance(element, Tensor):
            ranked[0 if element.ndim else 1].append(torch_dtype(element.dtype))
        elif isinstance(element, Scalar):
            ranked[2].append(torch.get_default_dtype())
        elif element is not None:
            ranked[2].append(number_type(plain_number(element)))
    found: torch.dtype | None = None
    for dtypes in filter(None, ranked):
        highest = reduce(torch.promote_types, dtypes)
        if found is None or _category(highest) > _category(found):
            found = highest
    if found is None:
        raise Unlowered("no operands")
    return found


def _category(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return 2
    return 0 if dtype is torch.bool else 1
