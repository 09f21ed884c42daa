"""Kernels over the tensors of a list: one that goes through whole tensors, point by point, does so for any size.

```text
 p: f32[30522, 128] = loop [x0 < 3906816] exp(a[x0 // 128, x0 % 128])
 p: f32[768]        = loop [x0 < 768]     exp(a[x0])                     both:  p: f32[n] = loop [x0 < n] exp(a[x0])
```

Tensors whose elements are numbered in memory as the points of the kernel are may have any shape. Others are read at one
place, such as a factor of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ferrite_ir.language.graph import Computed, Loop, Update, Value, bodies_of, names_read
from ferrite_ir.language.index import Dim, Index, linearize
from ferrite_ir.language.scalar import Scalar, load, postorder, replace_loads
from ferrite_ir.language.size_polynomials import symbol
from ferrite_ir.language.sizes import Size, is_static
from ferrite_ir.language.values import TensorType
from ferrite_ir.passes.rewriting import map_scalars

from .axes import Axis
from .forms import Combo, Pointwise
from .identity import without_names
from .schedule import Kernel

KINDS = (Loop, Update)
"""Definitions that may be over whole tensors; what is annotated is not."""
ANY_SIZE = symbol("elements")


def single_members(kernel: Kernel) -> tuple[Kernel, ...]:
    """Returns the kernels that share a launch, the parts of combos of equal spaces among them each as one of its own.

    Params of pointwise ones stand in the order in which they are named: kernels that are alike then have them in one.
    """
    return tuple(single for member in kernel.members for single in _singles(member))


def _singles(kernel: Kernel) -> Iterator[Kernel]:
    if not isinstance(kernel.form, Pointwise | Combo):
        yield kernel
        return
    params = {param.name: param for param in kernel.params}
    for body in kernel.parts:
        made = {result.name: None for definition in body for result in definition.results}
        named = dict.fromkeys(name for definition in body for name in names_read(definition)) | made
        yield replace(
            kernel,
            form=Pointwise(),
            body=body,
            homes={name: home for name, home in kernel.homes.items() if name in made},
            stored=tuple(name for name in kernel.stored if name in made),
            params=tuple(params[name] for name in named if name in params),
        )


def as_written(kernel: Kernel, divisor: int = 1) -> Kernel:
    """Returns a kernel without what one text of several leaves open: names, and the size of tensors that may have any.

    What is left of that size is a number that divides it.
    """
    return without_names(kernel if elements_of(kernel) is None else with_elements(kernel, ANY_SIZE * divisor))


def elements_of(kernel: Kernel) -> int | None:
    """Returns the number of points of a kernel over whole tensors, None of another kernel, or of symbolic size."""
    if not isinstance(kernel.form, Pointwise) or kernel.backwards or kernel.skip_guard or len(kernel.axes) != 1:
        return None
    (axis,) = kernel.axes
    if len(axis.dims) != 1 or not is_static(axis.size) or axis.size < 2:
        return None
    (dim,), types = axis.dims, _types(kernel)
    for definition in kernel.body:
        if type(definition) not in KINDS or definition.dims != axis.dims:
            return None
        if isinstance(definition, Update) and not _is_everywhere(
            definition.indices, types[definition.result.name], dim
        ):
            return None
        for node in postorder(bodies_of(definition)):
            if node.op == "index" or (node.op == "load" and not _is_plain(node, types, dim)):
                return None
    if not all(_is_everywhere(home, types[name], dim) for name, home in kernel.homes.items()):
        return None
    return int(axis.size)


def with_elements(kernel: Kernel, size: Size) -> Kernel:
    """Returns a kernel over whole tensors, as `elements_of` tells, for tensors of another number of elements."""
    dim = Dim("x0", size)
    memo: dict[Scalar, Scalar] = {}

    def moved(node: Scalar) -> Scalar | None:
        return load(node.source, (dim.index,), node.dtype) if node.dims else None

    def of_size(kind: TensorType, *, whole: bool = True) -> TensorType:
        return TensorType(kind.dtype, (size,), device=kind.device) if whole else kind

    body: list[Computed] = []
    for definition in kernel.body:
        changed = map_scalars(definition, lambda root: replace_loads(root, moved, memo), lambda _: dim.index)
        assert isinstance(changed, KINDS), "only such are over whole tensors"
        if isinstance(changed, Update):
            result = Value(changed.result.name, of_size(changed.result.type))
            body.append(replace(changed, result=result, dims=(dim,), indices=(dim.index,)))
        else:
            results = tuple(Value(value.name, of_size(value.type)) for value in changed.results)
            body.append(replace(changed, results=results, dims=(dim,)))
    whole = {load.source for d in kernel.body for root in bodies_of(d) for load in root.loads if load.dims}
    whole.update(kernel.homes)
    whole.update(definition.target for definition in kernel.body if isinstance(definition, Update))
    return replace(
        kernel,
        axes=(Axis(kernel.axes[0].name, (dim,)),),
        body=tuple(body),
        homes=dict.fromkeys(kernel.homes, (dim.index,)),
        params=tuple(replace(p, type=of_size(p.type, whole=p.name in whole)) for p in kernel.params),
    )


def _types(kernel: Kernel) -> dict[str, TensorType]:
    """Returns the types of the values of a kernel by name."""
    types = {result.name: result.type for definition in kernel.body for result in definition.results}
    types |= {d.target: d.result.type for d in kernel.body if isinstance(d, Update)}
    return types | {param.name: param.type for param in kernel.params}


def _is_everywhere(indices: tuple[Index, ...], kind: TensorType, dim: Dim) -> bool:
    """Returns whether the elements at these indices are all of a tensor, in the order of memory."""
    return kind.numel == kind.storage_size == dim.size and linearize(indices, kind.strides) == dim.index


def _is_plain(node: Scalar, types: dict[str, TensorType], dim: Dim) -> bool:
    """Returns whether a load is of one element, the same everywhere, or of all elements in their order."""
    kind = types[node.source]
    if not node.dims:
        return not any(index.is_indirect for index in node.indices)
    return _is_everywhere(node.indices, kind, dim)
