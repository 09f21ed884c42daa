"""One kernel with a form and axes of its own: ways to write it, its tile program, its Triton text and its spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ferrite_ir.language.combine_functions import combine_name
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Attend, Contract, Loop, Reduction, Scan, Update, bodies_of
from ferrite_ir.language.ops import OPS
from ferrite_ir.language.scalar import postorder
from ferrite_ir.language.sizes import Size, floordiv, hint, is_static
from ferrite_scheduler.model.contractions import fits_axes
from ferrite_scheduler.model.forms import (
    Attention,
    Combo,
    GridReduction,
    LookBackScan,
    LoopedReduction,
    Pointwise,
    RegisterNorm,
    RowColumnReduction,
    TiledContraction,
)
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.versions import persistent_version
from ferrite_triton.analysis.accesses import (
    Access,
    Condition,
    contiguous_axis,
    find_accesses,
    is_noncoalesced,
    narrow_conditions,
)
from ferrite_triton.analysis.attention_space import attention_space
from ferrite_triton.analysis.contraction_space import contraction_space, with_descriptors
from ferrite_triton.analysis.described_blocks import described_blocks
from ferrite_triton.analysis.flat import FlatKernel, KernelParam, flatten
from ferrite_triton.analysis.lane_groups import needed_multiple
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.packed_residency import holds_only_16_bit
from ferrite_triton.analysis.peeling import misalignment_of
from ferrite_triton.analysis.row_per_thread import has_row_per_thread
from ferrite_triton.analysis.size_params import SizeParams
from ferrite_triton.analysis.space import (
    DESCRIPTORS_AXIS,
    NO_AXES,
    ROUNDS_AXIS,
    KernelAxis,
    Space,
    build_space,
    in_register_tiles,
    row_per_thread_space,
)
from ferrite_triton.analysis.traversal import InBlocks
from ferrite_triton.analysis.update_targets import needs_atomics
from ferrite_triton.bodies.body import KernelBody, overwrites_operands
from ferrite_triton.bodies.builder import Builder
from ferrite_triton.bodies.grid import place_program
from ferrite_triton.bodies.grid_reductions import REGISTERS, REGISTERS_OF_16_BIT
from ferrite_triton.bodies.indices import index_dtype
from ferrite_triton.bodies.register_norms import THREADS, register_tiles_of, registers_of
from ferrite_triton.bodies.scans import (
    REGISTER_TILES,
    TILES_REGISTERS,
    holds_register_tiles,
    look_back_scans,
    scans_serially,
)
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.facts.kernel_facts import collect_facts
from ferrite_triton.facts.records import KernelFacts
from ferrite_triton.host.scratch import DESCRIPTOR_BYTES
from ferrite_triton.host.spec import Expr, KernelSpec
from ferrite_triton.printing.kernel import print_kernel
from ferrite_triton.tile.language import AwaitPredecessor, TileType, Variable
from ferrite_triton.tile.passes.pipeline import run_passes
from ferrite_triton.tile.statements import TileProgram

SCRATCH = "scratch"
"""The param that the compiler's scratch memory is the memory of; no statement names it."""
ALIGNMENT = 16


def ways_of(kernel: Kernel) -> list[Way]:
    """Returns the ways to write a kernel, the best first; the last one is right for all sizes.

    Raises:
        UnsupportedDefinition: something in the body has no kernel text.
        ScheduleMismatch: the kernel breaks the iteration model of the schedule.
    """
    forms: list[Way] = []
    least = 0
    flat, accesses = _flattened(kernel)
    conditions = narrow_conditions(flat, accesses)
    limit = kernel.form.persistent_up_to if isinstance(kernel.form, LoopedReduction) else 0
    if limit and kernel.reduction is not None:
        held = _flattened(persistent_version(kernel))
        own = narrow_conditions(*held)
        if own is not None:
            forms.append(Way(((kernel.reduction.size, limit), *own), *held, 32))
            least = limit + 1 if conditions is not None and set(own) <= set(conditions) else 0
    if conditions is not None:
        forms += _looped_ways(replace(flat, space=replace(flat.space, least=least)), accesses, conditions)
    if conditions is None or conditions:
        forms.append(Way((), flat, accesses, 64))
    return forms


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write a kernel: what it needs to hold, the kernel, and the width of its addresses."""

    conditions: tuple[Condition, ...]
    flat: FlatKernel
    accesses: tuple[Access, ...]
    width: int


def _looped_ways(flat: FlatKernel, accesses: tuple[Access, ...], conditions: tuple[Condition, ...]) -> Iterator[Way]:
    """Yields the forms with 32-bit addresses: first that for rows all of which begin at multiples of a vector."""
    multiple, reduction = needed_multiple(flat), flat.space.reduction
    rest: Size = 1
    if multiple > 1 and reduction is not None:
        rest = reduction.size - floordiv(reduction.size, multiple) * multiple
        aligned = replace(flat, space=replace(flat.space, multiple=multiple))
        if rest == 0:
            yield Way(conditions, aligned, accesses, 32)
        elif not is_static(rest):
            yield Way(((rest, 0), *conditions), aligned, accesses, 32)
    if rest != 0:
        yield Way(conditions, flat, accesses, 32)


def _flattened(kernel: Kernel) -> tuple[FlatKernel, tuple[Access, ...]]:
    if not fits_axes(kernel.body, kernel.axes):
        raise UnsupportedDefinition(
            f"{kernel.name} holds a contraction that is not of half types or f32 with its rows on y, its columns on x; "
            "write it as a reduction of products"
        )
    if isinstance(kernel.form, Attention):
        flat = flatten(kernel, attention_space(kernel))
        return flat, find_accesses(flat)
    if isinstance(kernel.form, TiledContraction):
        flat = flatten(kernel, contraction_space(kernel))
        if not flat.space.inner and described_blocks(flat):
            flat = replace(flat, space=with_descriptors(flat.space))
        return flat, find_accesses(flat)
    space = build_space(kernel)
    flat = flatten(kernel, space)
    accesses = find_accesses(flat)
    is_across = space.reduces_tile and "y" not in space.order and contiguous_axis(flat, accesses) == "x"
    if is_across and not is_noncoalesced(flat, accesses):
        # Neighbouring threads take neighbouring x: the reduction axis, and its blocks, become the slow ones of the
        # tile.
        flat = replace(flat, space=build_space(kernel, ("b", "r", "x")))
        if scans_serially(flat):
            flat = replace(flat, space=replace(flat.space, traversal=InBlocks(LOWERING.column_neighbours)))
    if holds_register_tiles(flat):
        flat = replace(flat, space=in_register_tiles(flat.space, REGISTER_TILES))
    elif isinstance(kernel.form, RegisterNorm):
        flat = replace(flat, space=in_register_tiles(flat.space, register_tiles_of(flat)))
    if has_row_per_thread(flat, accesses):
        return replace(flat, space=row_per_thread_space(flat.space)), accesses
    misalignment = misalignment_of(flat)
    if misalignment is not None:
        flat = replace(flat, space=replace(flat.space, traversal=InBlocks(misalignment=misalignment)))
    return flat, accesses


def write(way: Way, params: SizeParams) -> KernelSpec:
    """Returns the spec of a kernel in one form, which takes all sizes named so far and names those that it needs."""
    flat, accesses, width = way.flat, way.accesses, way.width
    kernel = flat.kernel
    flat = with_params(flat, params)
    space = flat.space
    for axis in space.axes:
        params.expression(axis.size)  # the sizes of the axes get the first names
    program = tile_program(flat, width)
    source, name = assemble(flat, program)
    return KernelSpec(
        name=name,
        source=source,
        form=kernel.form.name,
        params=(*describe_params(flat), *describe_scratch(flat), *describe_sizes(params, width)),
        axes=tuple(describe_axis(axis, params, space.least if axis.is_reduction else 0) for axis in space.axes),
        blocks={axis.constant: axis.block for axis in _with_constants(space) if axis.block is not None},
        grid=grid_expression(space),
        mutated=mutated_params(flat),
        index_width=width,
        facts=facts_of(flat, accesses, program),
        origin=origin_texts(kernel),
        sizes=tuple(params.names),
    )


def with_params(flat: FlatKernel, params: SizeParams) -> FlatKernel:
    """Returns a kernel that takes its sizes by these params."""
    return replace(flat, space=replace(flat.space, params=params))


def origin_texts(kernel: Kernel) -> tuple[str, ...]:
    """Returns where a kernel came from, without repeats."""
    return tuple(dict.fromkeys(str(origin) for origin in kernel.origins if str(origin)))


def describe_scratch(flat: FlatKernel) -> list[dict[str, Any]]:
    """Returns the param in whose memory each program has its descriptors, if a config may make them."""
    if flat.space.axis(DESCRIPTORS_AXIS) is None:
        return []
    each = len(set(described_blocks(flat).values())) * DESCRIPTOR_BYTES // I64.bytes
    tensor = {"name": SCRATCH, "role": "tensor", "dtype": I64.name, "access": "scratch", "align": DESCRIPTOR_BYTES}
    return [{**tensor, "elements": LOWERING.described_programs * each, "each": each}]


def describe_sizes(params: SizeParams, width: int) -> list[dict[str, Any]]:
    """Returns the size params of the spec, with the values that they are expected to have."""
    described = {"role": "size", "dtype": f"i{width}"}
    return [{"name": name, **described, "hint": hint(size)} for size, name in params.names.items()]


def describe_space(space: Space) -> str:
    """Returns what the axes are, for people."""
    axes = (axis for axis in space.axes if axis.has_points)
    return ", ".join(f"{axis.name}: {space.params.text(axis.size)}" for axis in axes)


def tile_program(flat: FlatKernel, width: int) -> TileProgram:
    """Returns what each program of a kernel does, with addresses of so many bits."""
    dtype = index_dtype(width)
    # The body asks for the sizes that it needs: what they are called is known when it is written.
    builder = Builder(flat.space.params.typed(dtype), tensor_variables(flat))
    builder.do(AwaitPredecessor(), NO_AXES)
    place_program(builder, flat, dtype)
    KernelBody(flat, width, builder).write()
    sizes = (Variable(name, TileType(dtype)) for name in flat.space.params.names.values())
    scratch = [Variable(SCRATCH, TileType(I64, is_pointer=True))] if flat.space.axis(DESCRIPTORS_AXIS) else []
    parameters = (*tensor_variables(flat), *scratch, *sizes)
    constants = tuple(axis.constant for axis in _with_constants(flat.space))
    program = TileProgram(flat.kernel.form.name, parameters, constants, builder.finished(), tuple(builder.functions))
    delays = isinstance(flat.kernel.form, Pointwise | Combo) and not overwrites_operands(flat)
    return run_passes(program, LOWERING.most_waiting if delays else 0)


def _with_constants(space: Space) -> tuple[KernelAxis, ...]:
    """Returns the axes that have a block constant."""
    return (*space.axes, *(axis for axis in space.inner if axis.tiled))


def tensor_variables(flat: FlatKernel) -> tuple[Variable, ...]:
    """Returns the parameters of a kernel but for its sizes; numbers of half types are passed as f32."""
    found: dict[str, Variable] = {}
    for param in flat.params.values():
        is_number = param.param.host_scalar
        dtype = param.dtype.compute if is_number else param.dtype
        found[param.text] = Variable(param.text, TileType(dtype, is_pointer=not is_number))
    return tuple(found.values())


def assemble(flat: FlatKernel, program: TileProgram) -> tuple[str, str]:
    """Returns the module text and the name of the kernel function, which holds a digest of the text."""
    kinds = ", ".join(f"{name}: {param.dtype}" for name, param in {p.text: p for p in flat.params.values()}.items())
    prefix = "_".join([flat.kernel.form.name, *main_operations(flat)])
    rows = f", u: {flat.rows}, unrolled" if flat.rows > 1 else ""
    return print_kernel(program, (describe_space(flat.space) + rows, kinds), prefix)


def main_operations(flat: FlatKernel) -> list[str]:
    """Returns up to three names that say what a kernel computes: reductions and scans, then the dearest operations."""
    combines = [
        combine_name(definition.combine) for definition in flat.definitions if isinstance(definition, (Reduction, Scan))
    ]
    combines += [definition.kind for definition in flat.definitions if isinstance(definition, Attend)]
    combines += ["product" for definition in flat.definitions if isinstance(definition, Contract)]
    updates = [definition.mode for definition in flat.definitions if isinstance(definition, Update)]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    dear = sorted((node.op for node in nodes if node.op in OPS), key=lambda op: -OPS[op].cost)
    names = list(dict.fromkeys([*combines, *updates, *dear]))[:3]
    if names:
        return names
    return ["copy"] if any(isinstance(definition, Loop) for definition in flat.definitions) else []


def describe_params(flat: FlatKernel) -> list[dict[str, Any]]:
    """Returns the params of the spec, in call order."""
    written = access_overrides(flat)
    return [describe_param(flat.params[param.name], written) for param in flat.kernel.params]


def describe_param(param: KernelParam, written: Mapping[str, str]) -> dict[str, Any]:
    """Returns a param of the spec; ``written`` says how updated ones are accessed."""
    if param.param.host_scalar:
        return {"name": param.text, "role": "scalar", "dtype": param.dtype.name}
    tensor = {"name": param.text, "role": "tensor", "dtype": param.dtype.name}
    return {**tensor, "access": written.get(param.text, param.param.access), "align": ALIGNMENT}


def access_overrides(flat: FlatKernel) -> dict[str, str]:
    """Returns the access of updated params: ``atomic`` or, where indices cannot collide, ``readwrite``."""
    overrides: dict[str, str] = {}
    for definition in flat.definitions:
        if isinstance(definition, Update):
            text = flat.param_of(definition.result.name).text
            access = "atomic" if needs_atomics(flat, definition) else "readwrite"
            overrides[text] = "atomic" if "atomic" in (overrides.get(text), access) else access
    overrides.update((flat.param_of(scan.workspace).text, "atomic") for scan in look_back_scans(flat))
    return overrides


def mutated_params(flat: FlatKernel) -> tuple[str, ...]:
    """Returns the names of params whose old contents matter and are overwritten."""
    return tuple(param["name"] for param in describe_params(flat) if param.get("access") in ("readwrite", "atomic"))


def facts_of(flat: FlatKernel, accesses: tuple[Access, ...], program: TileProgram) -> KernelFacts:
    """Returns the facts of a kernel, with the registers and threads that the text of its form is written for."""
    match flat.kernel.form:
        case RegisterNorm():
            return collect_facts(flat, accesses, program, registers_of(flat), THREADS)
        case GridReduction():
            registers = REGISTERS_OF_16_BIT if holds_only_16_bit(flat) else REGISTERS
            return collect_facts(flat, accesses, program, registers)
        case LookBackScan() if flat.space.register_tiles > 1:
            return collect_facts(flat, accesses, program, TILES_REGISTERS)
    return collect_facts(flat, accesses, program)


_KINDS = {ROUNDS_AXIS: "rounds", DESCRIPTORS_AXIS: "descriptors"}
"""The kinds of axes without points."""


def describe_axis(axis: KernelAxis, params: SizeParams, least: int = 0) -> dict[str, Any]:
    """Returns an axis of the spec; its expected size is ``least`` where the kernel is launched for no smaller one."""
    described: dict[str, Any] = {
        "name": axis.name,
        "kind": "reduction" if axis.is_reduction else _KINDS.get(axis.name, "grid"),
        "size": params.expression(axis.size),
        "hint": max(hint(axis.size), least),
        "block": axis.constant,
    }
    if axis.max_block is not None:
        described["max_block"] = axis.max_block
    return described


def grid_expression(space: Space) -> Expr:
    """Returns the number of programs in the integer mini-language."""
    if isinstance(space.form, RowColumnReduction):
        return space.form.chunks
    factors: list[Expr] = [["ceildiv", axis.name, axis.constant] for axis in space.grid]
    if space.row_groups:
        # As many tiles as groups may need, wherever they begin; rows of no group are one (`bodies.products.groups`).
        number = [axis.name for axis in space.grid].index("y")
        factors[number] = ["add", ["floordiv", "y", "YBLOCK"], space.row_groups + 1]
    if space.parts > 1:
        factors.append(space.parts)
    if space.splits:
        tiles = space.register_tiles
        factors.append(["ceildiv", "r", ["mul", "RBLOCK", tiles] if tiles > 1 else "RBLOCK"])
    count: Expr = factors[0] if len(factors) == 1 else ["mul", *factors]
    rounds = space.axis(ROUNDS_AXIS)
    return count if rounds is None else ["ceildiv", count, rounds.constant]
