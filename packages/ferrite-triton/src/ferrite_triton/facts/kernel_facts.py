"""Numbers about a kernel that config policies and reports use."""

from __future__ import annotations

from math import prod
from typing import Any

from ferrite_ir.language.graph import Contract, Reduction, Update, bodies_of
from ferrite_ir.language.ops import OPS, RANDOM
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import hint
from ferrite_scheduler.model.annotations import SortedScatter
from ferrite_scheduler.model.contractions import uses_tensor_cores
from ferrite_scheduler.model.forms import RowColumnReduction, TiledContraction
from ferrite_triton.analysis.accesses import (
    Access,
    contiguous_axis,
    is_noncoalesced,
    is_transposed,
    percent_apart,
    shortest_run,
    touched_elements,
)
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.lane_groups import rows_together
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import REDUCTION_AXES, Space
from ferrite_triton.analysis.update_targets import needs_atomics
from ferrite_triton.facts.liveness import live_tiles
from ferrite_triton.tile.language import (
    Call,
    For,
    TileProgram,
    expressions_of,
)


def collect_facts(flat: FlatKernel, accesses: tuple[Access, ...], program: TileProgram) -> dict[str, Any]:
    """Returns the facts of a kernel that a tile program carries out."""
    nodes = list(postorder(body for definition in flat.definitions for body in bodies_of(definition)))
    operations = [node for node in nodes if node.op in OPS]
    points = prod(hint(axis.size) for axis in flat.space.axes)
    draws = LOWERING.quartet_share if draws_quartets(program) else 1.0
    costs = {node: OPS[node.op].cost * (draws if node.op in RANDOM else 1.0) for node in operations}
    tensors = [access for access in accesses if not access.param.param.host_scalar]
    facts: dict[str, Any] = {
        "loads": len({access.param.text for access in tensors if not access.writes}),
        "stores": len({access.param.text for access in tensors if access.writes}),
        "reductions": sum(isinstance(definition, Reduction) for definition in flat.definitions),
        "ops": len(operations),
        "flops": int(sum(cost * points_of(flat.space, node) for node, cost in costs.items())),
        "bytes": traffic(flat, tensors),
        "element_bytes": max((access.param.dtype.bytes for access in tensors), default=1),
        "contiguous_axis": contiguous_axis(flat, accesses),
        "transposed": is_transposed(flat, accesses),
        "numel": points // max(1, hint(flat.space.reduction_size)),
        "atomics": any(isinstance(d, Update) and needs_atomics(flat, d) for d in flat.definitions),
        "random": any(node.op in RANDOM for node in operations),
    }
    facts |= where_neighbours_end(flat, accesses)
    if flat.space.reduction is not None:
        facts["reduction_size"] = hint(flat.space.reduction_size)
        facts["live_values"] = live_tiles(flat.space, program)
        if flat.space.row_per_thread:
            facts["row_per_thread"] = True
        if vectors := count_vectors(accesses):
            facts["vectors"] = vectors
    elif vectors := count_columns(accesses, facts["contiguous_axis"]):
        facts["vectors"] = vectors
    if flat.space.splits:
        tiles = flat.space.register_tiles
        facts |= {"splits": flat.space.splits} | ({"register_tiles": tiles} if tiles > 1 else {})
    if any(isinstance(definition, SortedScatter) for definition in flat.definitions):
        facts["sorted"] = True
    if flat.space.parts > 1:
        facts["parts"] = flat.space.parts
    facts |= product_facts(flat)
    if isinstance(flat.space.form, RowColumnReduction):
        facts["chunk"] = hint(flat.space.chunk_length)
    if flat.space.loops:
        facts["passes"] = count_loops(program)
    if (rows := rows_together(flat)) > 1:
        facts["rows_together"] = rows
    return facts


def product_facts(flat: FlatKernel) -> dict[str, Any]:
    """Returns the facts about products of matrices; without such, nothing."""
    products = sum(isinstance(definition, Contract) for definition in flat.definitions)
    if isinstance(flat.kernel.form, TiledContraction):
        return {"product": products, **factor_bytes(flat)}
    if uses_tensor_cores(flat.kernel.body):
        return {"product": products}
    if products:
        return {"multiplied_rows": next(hint(axis.size) for axis in flat.space.axes if axis.name == "y")}
    return {}


def factor_bytes(flat: FlatKernel) -> dict[str, int]:
    """Returns the bytes that a point of a tile of either side's factors is loaded with, those of all products."""
    contractions = [definition for definition in flat.definitions if isinstance(definition, Contract)]
    sides = {"left_bytes": [d.left for d in contractions], "right_bytes": [d.right for d in contractions]}
    return {
        name: sum(load.dtype.bytes for load in memory_loads(flat, tuple(roots)) if len(load.dims) > 1)
        for name, roots in sides.items()
    }


def where_neighbours_end(flat: FlatKernel, accesses: tuple[Access, ...]) -> dict[str, Any]:
    """Returns the facts about places that lie next to each other for a while, or not at all; without such, nothing."""
    facts: dict[str, Any] = {}
    if (run := shortest_run(flat, accesses)) is not None:
        facts["neighbours"] = run
    if is_noncoalesced(flat, accesses):
        facts["noncoalesced"] = True
    if flat.space.reduction is None and (percent := percent_apart(flat, accesses)):
        facts["percent_apart"] = percent
    return facts


def points_of(space: Space, node: Scalar) -> int:
    """Returns at how many points an expression has values of its own: what varies along rows alone is computed once."""
    along = {dim.name for dim in node.dims}
    return prod(hint(axis.size) for axis in space.axes if axis.name in along)


def count_vectors(accesses: tuple[Access, ...]) -> int:
    """Returns how many vectors each row of a matrix is reduced with; 0 where what is stored are no reductions."""
    along = [access for access in accesses if "r" in access.axes]
    if any(access.writes for access in along) or all(access.axes <= REDUCTION_AXES for access in along):
        return 0
    return len({access.param.text for access in along if access.axes <= REDUCTION_AXES})


def count_columns(accesses: tuple[Access, ...], contiguous: str | None) -> int:
    """Returns how many vectors the rows of a matrix are combined with; 0 where all that is read are vectors."""
    read = [access for access in accesses if not access.writes]
    if contiguous is None or all(len(access.axes) <= 1 for access in accesses):
        return 0
    return len({access.param.text for access in read if access.axes == {contiguous}})


def traffic(flat: FlatKernel, accesses: list[Access]) -> int:
    """Returns the bytes that one launch must move: for each parameter what its reads and its writes touch.

    Those of several places, such as the halves of rows, add up until they are all that there is.
    """
    touched: dict[tuple[str, bool], int] = {}
    for access in accesses:
        key = access.param.text, access.writes
        elements = touched.get(key, 0) + touched_elements(flat, access)
        touched[key] = min(elements, max(access.param.elements, 0))
    widths = {access.param.text: access.param.dtype.bytes for access in accesses}
    return sum(elements * widths[param] for (param, _), elements in touched.items())


def draws_quartets(program: TileProgram) -> bool:
    """Returns whether random numbers of a program come four from a draw."""
    return any(isinstance(each, Call) and each.function == "rand4" for each in expressions_of(program.body))


def count_loops(program: TileProgram) -> int:
    """Returns how many loops a program runs through: how often it goes along the reduction axis."""
    return sum(isinstance(statement, For) for statement in program.body)
