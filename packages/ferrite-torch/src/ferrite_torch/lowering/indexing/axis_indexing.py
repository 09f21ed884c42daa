"""Reads and writes at positions along one axis, in a flat tensor, or by strides.

An index tensor names the positions along an axis; ``take``, ``put`` and ``index_fill`` count negative ones from the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I64
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import Element, element_at, refuse_opaque
from ferrite_torch.lowering.expressions import add, choose, eq, mul, number_of
from ferrite_torch.lowering.indexing.stores import Stores, accumulated, index_at, overwritten, reduced_into
from ferrite_torch.lowering.known_contents import uniform
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import in_bounds, inside, required
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.views import axis_of, point_at, replaced, reshaped
from ferrite_torch.lowering.tensors import Point, Tensor, is_dense
from ferrite_torch.sizes.symbolic_sizes import sizes_of, steps_of


@lowers("aten.index_select.default")
def index_select(b: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    if x.ndim == 0:
        first = (ix.constant(0),) * index.ndim  # of a number one number is selected
        return made(b, lambda point: _read(b, x, (), [index_at(b, index, first, 1)]))
    axis = axis_of(dim, x.ndim)

    def body(point: Point) -> Scalar:
        named = index_at(b, index, point[axis : axis + index.ndim], x.shape[axis])
        return _read(b, x, replaced(point, axis, named))

    return made(b, body)


def _read(b: Builder, x: Tensor, point: Point, also: Sequence[Index] = ()) -> Scalar:
    """Returns an element at positions that were looked up, and ``also`` at those that a tensor without dims has not."""
    return in_bounds(b, x.at(point), (*point, *also))


@lowers("aten.gather.default")
def gather(b: Builder, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    refuse_opaque(x.dtype)
    if index.numel == 0:  # an empty index may be of any rank
        return made(b, lambda point: sc.const(0, x.dtype.compute))
    if x.ndim == 0:
        return made(b, lambda point: _read(b, x, (), [index_at(b, index, point[: index.ndim], 1)]))
    return made(b, lambda point: _read(b, x, _along(b, x, dim, index, point)))


def _along(b: Builder, x: Tensor, dim: int, index: Tensor, point: Point) -> Point:
    """Returns the point of ``x`` for a point of ``index``, which names the position along one axis."""
    axis = axis_of(dim, x.ndim)
    found = index_at(b, index, point, x.shape[axis])
    return replaced(point, axis, found) if point else (found,)


@lowers("aten.take.default")
def take(b: Builder, x: Tensor, index: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    flat = reshaped(x, (x.numel,))
    return made(b, lambda point: _read(b, flat, (index_at(b, index, point, x.numel, wraps=True),)))


_Rule = TypeVar("_Rule", bound=Callable[..., Tensor])


def _of_one_element(rule: _Rule) -> _Rule:
    """Returns a rule for an operand without dims as well, which stands for one of one element."""

    @wraps(rule)
    def lowered(b: Builder, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.ndim:
            return rule(b, x, *args, **kwargs)
        return rule(b, b.fresh_copy(reshaped(x, (1,))), *args, **kwargs).viewed((), lambda _: [ix.constant(0)])

    return lowered  # type: ignore[return-value]


@lowers("aten.scatter.src", "aten.scatter.value")
@_of_one_element
def scatter(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element) -> Tensor:
    constant = _constant_base(b, x, dim, index)
    if constant is not None:
        return _compared(b, x, dim, index, lambda point: _source_at(source, x, point), constant)

    def body(point: Point) -> Scalar:
        return _source_at(source, x, point)

    return overwritten(b, x, index.shape, lambda point: _along(b, x, dim, index, point), body, source)


def _source_at(source: Element, x: Tensor, point: Point) -> Scalar:
    """Returns the element of a source that may be longer than the index, or have no dims for one."""
    if isinstance(source, Tensor):
        return sc.cast(source.at(point[: source.ndim] if source.ndim else ()), x.dtype.compute)
    return element_at(source, (), (), x.dtype.compute)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
@_of_one_element
def scatter_with(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element, *, reduce: str) -> Tensor:
    return _combined(b, x, dim, index, source, {"add": "sum", "multiply": "prod"}.get(reduce, reduce))


def _constant_base(b: Builder, x: Tensor, dim: int, index: Tensor) -> Scalar | None:
    """Returns the number that ``x`` holds everywhere, if it does and one element at most is stored along ``dim``."""
    if 0 in x.shape:
        return None
    axis = axis_of(dim, x.ndim)
    if index.shape != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        return None
    refuse_opaque(x.dtype)
    return uniform(b.definitions, x)


def _compared(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Callable[[Point], Scalar], constant: Scalar
) -> Tensor:
    """Returns what a scatter of one element along ``dim`` into a constant gives: each element asks whether it is it.

    The result fuses with what reads it, and need not be in memory: the gradient of a cross entropy is such a scatter.
    """
    axis, base = axis_of(dim, x.ndim), sc.cast(constant, x.dtype.compute)

    def body(point: Point) -> Scalar:
        origin = replaced(point, axis, ix.constant(0))
        named = sc.cast(index.at(origin), I64)
        found = eq(required("index", inside(named, x.shape[axis], wraps=False), named), number_of(point[axis]))
        return choose(found, sc.cast(source(origin), x.dtype.compute), base)

    return b.loop(x.shape, x.dtype, body)


@lowers("aten.scatter_add.default")
@_of_one_element
def scatter_add(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    constant = _constant_base(b, x, dim, index)
    if constant is not None and x.dtype is not BOOL:
        start = sc.cast(constant, x.dtype.compute)
        return _compared(b, x, dim, index, lambda point: add(start, _source_at(source, x, point)), constant)
    return _combined(b, x, dim, index, source, "sum")


def _combined(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element, reduce: str) -> Tensor:
    return reduced_into(b, x, reduce, _scattered(b, x, dim, index, source), includes_self=True)


def _scattered(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element) -> Stores:
    return Stores(
        index.shape, lambda point: _along(b, x, dim, index, point), lambda point: _source_at(source, x, point)
    )


@lowers("aten.scatter_reduce.two")
@_of_one_element
def scatter_reduce(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return reduced_into(b, x, reduce, _scattered(b, x, dim, index, source), includes_self=include_self)


@lowers("aten.index_reduce.default")
@_of_one_element
def index_reduce(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    stores = Stores(
        source.shape,
        lambda point: _rows(b, x, dim, index, point),
        lambda point: sc.cast(source.at(point), x.dtype.compute),
    )
    return reduced_into(b, x, reduce, stores, includes_self=include_self)


@lowers("aten.index_add.default")
@_of_one_element
def index_add(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    def body(point: Point) -> Scalar:
        value = sc.cast(source.at(point[: source.ndim]), x.dtype.compute)
        return value if alpha == 1 else mul(value, alpha)

    return accumulated(b, x, "add", source.shape, lambda point: _rows(b, x, dim, index, point), body)


def _rows(b: Builder, x: Tensor, dim: int, index: Tensor, point: Point) -> Point:
    """Returns the point of ``x`` for a point of a source whose position along an axis is looked up in ``index``."""
    axis = axis_of(dim, x.ndim)
    if not point:
        return (index_at(b, index, (ix.constant(0),) * index.ndim, x.shape[axis]),)
    return replaced(point, axis, index_at(b, index, point[axis : axis + index.ndim], x.shape[axis]))


@lowers("aten.index_copy.default")
@_of_one_element
def index_copy(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return overwritten(
        b,
        x,
        source.shape,
        lambda point: _rows(b, x, dim, index, point),
        lambda point: sc.cast(source.at(point), x.dtype.compute),
        source,
    )


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
@_of_one_element
def index_fill(b: Builder, x: Tensor, dim: int, index: Tensor, value: Element) -> Tensor:
    axis = axis_of(dim, x.ndim)
    shape = (*x.shape[:axis], index.numel, *x.shape[axis + 1 :])

    def indices(point: Point) -> Point:
        return replaced(point, axis, index_at(b, index, point[axis : axis + index.ndim], x.shape[axis], wraps=True))

    return overwritten(b, x, shape, indices, lambda point: element_at(value, shape, point, x.dtype.compute), value)


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    b: Builder, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Tensor:
    """Returns ``x`` with the elements at strided positions of its storage replaced.

    Raises:
        Unlowered: ``x`` is not packed in memory, or does not hold all of these positions.
    """
    fake = b.node.args[0].meta["val"]
    shape, strides = sizes_of(size), sizes_of(stride)
    kind = TensorType(x.dtype, x.shape, steps_of(fake))
    own = int(fake.storage_offset())
    start = (own if storage_offset is None else int(storage_offset)) - own
    reach = start + sum(max(length - 1, 0) * step for length, step in zip(shape, strides, strict=True))
    if not is_dense(kind) or start < 0 or reach >= max(x.numel, 1):
        raise Unlowered("as_strided_scatter beyond the elements of its operand")
    return overwritten(
        b,
        x,
        shape,
        lambda point: point_at(ix.linearize(point, strides) + start, kind),
        lambda point: element_at(source, shape, point, x.dtype.compute),
        source,
    )


@lowers("aten.put.default")
@_of_one_element
def put(b: Builder, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Returns a tensor with elements at flat positions replaced, or added to; negative positions count from the end."""
    values = reshaped(source, index.shape)

    def where(point: Point) -> Point:
        return ix.delinearize(index_at(b, index, point, x.numel, wraps=True), x.shape)

    def body(point: Point) -> Scalar:
        return sc.cast(values.at(point), x.dtype.compute)

    if accumulate:
        return accumulated(b, x, "add", index.shape, where, body)
    return overwritten(b, x, index.shape, where, body, source)
