"""Random numbers: pure functions of a seed, drawn once a call from torch's generator, and an element's flat position.

The same ``torch.manual_seed`` gives the same numbers; they are not the numbers eager draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferrite_ir import index as ix
from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import F32, F64, I64, DType
from ferrite_ir.graph import row_major
from ferrite_ir.index import Index
from ferrite_ir.scalar import Scalar
from ferrite_torch.builder import Builder, Lowered, Unlowered, ints
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.lowering.creation import made
from ferrite_torch.lowering.elementwise import Element, element_at, plain_number
from ferrite_torch.lowering.expressions import add, choose, div, ge, log1p, lt, mul, neg, number_of
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.tensors import Point, Tensor

# Numbers below 1 that round up to 1 in a narrow type: uniform numbers never are 1, so these become 0, as eager does it.
_ROUNDS_TO_ONE = {"f16": 1 - 2.0**-12, "bf16": 1 - 2.0**-9}


def refuse_generator(generator: Any) -> None:
    """Checks that numbers are to come from the default generator.

    Raises:
        Unlowered: a generator is given; only the library call draws from it.
    """
    if generator is not None:
        raise Unlowered("random numbers from a generator of the user")


def flat_position(point: Point, shape: Sequence[int]) -> Index:
    """Returns the position of a point among all elements in logical order."""
    return ix.linearize(point, row_major(tuple(shape)))


def uniform_at(seed: Scalar, position: Index, dtype: DType) -> Scalar:
    """Returns a number in ``[0, 1)`` in the computation type of ``dtype`` that stays below 1 when it is stored."""
    if dtype is F64:
        high = sc.cast(sc.apply("rand", seed, number_of(position * 2)), F64)
        low = sc.cast(sc.apply("rand", seed, number_of(position * 2 + 1)), F64)
        return add(high, mul(low, 2.0**-24))
    number = sc.apply("rand", seed, number_of(position))
    limit = _ROUNDS_TO_ONE.get(dtype.name)
    return number if limit is None else choose(ge(number, limit), 0.0, number)


def normal_at(seed: Scalar, position: Index, dtype: DType) -> Scalar:
    """Returns a standard normal number in the computation type of ``dtype``."""
    return sc.cast(sc.apply("randn", seed, number_of(position)), dtype.compute)


def _drawn(b: Builder, transform: Callable[[Scalar, Index, DType], Scalar]) -> Tensor:
    fake = b.fake
    shape, dtype = ints(fake.shape), dtype_of(fake.dtype)
    seed = b.seed()
    return made(b, lambda point: transform(seed, flat_position(point, shape), dtype))


@lowers("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator")
def rand(b: Builder, *_: Any, generator: Any = None, **__: Any) -> Tensor:
    refuse_generator(generator)
    return _drawn(b, uniform_at)


@lowers("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator")
def randn(b: Builder, *_: Any, generator: Any = None, **__: Any) -> Tensor:
    refuse_generator(generator)
    return _drawn(b, normal_at)


@lowers("aten.uniform.default")
def uniform(
    b: Builder, like: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None, **named: float
) -> Tensor:
    refuse_generator(generator)
    low, high = plain_number(named.get("from", low)), plain_number(named.get("to", high))
    return _drawn(b, lambda seed, at, dtype: add(mul(uniform_at(seed, at, dtype), high - low), low))


@lowers("aten.normal_functional.default")
def normal(b: Builder, like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)
    return _drawn(b, lambda seed, at, dtype: add(mul(normal_at(seed, at, dtype), std), mean))


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def normal_of_tensors(b: Builder, mean: Element, std: Element = 1.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)
    fake = b.fake
    shape, dtype = ints(fake.shape), dtype_of(fake.dtype)
    seed = b.seed()

    def body(point: Point) -> Scalar:
        number = normal_at(seed, flat_position(point, shape), dtype)
        scale, shift = (element_at(element, shape, point, dtype.compute) for element in (std, mean))
        return add(mul(number, scale), shift)

    return made(b, body)


@lowers("aten.exponential.default")
def exponential(b: Builder, like: Tensor, rate: float = 1.0, *, generator: Any = None, **named: float) -> Tensor:
    refuse_generator(generator)
    rate = plain_number(named.get("lambd", rate))
    return _drawn(b, lambda seed, at, dtype: div(neg(log1p(neg(uniform_at(seed, at, dtype)))), rate))


@lowers(
    "aten.randint.default",
    "aten.randint.generator",
    "aten.randint_like.default",
    "aten.randint.low",
    "aten.randint.low_generator",
    "aten.randint_like.low_dtype",
)
def randint(b: Builder, *args: Any, generator: Any = None, **__: Any) -> Tensor:
    """Returns integers in ``[low, high)``; ``low`` is 0 for the overloads without it."""
    refuse_generator(generator)
    bounds = [int(plain_number(arg)) for arg in args if not isinstance(arg, (Tensor, list, tuple))]
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    seed = b.seed()
    shape = ints(b.fake.shape)
    limits = sc.const(low, I64), sc.const(high, I64)
    return made(b, lambda point: sc.apply("randint64", seed, number_of(flat_position(point, shape)), *limits))


@lowers("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli(b: Builder, x: Tensor, p: Element | None = None, *, generator: Any = None) -> Tensor:
    """Returns 1 with probability ``p``, by default the elements of ``x``, else 0."""
    refuse_generator(generator)
    fake = b.fake
    shape = ints(fake.shape)
    seed = b.seed()
    chance: Element = x if p is None else p
    dtype = chance.dtype.compute if isinstance(chance, Tensor) and chance.dtype.is_float else F32

    def body(point: Point) -> Scalar:
        number = sc.apply("rand", seed, number_of(flat_position(point, shape)))
        limit = element_at(chance, shape, point, dtype)
        return lt(sc.cast(number, limit.dtype), limit)

    return made(b, body)


@lowers("aten.native_dropout.default")
def native_dropout(b: Builder, x: Tensor, p: float, train: bool | None) -> Lowered:
    """Returns the input with elements dropped and the rest scaled up, and the mask of what was kept."""
    fake, mask_fake = b.fake
    mask_type = dtype_of(mask_fake.dtype)
    if train is False or p == 0:
        kept = b.loop(x.shape, mask_type, lambda point: sc.const(1, mask_type))
        return b.loop(x.shape, x.dtype, x.at), kept
    seed = b.seed()
    kept = b.loop(
        x.shape,
        mask_type,
        lambda point: ge(sc.apply("rand", seed, number_of(flat_position(point, x.shape))), float(p)),
    )
    scale = 0.0 if p >= 1 else 1 / (1 - p)

    def body(point: Point) -> Scalar:
        value = x.value_at(point)
        return mul(mul(value, sc.cast(kept.at(point), value.dtype)), scale)

    return b.loop(x.shape, dtype_of(fake.dtype), body), kept


@lowers("aten.native_dropout_backward.default")
def native_dropout_backward(b: Builder, grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    dtype = dtype_of(b.fake.dtype)

    def body(point: Point) -> Scalar:
        value = sc.cast(grad.at(point), dtype.compute)
        return mul(mul(value, sc.cast(mask.at(point), value.dtype)), scale)

    return made(b, body)
