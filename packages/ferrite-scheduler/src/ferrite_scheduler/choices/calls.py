"""What calls of torch's library for contractions share: factors as views that they read, and what becomes of results.

p = contract x[m, k] * w[n, k]        q = extern aten.mm.default(x, w.T)
p = loop cast.f32(q[m, n])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrite_ir.language.dtypes import F32, DType
from ferrite_ir.language.graph import (
    Argument,
    Contract,
    Definition,
    Extern,
    Graph,
    Loop,
    TensorType,
    Value,
    View,
    row_major,
    whole,
)
from ferrite_ir.language.index import Dim, linearize
from ferrite_ir.language.scalar import Scalar, cast, load
from ferrite_ir.language.sizes import hint


def product_name(name: str) -> str:
    """Returns the name of what the call for a contraction gives, before it becomes the contraction's own result."""
    return f"{name}_product"


def called_instead(
    contract: Contract,
    target: str,
    args: Sequence[Argument],
    dtype: DType,
    kwargs: tuple[tuple[str, Argument], ...] = (),
) -> Iterator[Definition]:
    """Yields a call in place of a contraction, and what it gives, in f32, under the contraction's name.

    Args:
        contract: the contraction.
        target: what is called.
        args: what it is called with.
        dtype: of what the call gives, which is dense.
        kwargs: what it is called with by name.
    """
    made = contract.result
    kind = TensorType(dtype, made.type.shape, row_major(made.type.shape), made.type.device)
    called = Value(product_name(made.name), kind)
    yield Extern((called,), target, tuple(args), kwargs, origins=contract.origins)
    element = cast(load(called.name, tuple(dim.index for dim in contract.dims), dtype), F32)
    yield Loop((made,), contract.dims, (element,), contract.origins)


def operand_view(side: Scalar, dims: Sequence[Dim], name: str, graph: Graph, before: list[Definition]) -> View:
    """Returns a factor as a view; appends what computes it to ``before`` where it does not lie in memory so."""
    view = strided_view(side, dims, graph)
    return computed(side, dims, name, before) if view is None else view


def computed(side: Scalar, dims: Sequence[Dim], name: str, before: list[Definition]) -> View:
    """Returns a factor as a value of its own, after appending what computes it to ``before``."""
    shape = tuple(dim.size for dim in dims)
    value = Value(name, TensorType(side.dtype, shape, row_major(shape), ""))
    before.append(Loop((value,), tuple(dims), (side,)))
    return whole(value)


def strided_view(side: Scalar, dims: Sequence[Dim], graph: Graph) -> View | None:
    """Returns a load as a strided view over some dims, None for anything else."""
    if side.op != "load":
        return None
    kind = graph.values[side.source].type
    offset = linearize(side.indices, kind.strides)
    steps = {atom: step for atom, step in offset.terms if isinstance(atom, Dim)}
    if len(steps) < len(offset.terms) or any(hint(step) < 0 for step in steps.values()) or not steps.keys() <= {*dims}:
        return None
    shape = tuple(dim.size for dim in dims)
    return View(side.source, kind.dtype, shape, tuple(steps.get(dim, 0) for dim in dims), offset.const)
