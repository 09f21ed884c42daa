"""Random numbers: pure functions of a seed, drawn once a call from torch's generator, and an element's flat position.

The same ``torch.manual_seed`` gives the same numbers; they are not the numbers eager draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32, F64, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered, Unlowered
from ferrite_torch.lowering.elementwise import Element, element_at, known_number, plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    both,
    call,
    choose,
    div,
    either,
    exp,
    floor,
    ge,
    gt,
    larger,
    le,
    log1p,
    lt,
    mul,
    neg,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.indexing.searching import insertion_position
from ferrite_torch.lowering.reductions.sorting import sorted_along
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import required, within
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.tensors import Point, Tensor, flat_position
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.torch_private.seeded_ops import DRAW, is_random

# Numbers below 1 that round up to 1 in a narrow type: uniform numbers never are 1, so these become 0, as eager does it.
_ROUNDS_TO_ONE = {"f16": 1 - 2.0**-12, "bf16": 1 - 2.0**-9}


DRAWS: dict[str, Callable[[Sequence[Any]], bool]] = {"aten.native_dropout.default": lambda args: 0 not in args[0].shape}
"""By random op of which some calls draw no number, which do. (For dropout of no elements torch draws none, and its mask
is not the bool that it says.)"""


def draws(op: Any, args: Sequence[Any]) -> bool:
    """Returns whether a call of an op, with tensors as lowerings take them, draws from torch's generator."""
    tells = DRAWS.get(str(op))
    return is_random(op) and (tells is None or tells(args))


def refuse_generator(generator: Any) -> None:
    """Checks that numbers are to come from the default generator.

    Raises:
        Unlowered: a generator is given; only the extern call draws from it.
    """
    if generator is not None:
        raise Unlowered("random numbers from a generator of the user")


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
    shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
    seed = b.seed()
    return made(b, lambda point: transform(seed, flat_position(point, shape), dtype))


@lowers(DRAW)
def draw(b: Builder, number: int, device: Any) -> Tensor:
    """Returns a seed as a tensor, to be saved for the ops that draw from it."""
    seed = b.seed()
    return made(b, lambda point: seed)


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
    low, high = known_number(named.get("from", low)), known_number(named.get("to", high))
    return _drawn(b, lambda seed, at, dtype: add(mul(uniform_at(seed, at, dtype), high - low), low))


@lowers("aten.normal_functional.default")
def normal(b: Builder, like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)
    return _drawn(b, lambda seed, at, dtype: add(mul(normal_at(seed, at, dtype), std), mean))


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def normal_of_tensors(b: Builder, mean: Element, std: Element = 1.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)
    fake = b.fake
    shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
    seed = b.seed()

    def body(point: Point) -> Scalar:
        number = normal_at(seed, flat_position(point, shape), dtype)
        scale, shift = (element_at(element, shape, point, dtype.compute) for element in (std, mean))
        scale = required("deviation", ge(scale, 0.0), scale)
        return add(mul(number, scale), shift)

    return made(b, body)


@lowers("aten.normal.float_float", "prims.normal.default")
def normal_of_numbers(b: Builder, *args: Any, generator: Any = None, **named: Any) -> Tensor:
    """Returns normal numbers; mean and deviation come before the shape in one op, and by name in the other."""
    refuse_generator(generator)
    mean, std = named.get("mean", args[0]), named.get("std", args[1] if args[1:] else 1.0)
    mean, std = float(plain_number(mean)), float(plain_number(std))
    return _drawn(b, lambda seed, at, dtype: add(mul(normal_at(seed, at, dtype), std), mean))


@lowers("aten.log_normal.default")
def log_normal(b: Builder, like: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)
    return _drawn(b, lambda seed, at, dtype: exp(add(mul(normal_at(seed, at, dtype), std), mean)))


@lowers("aten.cauchy.default")
def cauchy(b: Builder, like: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    refuse_generator(generator)

    def transform(seed: Scalar, at: Index, dtype: DType) -> Scalar:
        angle = mul(sub(uniform_at(seed, at, dtype), 0.5), math.pi)
        return add(mul(call("tan", angle), sigma), median)

    return _drawn(b, transform)


@lowers("aten.geometric.default")
def geometric(b: Builder, like: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Returns the number of trials up to the first success."""
    refuse_generator(generator)

    def transform(seed: Scalar, at: Index, dtype: DType) -> Scalar:
        wide = F64 if dtype is F64 else F32
        if p == 1:
            return sc.const(1.0, wide)
        failures = div(log1p(neg(uniform_at(seed, at, wide))), math.log1p(-p))
        return add(floor(failures), 1.0)

    return _drawn(b, transform)


@lowers("aten.multinomial.default")
def multinomial(b: Builder, weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Returns draws from each row of weights, which need not add up to one.

    Draws without replacement are a race: each category finishes after an exponential time divided by its weight, and
    the first ones win. Draws with replacement look numbers up in the sums so far.
    """
    refuse_generator(generator)
    refuse_opaque(weights.dtype)
    seed = b.seed()
    if replacement and count > 1:
        return _looked_up(b, weights, seed)

    def speed(point: Point) -> Scalar:
        weight = _weight(weights.value_at(point))
        return div(weight, sc.cast(_exponential_at(seed, flat_position(point, weights.shape)), weight.dtype))

    shape, axis = sizes_of(b.fake.shape), weights.ndim - 1
    if count == 1:
        fastest, winner = b.reduce(
            "argmax",
            shape,
            weights.shape[-1:],
            lambda point, reduced: (speed((*point[:-1], *reduced)), number_of(reduced[0])),
        )
        return made(b, lambda point: required("weights", gt(fastest.at(point), 0.0), winner.at(point)))
    speeds = b.loop(weights.shape, weights.dtype.compute, speed)
    fastest, winners = sorted_along(b, speeds, axis, descending=True, top=int(count))

    def drawn(point: Point) -> Scalar:
        moves = either(gt(fastest.at(point), 0.0), gt(number_of(point[-1]), 0))  # of the first alone something is asked
        return required("weights", moves, winners.at(point))

    return made(b, drawn)


def _weight(weight: Scalar) -> Scalar:
    """Returns a weight, which has to be a number from 0 up."""
    return required("weight", both(ge(weight, 0.0), lt(weight, math.inf)), weight)


def _exponential_at(seed: Scalar, position: Index) -> Scalar:
    """Returns an exponential number, never zero; of two draws, as short times decide a race of many."""
    coarse, fine = (sc.apply("rand", seed, number_of(position * 2 + k)) for k in (0, 1))
    return larger(neg(log1p(neg(add(coarse, mul(fine, 2.0**-24))))), 2.0**-60)


def _looked_up(b: Builder, weights: Tensor, seed: Scalar) -> Tensor:
    shape, size = sizes_of(b.fake.shape), weights.shape[-1]
    # In f64, as sums that do not quite grow would let categories of no weight win.
    (sums,) = b.scan(
        "sum", weights.shape, weights.ndim - 1, lambda point: (sc.cast(_weight(weights.value_at(point)), F64),)
    )

    def body(point: Point) -> Scalar:
        row = point[:-1]
        total = sums.at((*row, ix.constant(size - 1)))
        total = required("weights", gt(total, 0.0), total)
        number = mul(uniform_at(seed, flat_position(point, shape), F64), total)
        found = insertion_position(lambda at: sums.at((*row, ix.indirect(at, size))), size, number, right=True)
        return smaller(found, size - 1)

    return b.loop(shape, I64, body)


@lowers("aten.rrelu_with_noise_functional.default")
def rrelu(
    b: Builder,
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Lowered:
    """Returns negative elements times a slope, and the slopes: drawn anew in training, else their mean."""
    refuse_generator(generator)
    refuse_opaque(x.dtype)
    low, high = float(plain_number(lower)), float(plain_number(upper))
    if not training:
        slope = (low + high) / 2
        return b.loop(x.shape, x.dtype, lambda p: _sloped(x.value_at(p), slope)), b.fresh_copy(noise)
    seed = b.seed()

    def drawn(point: Point) -> Scalar:
        number = uniform_at(seed, flat_position(point, x.shape), x.dtype)
        return choose(le(x.value_at(point), 0.0), add(mul(number, high - low), low), 1.0)

    slopes = b.loop(x.shape, noise.dtype, drawn)
    return b.loop(x.shape, x.dtype, lambda p: _sloped(x.value_at(p), slopes.value_at(p))), slopes


def _sloped(value: Scalar, slope: Scalar | float) -> Scalar:
    return choose(le(value, 0.0), mul(value, slope), value)


@lowers("aten.exponential.default")
def exponential(b: Builder, like: Tensor, rate: float = 1.0, *, generator: Any = None, **named: float) -> Tensor:
    refuse_generator(generator)
    rate = known_number(named.get("lambd", rate))
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
    shape = sizes_of(b.fake.shape)
    limits = sc.const(low, I64), sc.const(high, I64)
    return made(b, lambda point: sc.apply("randint64", seed, number_of(flat_position(point, shape)), *limits))


@lowers("aten.randperm.default", "aten.randperm.generator")
def randperm(b: Builder, count: int, *, generator: Any = None, **_: Any) -> Tensor:
    """Returns the order of as many random numbers, of so many bits that equal ones do not happen."""
    refuse_generator(generator)
    (size,) = sizes_of(b.fake.shape)
    seed = b.seed()
    limits = sc.const(0, I64), sc.const(1 << 62, I64)
    keys = b.loop((size,), I64, lambda point: sc.apply("randint64", seed, number_of(point[0]), *limits))
    return made(b, sorted_along(b, keys, 0)[1].at)


@lowers("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor")
def bernoulli(b: Builder, x: Tensor, p: Element | None = None, *, generator: Any = None) -> Tensor:
    """Returns 1 with probability ``p``, by default the elements of ``x``, else 0."""
    refuse_generator(generator)
    fake = b.fake
    shape = sizes_of(fake.shape)
    seed = b.seed()
    chance: Element = x if p is None else p
    dtype = chance.dtype.compute if isinstance(chance, Tensor) and chance.dtype.is_float else F32

    def body(point: Point) -> Scalar:
        number = sc.apply("rand", seed, number_of(flat_position(point, shape)))
        limit = element_at(chance, shape, point, dtype)
        limit = required("probability", within(limit, 0.0, 1.0), limit)
        return lt(sc.cast(number, limit.dtype), limit)

    return made(b, body)


@lowers("aten.native_dropout.default")
def native_dropout(b: Builder, x: Tensor, p: float, train: bool | None) -> Lowered:
    """Returns the input with elements dropped and the rest scaled up, and the mask of what was kept."""
    fake, mask_fake = b.fake
    mask_type = dtype_of(mask_fake.dtype)
    if train is False or p == 0 or 0 in x.shape:
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
