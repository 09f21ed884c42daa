"""Products with weights of eight bits that have a scale for each column: sums are scaled, not every weight.

Scaled first, each weight is converted to f32, multiplied, and rounded to the half type that tensor cores take. Weights
of eight bits are exact in that type: they can be multiplied as they are, and the sum, in f32, with what they have in
common. That rounds less than eager does, and converting eight bits to sixteen takes a fraction of the instructions: to
f32 it goes at a quarter of the rate of others, which alone is longer than the weights take to come. Products of f32 are
spared a multiplication for each weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Contract, Definition, Graph, Loop, TensorType
from ferrite_ir.language.scalar import Scalar, apply, cast, load
from ferrite_scheduler.model.contractions import CODES, FACTORS
from ferrite_scheduler.model.intermediates import new_value
from ferrite_scheduler.model.policy import Policy


def scale_sums(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such products of unscaled weights, and their sums scaled; the same object without any."""
    if not policy.scale_sums or not any(isinstance(definition, Contract) for definition in graph.definitions):
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    definitions = tuple(new for old in graph.definitions for new in _scaled_after(old, types))
    return replace(graph, definitions=definitions) if len(definitions) > len(graph.definitions) else graph


def _scaled_after(definition: Definition, types: dict[str, TensorType]) -> Iterator[Definition]:
    found = _parts(definition) if isinstance(definition, Contract) else None
    if found is None or not isinstance(definition, Contract):
        yield definition
        return
    codes, scale = found
    result = definition.result
    total = new_value(f"{result.name}_unscaled", result.type, types)
    yield replace(definition, result=total, right=cast(codes, definition.right.dtype))
    home = [dim.index for dim in definition.dims]
    yield Loop((result,), definition.dims, (apply("mul", load(total.name, home, F32), scale),), definition.origins)


def _parts(contract: Contract) -> tuple[Scalar, Scalar] | None:
    """Returns the weights of a product and their scale, if all of a column have one."""
    right = contract.right
    if contract.result.type.dtype is not F32 or right.dtype not in FACTORS:
        return None
    scaled = right.args[0] if right.op == "cast" else right
    if scaled.op != "mul" or scaled.dtype is not F32:
        return None
    for codes, scale in (scaled.args, scaled.args[::-1]):
        is_code = codes.op == "cast" and codes.args[0].dtype in CODES
        if is_code and scale.dims.isdisjoint((*contract.reduction_dims, *contract.locals)):
            return codes.args[0], scale
    return None
