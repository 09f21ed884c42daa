"""The kernels of ``ferrite.combine_rows``: texts around device functions of `ferrite_runtime.fmath.combined_rows`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ferrite_ir.dtypes import F32, F64, I16, I32, I64, DType
from ferrite_ir.graph import View
from ferrite_scheduler.schedule import CallExtern

from .literals import number_text
from .templates import Expansion, Operand, Scratch, Template

COUNTED = 1024
"""Rows that one program counts."""
STARTED, AHEAD = 1024, 8192
"""Places whose first row one program finds, and places before them that it reads at a time."""
FILLED = 32
"""Places that a program looks at, to see whether they are empty, at least and at a time."""
ENDS, PARTS = 4, 32
"""Ends of chunks that one program looks at, and parts of one place that are read at a time."""
COLUMNS = 128
"""Columns of a program that stores few rows."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What is known of a call before it runs.

    Attributes:
        count, rows, width, stride, chunk, batch, block, mode, wraps: as the device functions take them.
        initial: as they take it, as text.
        in_order: whether the rows of a place are combined in their own order.
        compute: the type that is computed in.
        base: name of the tensor that places are before, "" where that is one number, ``initial``.
    """

    count: int
    rows: int
    width: int
    stride: int
    chunk: int
    batch: int
    block: int
    mode: str
    initial: str
    wraps: bool
    in_order: bool
    compute: DType
    base: str

    @property
    def chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.count // self.chunk)

    @property
    def end(self) -> int:
        """Returns how many rows are written down, those behind the last one included."""
        return self.chunks * self.chunk + 1

    @property
    def columns(self) -> int:
        """Returns the columns of a program that stores few rows."""
        return min(self.block, COLUMNS)

    @property
    def key(self) -> DType:
        """Returns the narrowest type that holds all places, none, and what is behind the last row."""
        return I16 if self.rows + 1 <= I16.highest else I32

    @property
    def scratch(self) -> Scratch:
        """Returns the tensors that only these kernels know."""
        counts = {"counts": (I32, self.rows + 1)}
        made = {"keys": (self.key, self.end)} if self.in_order else {"ranks": (I32, self.count)}
        starts = {} if self.in_order else {"starts": (I32, self.rows + 1)}
        return {
            **counts,
            **made,
            **starts,
            "packed": (I64, self.end),
            "edges": (self.compute, 2 * self.chunks * self.width),
        }


def write_combined_rows(step: CallExtern, taken: Collection[str]) -> Expansion:
    """Returns the kernels and steps of a call; ``taken`` are the names that the host uses."""
    definition, result = step.definition, step.results[0]
    places, source, base = definition.args
    value, given = definition.results[0], dict(definition.kwargs)
    if value is None or result is None:
        return Expansion((), ())
    compute = F64 if source.dtype is F64 else F32
    call = _Call(
        count=int(source.shape[0]),
        width=int(source.shape[1]),
        stride=int(source.strides[0]),
        initial="0.0" if isinstance(base, View) else number_text(base, compute),
        compute=compute,
        base="base" if isinstance(base, View) else "",
        **given,
    )
    operands = {
        "places": Operand(places.name, places.dtype),
        "source": Operand(source.name, source.dtype),
        "out": Operand(result, value.type.dtype),
    }
    if isinstance(base, View):
        operands["base"] = Operand(base.name, base.dtype)
    template = Template.of(step, operands, call.scratch, taken)
    _write_order(template, call, taken)
    _write_sums(template, call)
    return template.finished()


def _write_order(template: Template, call: _Call, taken: Collection[str]) -> None:
    """Writes what brings rows of one place together, and stores the places that no row goes to."""
    size, programs = f"{call.count}, {call.rows}", -(-call.end // COUNTED)
    lanes = f"tl.program_id(0) * {COUNTED} + tl.arange(0, {COUNTED})"
    zeros = [f"place = {lanes}", f"tl.store(counts + place, 0, place <= {call.rows})"]
    template.launch("zero_counts", {"counts": "write"}, zeros, -(-(call.rows + 1) // COUNTED), 4)
    filling = max(programs, -(-call.rows // FILLED))
    fill = (
        f"fmath.fill_places(counts, {call.base or None}, out, {call.initial}, {call.rows}, {call.width}, {filling}, "
        f"{FILLED}, {call.columns})"
    )
    filled = {"packed": "write", **_base(call), "out": "write"}
    if call.in_order:
        line = f"fmath.narrow_places(places, counts, keys, {size}, {call.wraps}, {call.end}, {COUNTED})"
        accesses = {"places": "read", "counts": "atomic", "keys": "write"}
        template.launch("narrow_places", accesses, [line], programs, 4)
        template.sort("keys", "ranked", "order", taken)
        line = f"fmath.pack_rows(ranked, order, packed, {call.count}, {call.end}, {COUNTED})"
        accesses = {"ranked": "read", "order": "read", "counts": "read", **filled}
        template.launch("pack_rows", accesses, [line, fill], filling, 4)
        return
    line = f"fmath.count_places(places, counts, ranks, {size}, {call.wraps}, {COUNTED})"
    accesses = {"places": "read", "counts": "atomic", "ranks": "write"}
    template.launch("count_places", accesses, [line], -(-call.count // COUNTED), 4)
    line = f"fmath.start_places(counts, starts, {call.rows}, {STARTED}, {AHEAD})"
    accesses = {"counts": "read", "starts": "write"}
    template.launch("start_places", accesses, [line], -(-(call.rows + 1) // STARTED), 8)
    line = f"fmath.order_rows(places, ranks, starts, packed, {size}, {call.wraps}, {call.end}, {COUNTED})"
    accesses = {"places": "read", "ranks": "read", "starts": "read", "counts": "read", **filled}
    template.launch("order_rows", accesses, [line, fill], filling, 4)


def _write_sums(template: Template, call: _Call) -> None:
    """Writes what combines the rows."""
    numbers = f'"{call.mode}", {call.initial}, {call.count}, {call.rows}, {call.width}'
    shares = f"{call.stride}, {call.chunk}, {call.batch}, {call.block}"
    line = f"fmath.combine_rows(packed, source, {call.base or None}, out, edges, {numbers}, {shares})"
    accesses = {"packed": "read", "source": "read", **_base(call), "out": "write", "edges": "write"}
    sizes = {name: template.operands[name].dtype.bytes for name in ("source", "out")}
    moved = (call.count * sizes["source"] + call.rows * sizes["out"]) * call.width
    template.launch("combine_rows", accesses, [line], call.chunks * -(-call.width // call.block), 1, moved)
    shares = f"{call.chunk}, {ENDS}, {PARTS}, {call.columns}"
    line = f"fmath.combine_edges(packed, {call.base or None}, out, edges, {numbers}, {shares})"
    accesses = {"packed": "read", **_base(call), "out": "write", "edges": "read"}
    template.launch("combine_edges", accesses, [line], -(-call.chunks // ENDS) * -(-call.width // call.columns), 4)


def _base(call: _Call) -> dict[str, str]:
    return {call.base: "read"} if call.base else {}
