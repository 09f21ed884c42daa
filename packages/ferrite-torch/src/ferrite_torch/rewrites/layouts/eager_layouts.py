"""Ops whose results torch's fake tensors lay out otherwise than its kernels do, and how the kernels lay them out.

A fake kernel that is a decomposition has the layout of the last of its pieces: ``copysign(a, b)`` ends in
``where(b < 0, …)``, so a transposed ``b`` wins over a contiguous ``a``. The kernel is one ``TensorIterator``, where the
first operand that tells an order of the axes wins. Users see strides, and views depend on them, so the result is put
into the kernel's layout where it is traced; the copy fuses with what makes it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, TypeAlias

import torch

from ferrite_torch.rewrites.layouts.channels_last import CHANNELS_LAST, is_contiguous, is_like_channels_last
from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_known

Order: TypeAlias = "list[int] | None"
"""Axes from the outermost to the innermost in memory; None leaves a result as it lies."""

Rule: TypeAlias = Callable[[torch.Tensor, Sequence[Any]], Order]
"""From a result and the positional arguments of the op to the order of the result's axes."""


def _operands(args: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in args if isinstance(value, torch.Tensor)]


def iterated(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order in which a ``TensorIterator`` lays out its result.

    Axes are sorted by insertion, innermost first; the first operand that is broadcast along neither of two axes
    decides between them by its strides, or, where these are equal, by their extents if those say to swap.
    """
    return _sorted(result.shape, _steps_of(_operands(args), result.shape))


def _steps_of(operands: Sequence[torch.Tensor], shape: Sequence[Any]) -> list[list[Any]]:
    """Returns the strides by which a ``TensorIterator`` goes over operands that are broadcast to a shape.

    On the CPU it converts those of other types than the common one first: a copy of an operand that is expanded is
    dense, its axes sorted as it sorts them.
    """
    is_choice = len(operands) == 3 and operands[0].dtype is torch.bool  # whose condition is not converted
    common = _common_type(operands[is_choice:])
    found = []
    for number, operand in enumerate(operands):
        strides: Sequence[Any] = operand.stride()
        is_converted = number >= is_choice and operand.device.type == "cpu" and operand.dtype is not common
        if common is not None and is_converted and any(is_known(step == 0) for step in strides):
            strides = _dense(operand.shape, _sorted(operand.shape, [strides]))
        found.append(_expanded(operand.shape, strides, shape))
    return found


def _common_type(operands: Sequence[torch.Tensor]) -> torch.dtype | None:
    """Returns the type that operands are converted to; None for such as torch does not convert, unsigned ones."""
    try:
        return functools.reduce(torch.promote_types, [operand.dtype for operand in operands])
    except RuntimeError:
        return None


def _dense(shape: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Returns the strides of a dense tensor whose axes lie in this order, the outermost first."""
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return strides


def _sorted(shape: Sequence[Any], steps: Sequence[Sequence[Any]]) -> list[int]:
    """Returns the axes of a shape from the outermost to the innermost, as the strides of operands tell."""
    order = list(reversed(range(len(shape))))
    for position in range(1, len(order)):
        moving = position
        for other in reversed(range(position)):
            verdict = _compared(order[other], order[moving], steps, shape)
            if verdict < 0:
                break
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return order[::-1]


def _expanded(shape: Sequence[Any], strides: Sequence[Any], whole: Sequence[Any]) -> list[Any]:
    """Returns the strides of an operand that is broadcast to a whole shape: 0 where that is longer, and only there."""
    missing = len(whole) - len(shape)
    ends = zip(shape, strides, whole[missing:], strict=True)
    steps = [0 if is_known(size == 1) and not is_known(end == 1) else step for size, step, end in ends]
    return [0] * missing + steps


def _compared(inner: int, outer: int, steps: Sequence[Sequence[Any]], shape: Sequence[Any]) -> int:
    """Returns 1 if two axes are to be swapped, -1 if they are to stay, 0 if nothing tells."""
    for each in steps:
        a, b = each[inner], each[outer]
        if is_known(a == 0) or is_known(b == 0):
            continue
        if is_known(a == b):
            if is_known(shape[inner] > shape[outer]):
                return 1
        elif _is_at_least(b, a):
            return -1
        elif _is_at_least(a, b):
            return 1
    return 0


def _is_at_least(a: Any, b: Any) -> bool:
    return is_known(a >= b) or is_known(a % b == 0)


def iterated_strides(shape: Sequence[int], operands: Sequence[torch.Tensor], *, is_alone: bool) -> tuple[int, ...]:
    """Returns the strides that a ``TensorIterator`` gives its result, of dims of one element and empty ones, too.

    Args:
        shape: of the result.
        operands: tensors that it goes over.
        is_alone: whether no number is an operand as well, which counts as a tensor of another shape.
    """
    packed = tuple(_packed([max(size, 1) for size in shape]))
    if is_alone and all(operand.shape == shape for operand in operands):
        if all(operand.is_contiguous() for operand in operands):
            return packed
        layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
        layout = layouts.get(len(shape))
        if layout is not None and all(operand.is_contiguous(memory_format=layout) for operand in operands):
            return tuple(torch.empty(shape, device="meta").contiguous(memory_format=layout).stride())
        first = operands[0].stride()
        if all(operand.stride() == first for operand in operands) and is_packed_somehow(shape, first):
            return tuple(first)
    order = _sorted(shape, _steps_of(operands, shape))
    if order == list(range(len(shape))):
        return packed
    return tuple(_dense(shape, order))


def is_packed_somehow(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether elements fill a stretch of memory, in any order of the dims."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, strides, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def iterated_backwards(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of a ``TensorIterator`` that takes the operands from the last to the first."""
    return iterated(result, args[::-1])


def _packed(shape: Sequence[Any]) -> list[Any]:
    """Returns the strides of a row-major tensor."""
    steps = list(accumulate(reversed(shape[1:]), operator.mul, initial=1))
    return steps[: len(shape)][::-1]


def iterated_with_power(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of ``x * 2**y``: what multiplies ``x`` is row-major, as powers of a number are."""
    *first, exponent = _operands(args)
    steps = [_expanded(operand.shape, operand.stride(), result.shape) for operand in first]
    power = _expanded(exponent.shape, _packed(exponent.shape), result.shape)
    return _sorted(result.shape, [*steps, power])


def as_first(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of a result allocated like the first operand; None for a result of another shape."""
    first = _operands(args)[0]
    if first.dim() != result.dim() or not all(map(is_known, map(_equal, first.shape, result.shape))):
        return None
    return iterated(result, [first])


def _equal(a: Any, b: Any) -> Any:
    return a == b


def row_major(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of the axes as they are numbered."""
    return list(range(result.dim()))


def row_major_on_cpu(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of the axes as they are numbered; other devices than CPUs keep that of their operands."""
    return row_major(result, args) if result.device.type == "cpu" else None


def by_format_on_cpu(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns channels-last order for an operand whose strides say so, else row-major; devices but CPUs are left.

    It need not be dense: a slice of channels lies as the whole does.
    """
    if result.device.type != "cpu":
        return None
    first = _operands(args)[0]
    is_last = first.dim() == result.dim() in CHANNELS_LAST and is_like_channels_last(first.shape, first.stride())
    return list(CHANNELS_LAST[first.dim()]) if is_last else row_major(result, args)


def normalised_on_cpu(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of a batch norm, which goes over what is contiguous in either way as it lies.

    Axes of one element do not count for that, and images of one element are row-major.
    """
    first = _operands(args)[0]
    if result.device.type == "cpu" and first.dim() == result.dim():
        if is_contiguous(first.shape, first.stride()):
            return row_major(result, args)
        if first.dim() in CHANNELS_LAST and is_contiguous(first.shape, first.stride(), CHANNELS_LAST[first.dim()]):
            return list(CHANNELS_LAST[first.dim()])
    return by_format_on_cpu(result, args)


def rolled_on_cpu(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of ``roll``, which joins two parts of its operand.

    Parts in channels-last order give a result in that order, but for a part without elements, which has no order.
    Without dims, what is rolled is the operand as a line.
    """
    x, shifts, dims = (*args, ())[:3]
    parts = zip(shifts, dims, strict=False)
    if dims and not any(is_known(shift % x.shape[dim] == 0) for shift, dim in parts if not is_known(x.shape[dim] == 0)):
        return by_format_on_cpu(result, args)
    return row_major_on_cpu(result, args)


def indexed(result: torch.Tensor, args: Sequence[Any]) -> Order:
    """Returns the order of what indices that are tensors take of one: a ``TensorIterator`` over it and the indices.

    The axes that indices replace do not count in the tensor. Of the others, those of one element count in the indices,
    which are viewed with such axes around their own, and the rest do not. Fake tensors leave the indices out. Masks
    have one axis each, which says nothing, and how long it is depends on data. A GPU's kernel has several indices lie
    alike: those that do not are made contiguous before.
    """
    source, indices = args[0], args[1]
    positions = [position for position, index in enumerate(indices) if index is not None]
    given = [indices[position] for position in positions]
    if result.device.type not in ("cpu", "cuda") or any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return None  # other devices keep the order of their fakes
    is_together = positions[-1] - positions[0] == len(positions) - 1
    width, first = max(index.dim() for index in given), positions[0] if is_together else 0
    axes = slice(first, first + width)
    kept = [step for position, step in enumerate(source.stride()) if position not in positions]
    steps = [*kept[:first], *[0] * width, *kept[first:]]
    common, behind = result.shape[axes], len(kept) - first
    own = [_among_ones(common, _as_taken(index, common), first, behind) for index in given]
    shape = [*[1] * first, *common, *[1] * behind]
    if result.device.type == "cuda" and not all(each == own[0] for each in own):
        own = [_packed(shape)]
    return _sorted(result.shape, [steps, *(_expanded(shape, each, result.shape) for each in own)])


def _as_taken(index: torch.Tensor, common: Sequence[Any]) -> Sequence[Any]:
    """Returns the strides of an index over the places that all name together, as the kernel gets it.

    One of fewer bits is expanded before it is converted, and is a dense tensor then.
    """
    steps = _expanded(index.shape, index.stride(), common)
    is_static = all(type(size) is int for size in (*index.shape, *index.stride(), *common))
    if index.dtype is torch.int64 or not is_static:
        return steps
    with without_modes():
        given = torch.empty_strided(tuple(index.shape), index.stride(), dtype=index.dtype, device="meta")
        return given.expand(tuple(common)).to(torch.int64).stride()


def _among_ones(shape: Sequence[Any], strides: Sequence[Any], before: int, behind: int) -> list[Any]:
    """Returns the strides of a tensor that is viewed with axes of one element before and behind its own.

    A view goes through axes that lie as one would, from the last on: what has one element gets the stride that an axis
    of more would have there.
    """
    new = [*[1] * before, *shape, *[1] * behind]
    steps: list[Any] = [0] * len(new)
    axis, base, elements, viewed = len(new) - 1, strides[-1] if strides else 1, 1, 1
    for own in reversed(range(len(shape))):
        elements = elements * shape[own]
        is_joined = own > 0 and (is_known(shape[own - 1] == 1) or is_known(strides[own - 1] == elements * base))
        if is_joined:
            continue
        while axis >= 0 and (axis >= before + own or is_known(new[axis] == 1)):
            steps[axis], viewed = viewed * base, viewed * new[axis]
            axis -= 1
        if own > 0:
            base, elements, viewed = strides[own - 1], 1, 1
    return steps


_NAMES: Mapping[Rule, str] = {
    indexed: "index.Tensor _unsafe_index.Tensor",
    iterated: """
        complex.default copysign.Tensor div.Tensor_mode floor_divide.default heaviside.default logaddexp.default
        logaddexp2.default logical_and.default logical_or.default logical_xor.default logit_backward.default
        native_dropout_backward.default polar.default special_xlog1py.default xlogy.Tensor
    """,
    iterated_with_power: "ldexp.Tensor",
    iterated_backwards: "threshold_backward.default",
    as_first: """
        binary_cross_entropy.default huber_loss.default index_fill.int_Scalar index_fill.int_Tensor
    """,
    row_major: """
        isin.Tensor_Tensor isin.Tensor_Scalar pow.Scalar rrelu_with_noise_functional.default
    """,
    row_major_on_cpu: "log_sigmoid_forward.default",
    normalised_on_cpu: """
        _native_batch_norm_legit.default _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional.default
        _native_batch_norm_legit_no_training.default _batch_norm_with_update_functional.default
        _batch_norm_no_update.default native_batch_norm.default
    """,
    by_format_on_cpu: """
        channel_shuffle.default native_channel_shuffle.default reflection_pad2d.default reflection_pad3d.default
        replication_pad2d.default replication_pad3d.default
    """,
    rolled_on_cpu: "roll.default",
}

_BROADCAST_NAMES = """
    __lshift__.Tensor __rshift__.Tensor add.Tensor addcdiv.default addcmul.default atan2.default bitwise_and.Tensor
    bitwise_left_shift.Tensor bitwise_or.Tensor bitwise_right_shift.Tensor bitwise_xor.Tensor clamp.Tensor
    clamp_max.Tensor clamp_min.Tensor div.Tensor eq.Tensor fmax.default fmin.default fmod.Tensor gcd.default ge.Tensor
    gt.Tensor hypot.default lcm.default le.Tensor lerp.Scalar lerp.Tensor lt.Tensor maximum.default minimum.default
    mul.Tensor ne.Tensor nextafter.default pow.Tensor_Tensor remainder.Tensor sub.Tensor where.self
"""
"""Ops that fake tensors lay out as their kernels do, but for broadcast results with axes of one element.

A kernel sorts such axes with the others, by strides that no element depends on; a fake tensor leaves them out.
"""


def laid_out_ops() -> Iterator[tuple[Overload, Rule]]:
    """Yields the ops whose results need a layout, each with its rule; those that this torch has."""
    for rule, names in _NAMES.items():
        for op in _found(names):
            yield op, rule


def broadcasting_ops() -> Iterator[Overload]:
    """Yields the ops whose results need the layout of `iterated` where `is_sorted_otherwise` says so."""
    yield from _found(_BROADCAST_NAMES)


_ALLOCATED_LIKE = frozenset(
    ("clone", "equal", "conj_physical", "deg2rad", "rad2deg", "frexp", "hardtanh", "relu6", "nan_to_num")
)
"""Ops that go element by element, and fill a result that was allocated like their operand, or make none."""


@functools.cache
def iterating_ops() -> tuple[Overload, ...]:
    """Returns the ops that allocate their results by a ``TensorIterator`` over tensors alone."""
    found = []
    for name in dir(torch.ops.aten):
        packet: Any = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            schema = schema_of(op)
            makes = not schema.is_mutable and all(result.alias_info is None for result in schema.returns)
            takes = schema.arguments and "Tensor" in str(schema.arguments[0].type)
            is_alone = "calar" not in overload or name in ("pow", "lerp", "masked_fill")  # no operand is a number
            if torch.Tag.pointwise in op.tags and makes and takes and is_alone and name not in _ALLOCATED_LIKE:
                found.append(op)
    return tuple(found)


def _found(names: str) -> Iterator[Overload]:
    for name in names.split():
        packet, overload = name.split(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if found is not None:
            yield found


def is_sorted_otherwise(args: Sequence[Any]) -> bool:
    """Returns whether operands are broadcast to a result with an axis of one element, and not all lie row by row."""
    operands = _operands(args)
    shapes = [tuple(operand.shape) for operand in operands]
    if all(_is_shape(shape, shapes[0]) for shape in shapes):
        return False
    whole = (1,) * max(map(len, shapes))
    padded = [(*whole[len(shape) :], *shape) for shape in shapes]
    if not any(all(type(size) is int and size == 1 for size in sizes) for sizes in zip(*padded, strict=True)):
        return False
    return not all(_is_packed(operand) for operand in operands)


def _is_shape(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Returns whether two shapes are known to be the same: sizes that depend on data are not compared."""
    return len(one) == len(other) and all(is_known(a == b) for a, b in zip(one, other, strict=True))


def _is_packed(x: torch.Tensor) -> bool:
    return all(is_known(a == b) for a, b in zip(x.stride(), _packed(x.shape), strict=True))


def of_packed_operands(op: Overload, pieces: Callable[..., Any] | None) -> Callable[..., Any]:
    """Returns a decomposition that has axes of one element lie as in a row-major tensor, if operands else lie so.

    A ``TensorIterator`` whose operands are tensors of one shape, row by row, allocates a row-major result. A fake
    tensor keeps the strides of axes of one element, and the next op that broadcasts the result sorts its axes by them.
    Other operands are left to ``pieces``. An op in place, which writes to what lies as it does, is traced as the op
    that makes a result: so this is for graphs without such.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        operands = _operands(args)
        if any(map(_has_free_strides, operands)) and _is_alone(op, args) and all(map(_goes_by_rows, operands)):
            return op(*(_repacked(x) if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        return NotImplemented if pieces is None else pieces(*args, **kwargs)

    return decomposed


def _is_alone(op: Overload, args: Sequence[Any]) -> bool:
    """Returns whether tensors of one static shape are all that an op goes over: no number stands for a tensor."""
    shapes = [operand.shape for operand in _operands(args)]
    declared = zip(schema_of(op).arguments, args, strict=False)
    numbers = [argument for argument, value in declared if not isinstance(value, torch.Tensor) and value is not None]
    is_number = any("Tensor" in str(argument.type) or argument.name == "other" for argument in numbers)
    return not is_number and all(_is_shape(shape, shapes[0]) for shape in shapes)


def _has_free_strides(x: torch.Tensor) -> bool:
    """Returns whether a tensor of static sizes has axes of one element, and not the strides of a row-major one."""
    shape, strides = x.shape, x.stride()
    return all(type(size) is int for size in (*shape, *strides)) and 1 in shape and list(strides) != _packed(shape)


def _goes_by_rows(x: torch.Tensor) -> bool:
    steps = zip(x.shape, x.stride(), _packed(x.shape), strict=True)
    return all(type(size) is int and (size == 1 or step == packed) for size, step, packed in steps)


def _repacked(x: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor that goes by rows, with the strides of a row-major one."""
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    view = x.squeeze(ones)
    for axis in ones:
        view = view.unsqueeze(axis)
    return view


_WITHIN: ContextVar[tuple[Overload, ...]] = ContextVar("ops whose layout is being seen to", default=())


def laid_out(
    op: Overload,
    rule: Rule,
    pieces: Callable[..., Any] | None,
    is_asked: Callable[[Sequence[Any]], bool] = lambda _: True,
) -> Callable[..., Any]:
    """Returns a decomposition of an op that gives its result the layout that the op's kernel gives it.

    The result is computed by ``pieces``, or where there are none by the op itself. Where ``is_asked`` says no of the
    positional arguments, it is left as it lies.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if op in _WITHIN.get():
            return NotImplemented
        if not is_asked(args):
            return NotImplemented if pieces is None else pieces(*args, **kwargs)
        token = _WITHIN.set((*_WITHIN.get(), op))
        try:
            results = (pieces or op)(*args, **kwargs)
        finally:
            _WITHIN.reset(token)
        if isinstance(results, torch.Tensor):
            return in_order(results, rule(results, args))
        if isinstance(results, (tuple, list)) and isinstance(results[0], torch.Tensor):
            first, *rest = results
            return (in_order(first, rule(first, args)), *rest)
        return results

    return decomposed


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Returns a tensor whose axes lie in memory in an order: itself, or a copy."""
    if order is None or x.dim() < 2:
        return x
    expected: Any = 1
    for axis in reversed(order):
        size = x.shape[axis]
        if not (is_known(size == 1) or is_known(x.stride(axis) == expected)):
            back = [order.index(axis) for axis in range(len(order))]
            return x.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
        expected = expected * size
    return x
