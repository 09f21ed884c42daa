"""The kernels of ``ferrite.reduce_segments``: programs around device functions of `ferrite_runtime.fmath`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ferrite_ir.language.dtypes import F32, F64, I32, DType
from ferrite_ir.language.graph import View
from ferrite_ir.language.sizes import Size, hint, is_static, maximum, minimum, symbol
from ferrite_scheduler.model.annotations import HALF_BYTES
from ferrite_scheduler.model.schedule import CallExtern
from ferrite_scheduler.model.target import SECTOR_BYTES
from ferrite_triton.analysis.size_params import host_expression, size_value
from ferrite_triton.facts.records import TemplateFacts
from ferrite_triton.host.segment_shapes import (
    SEGMENTS,
    RowsShape,
    counters,
    most_rows,
    most_shares,
    most_slots,
    scratch_of,
    shapes_for,
    sorts_all,
)
from ferrite_triton.host.spec import KernelSpec
from ferrite_triton.host.templates import Expansion, Operand, Scratch, Template
from ferrite_triton.tile.build import add, apply, literal, mul
from ferrite_triton.tile.language import (
    Call,
    Constant,
    Expression,
    Lanes,
    Literal,
    Name,
    Offset,
    ProgramId,
    Store,
    TileType,
    Variable,
)
from ferrite_triton.tile.statements import Do, Let, Statement

# Numbers that the kernels below are written for; what is chosen by the rows is in `segment_shapes`.
LISTED, LISTING_WARPS = 256, 8
"""Rows that a program lists, and its warps: a row for each thread, and no share has fewer."""
REGISTERS, REGISTERS_OF_WIDE_HALVES = 80, 96
"""Registers of a thread that combines rows: enough for all rows that are on their way, and for 25 warps at once; for 21
where each thread has eight elements of two bytes of every row, of which it keeps as many sums."""
COUNT = "n0"
"""What kernels call a number of rows that is symbolic."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What is known of a call before it runs.

    Attributes:
        count: number of rows.
        rows, width, stride, mode, wraps: as the device functions take them.
        programs: programs that the device runs at once.
        initial: as the device functions take it.
        compute: the type that is computed in.
        base: name of the tensor that destinations are before, "" where that is one number, ``initial``.
        prefetches: how many programs prefetch it while they bin rows.
        copied: whether all destinations are copied first, so that those without rows are done with.
        shapes: what is chosen for how many rows; see `shapes_for`.
        scratch: the tensors that only these kernels know.
    """

    count: Size
    rows: int
    width: int
    stride: int
    programs: int
    mode: str
    initial: float
    wraps: bool
    compute: DType
    base: str
    prefetches: int
    copied: bool
    shapes: tuple[RowsShape, ...]

    @property
    def is_static(self) -> bool:
        """Returns whether the number of rows is known."""
        return is_static(self.count)

    @property
    def sorts_all(self) -> bool:
        """Returns whether all shares are sorted while rows are listed."""
        return sorts_all(self.count, self.shapes)

    @property
    def sizes(self) -> dict[str, Size]:
        """Returns the sizes that kernels take."""
        return {} if self.is_static else {COUNT: self.count}

    @property
    def number(self) -> Size:
        """Returns the number of rows as kernels know it."""
        return self.count if self.is_static else symbol(COUNT, low=0)

    @property
    def scratch(self) -> Scratch:
        """Returns the tensors that only these kernels know."""
        touched = {"touched": (I32, self.most_touched), "found": (I32, 1)} if self.copied else {}
        return {**scratch_of(self.count, self.shapes, self.compute), **touched}

    @property
    def most_touched(self) -> Size:
        """Returns how many destinations may have rows, at most; one is room for none."""
        return minimum(self.rows, maximum(self.count, 1)) if self.is_static else self.rows


def write_segmented_reduction(step: CallExtern, taken: Collection[str]) -> Expansion:
    """Returns the kernels and steps of a call; ``taken`` are the names that the host uses."""
    definition, result = step.definition, step.results[0]
    destinations, source, base = definition.args
    value, given = definition.results[0], dict(definition.kwargs)
    if value is None or result is None:
        return Expansion((), ())
    compute = F64 if F64 in (source.dtype, value.type.dtype) else F32
    count, width = source.shape
    batch, block, prefetched = given.pop("batch"), given.pop("block"), given.pop("prefetched")
    call = _Call(
        count=count,
        width=int(width),
        stride=int(source.strides[0]),
        initial=0.0 if isinstance(base, View) else float(base),
        compute=compute,
        base="base" if isinstance(base, View) else "",
        prefetches=prefetched // SEGMENTS.prefetched,
        shapes=shapes_for(count, given["rows"], int(width), batch, block, given["programs"], copied=given["copied"]),
        **given,
    )
    operands = {
        "destinations": Operand(destinations.name, destinations.dtype),
        "source": Operand(source.name, source.dtype),
        "out": Operand(result, value.type.dtype),
    }
    if isinstance(base, View):
        operands["base"] = Operand(base.name, base.dtype)
    template = Template.of(step, operands, call.scratch, taken)
    template.require(count, most_rows(call.shapes[0]), "rows to combine")
    for write in (_write_zeros, _write_lists, *(() if call.sorts_all else (_write_shares,)), _write_sums):
        forms: list[tuple[int, KernelSpec]] = []
        for shape in call.shapes:
            kernel = write(template, call, shape)
            if forms and forms[-1][1].id == kernel.id:
                forms.pop()  # the same for more rows
            forms.append((shape.count, kernel))
        *alternatives, (_, last) = forms
        template.launch(last, [(((count, limit),), kernel) for limit, kernel in alternatives])
    return template.finished()


def _write_zeros(template: Template, call: _Call, shape: RowsShape) -> KernelSpec:
    """Writes what makes all counters zero."""
    tasks = 1 + 2 * most_slots(call.number, call.shapes) * shape.blocks
    zeroed: dict[str, Size] = {"counts": counters(call.rows), "tasks": tasks}
    if call.copied:
        zeroed["found"] = 1
    if not call.sorts_all:
        zeroed["is_sorted"] = most_shares(call.number, call.shapes)
    block = Literal(SEGMENTS.zeroed, I32)
    lane = Name("lane")
    kind = TileType(I32, (SEGMENTS.zeroed,))
    body: list[Statement] = [Let((Variable("lane", kind),), add(mul(ProgramId(0), block), Lanes(SEGMENTS.zeroed)))]
    for name, extent in zeroed.items():
        zero = literal(0, template.operands[name].dtype)
        body.append(Do(Store(Offset(Name(name), lane), zero, apply("lt", lane, size_value(extent, I32)))))
    accesses = dict.fromkeys(zeroed, "write")
    programs = (maximum(*zeroed.values()) + (SEGMENTS.zeroed - 1)) // SEGMENTS.zeroed
    moved = I32.bytes * sum(hint(extent) for extent in zeroed.values())
    facts = TemplateFacts(num_warps=4, bytes=moved)
    return template.write("zero_counts", accesses, tuple(body), host_expression(programs), facts, call.sizes)


def _write_lists(template: Template, call: _Call, shape: RowsShape) -> KernelSpec:
    """Writes what counts the rows of each destination and lists them."""
    slots = shape.slots(call.number)
    numbers = (call.number, call.rows, call.wraps, shape.capacity, shape.chunk, slots, shape.share)
    flags = None if call.sorts_all else "is_sorted"
    tensors = ("destinations", "counts", "lists", "segments", "ordered", flags, "queue", "tasks")
    reads_base = bool(call.prefetches or call.copied)
    elements = call.rows * call.width if call.copied else 0
    moved_each = SEGMENTS.copied if call.copied else SEGMENTS.prefetched
    copies = -(-elements * template.operands["out"].dtype.bytes // SEGMENTS.copied)
    noted = ("out", "touched", "found") if call.copied else (None, None, None)
    first = (*tensors, call.base if reads_base else None)
    body = _call("bin_rows", first, (*numbers, LISTED, call.prefetches, moved_each), (*noted, elements))
    accesses = {
        "destinations": "read",
        "counts": "atomic",
        "lists": "write",
        "segments": "write",
        "ordered": "readwrite",
    }
    accesses |= {**({flags: "write"} if flags else {}), "queue": "write", "tasks": "atomic"}
    accesses |= {call.base: "read"} if reads_base else {}
    accesses |= {"out": "write", "touched": "write", "found": "atomic"} if call.copied else {}
    binning = shape.shares_of(call.number) + (call.number + (LISTED - 1)) // LISTED
    programs = host_expression(binning + copies)
    # Of a row its destination; and alone the counter of its destination, and its number in a list.
    moved = min(hint(call.count), shape.count) * (template.operands["destinations"].dtype.bytes + 2 * SECTOR_BYTES)
    moved += 2 * elements * template.operands["out"].dtype.bytes
    facts = TemplateFacts(num_warps=LISTING_WARPS, bytes=moved, asserts=True)
    return template.write("bin_rows", accesses, body, programs, facts, call.sizes)


def _write_shares(template: Template, call: _Call, shape: RowsShape) -> KernelSpec:
    """Writes what sorts the shares that are not sorted yet, if there are long destinations."""
    tensors = ("destinations", "segments", "ordered", "is_sorted", "tasks")
    body = _call("sort_rows", tensors, (call.number, call.rows, call.wraps, shape.share))
    accesses = {
        "destinations": "read",
        "segments": "write",
        "ordered": "readwrite",
        "is_sorted": "read",
        "tasks": "read",
    }
    warps = min(max(shape.share // SEGMENTS.sorted_warp, 1), SEGMENTS.most_warps)
    shares = shape.shares_of(call.number)
    moved = I32.bytes * hint(shares)  # what there is to sort, if anything, is not known
    facts = TemplateFacts(num_warps=warps, bytes=moved)
    return template.write("sort_rows", accesses, body, host_expression(shares), facts, call.sizes)


def _write_sums(template: Template, call: _Call, shape: RowsShape) -> KernelSpec:
    """Writes what combines the rows."""
    base, slots = "out" if call.copied else call.base or None, shape.slots(call.number)
    sizes = (call.number, call.rows, call.width, call.stride, shape.capacity, shape.chunk, shape.share)
    tiles = (shape.spread, slots, shape.group, shape.depth, shape.batch, shape.block, shape.halves)
    known = ("counts", "lists", "segments", "ordered", "queue")
    tensors = (*known, "tasks", "parts", "source", base, "out")
    noted = ("touched", "found") if call.copied else (None, None)
    body = _call("reduce_segments", tensors, (Constant(call.mode), Constant(call.initial), *sizes, *tiles), noted)
    accesses = {**dict.fromkeys(known, "read"), "tasks": "atomic", "parts": "readwrite", "source": "read"}
    if call.copied:
        accesses |= {"out": "readwrite", "touched": "read", "found": "read"}
    else:
        accesses |= {**({call.base: "read"} if call.base else {}), "out": "write"}
    bytes_of = {name: template.operands[name].dtype.bytes for name in ("source", "out")}
    expected = min(hint(call.count), shape.count)
    combined: Size = minimum(call.rows, call.number) if call.copied else call.rows
    moved = (expected * bytes_of["source"] + min(call.rows, hint(combined)) * bytes_of["out"]) * call.width
    # Long destinations are shared by as many programs as run at once.
    shared = minimum(slots * shape.blocks, call.programs)
    programs = host_expression(maximum((combined + (shape.group - 1)) // shape.group * shape.blocks, shared))
    is_wide = bytes_of["source"] == HALF_BYTES and shape.block >= SEGMENTS.wide
    registers = REGISTERS_OF_WIDE_HALVES if is_wide else REGISTERS
    facts = TemplateFacts(num_warps=1, bytes=moved, registers=registers)
    return template.write("reduce_segments", accesses, body, programs, facts, call.sizes)


def _call(
    function: str, tensors: Sequence[str | None], *more: Sequence[Size | bool | Expression | str | None]
) -> tuple[Statement, ...]:
    """Returns a body that is one call: with tensors by name, None for one that there is not, and numbers."""
    operands: list[Expression] = []
    for operand in (*tensors, *(each for given in more for each in given)):
        match operand:
            case None:
                operands.append(Constant(None))
            case str():
                operands.append(Name(operand))
            case Expression():
                operands.append(operand)
            case bool() | int():
                operands.append(Constant(operand))
            case _:
                operands.append(size_value(operand, I32))
    return (Do(Call(function, tuple(operands))),)
