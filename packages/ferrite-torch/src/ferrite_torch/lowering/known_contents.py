"""What is plain of the elements of a tensor from how it was made."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import Definition, Loop
from ferrite_ir.language.index import Index
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.tensors import Tensor, grid_dims


def uniform(definitions: Sequence[Definition], tensor: Tensor) -> Scalar | None:
    """Returns the scalar that every element of a tensor is, where that is plain from how it was made."""
    made = {d.results[0].name: d for d in definitions if isinstance(d, Loop)}
    name = tensor.value.name
    casts: list[DType] = []
    while name in made:
        body = made[name].bodies[0]
        while body.op in CONVERSIONS:
            casts.append(body.dtype)
            body = body.args[0]
        if not body.loads and not body.dims:
            return functools.reduce(sc.cast, reversed(casts), body)
        if body.op != "load":
            return None
        name = body.source
    return None


def ramp(definitions: Sequence[Definition], tensor: Tensor) -> Index | None:
    """Returns the index expression that the elements of a tensor are, where that is plain from how it was made."""
    made = {d.results[0].name: d for d in definitions if isinstance(d, Loop)}.get(tensor.value.name)
    if made is None or not tensor.is_whole:
        return None
    body = made.bodies[0]
    while body.op == "cast" and body.dtype.is_integer:
        body = body.args[0]
    return body.args[0] if body.op == "index" and made.dims == grid_dims(tensor.shape) else None
