"""The kernels of ``ferrite.combine_rows``: texts around device functions of `ferrite_runtime.fmath.combined_rows`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, sqrt

from ferrite_ir.dtypes import F32, F64, I32, I64, DType
from ferrite_ir.graph import View
from ferrite_scheduler.schedule import CallExtern
from ferrite_scheduler.strategy import power_of_two

from .literals import number_text, type_text
from .templates import Expansion, Operand, Scratch, Template

COUNTED = 1024
"""Rows that one program counts and lists, and numbers that it makes zero."""
LEAST_MEAN, MOST_LISTED = 8, 256
"""Rows of a place on average that make a program for it worth while, which waits for what to read before it reads; and
of a list at most: what one warp sorts in registers while it waits."""
FILLED = 16
"""Places that a program looks at, to see whether they are empty."""
SHARES = 128
"""Programs that order rows, at most: each reads what all of them have counted."""
LEAST_SORTED, MOST_SORTED = 256, 2048
"""Rows that such a program sorts at once."""
WARP_SORTED, WARP_COUNTED, MOST_WARPS = 128, 64, 16
"""How many of these rows a warp has at most, and how many values of a digit; warps of a program."""
ENDS, PARTS = 16, 256
"""Ends of chunks that one program looks at, and parts of one place that are read at a time."""
COLUMNS = 32
"""Columns of such a program."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What is known of a call before it runs.

    Attributes:
        count, rows, width, stride, chunk, batch, block, mode, wraps: as the device functions take them.
        initial: as they take it, as text.
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
    compute: DType
    base: str

    @property
    def chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.count // self.chunk)

    @property
    def columns(self) -> int:
        """Returns the columns of a program that combines edges."""
        return min(self.block, COLUMNS)

    @property
    def capacity(self) -> int:
        """Returns the rows of a list: enough for all places if each is as likely as any other; 0 for no lists.

        How many rows a place has is then close to a Poisson variable, which is hardly ever six deviations above its
        mean.
        """
        mean = self.count / self.rows
        wanted = max(power_of_two(ceil(mean + 6 * sqrt(mean) + 8)), 2 * self.batch)
        return wanted if mean >= LEAST_MEAN and wanted <= MOST_LISTED else 0

    @property
    def tile(self) -> int:
        """Returns how many rows a program sorts at once."""
        return min(max(power_of_two(-(-self.count // SHARES)), LEAST_SORTED), MOST_SORTED)

    @property
    def share(self) -> int:
        """Returns how many rows a program sorts."""
        return -(-self.count // (SHARES * self.tile)) * self.tile

    @property
    def shares(self) -> int:
        """Returns how many programs sort rows."""
        return -(-self.count // self.share)

    @property
    def digits(self) -> tuple[int, int]:
        """Returns how many values the lower and the higher digit of a place have, that of no place included."""
        bits = max(self.rows.bit_length(), 2)
        return 1 << bits // 2, 1 << bits - bits // 2

    @property
    def scratch(self) -> Scratch:
        """Returns the tensors that only these kernels know."""
        low, high = self.digits
        return {
            "counts": (I32, self.rows + 3),
            **({"lists": (I32, self.rows * self.capacity)} if self.capacity else {}),
            "low_counts": (I32, self.shares * low),
            "high_counts": (I32, self.shares * high),
            "partly": (I64, self.count),
            "packed": (I64, self.count + self.chunk + 1),
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
    _write_lists(template, call)
    _write_order(template, call)
    _write_sums(template, call)
    return template.finished()


def _write_lists(template: Template, call: _Call) -> None:
    """Writes what counts the rows of each place and lists them."""
    low, _ = call.digits
    zeroed = {name: call.scratch[name][1] for name in ("counts", "low_counts", "high_counts")}
    zeros = [f"lane = tl.program_id(0) * {COUNTED} + tl.arange(0, {COUNTED})"]
    zeros += [f"tl.store({name} + lane, 0, lane < {extent})" for name, extent in zeroed.items()]
    accesses = dict.fromkeys(zeroed, "write")
    template.launch("zero_counts", accesses, zeros, -(-max(zeroed.values()) // COUNTED), 4)
    block = min(COUNTED, call.tile)
    numbers = f"{call.count}, {call.rows}, {call.wraps}, {call.capacity}, {low}, {call.share}, {block}"
    line = f"fmath.list_rows(places, counts, {'lists' if call.capacity else None}, low_counts, {numbers})"
    accesses = {"places": "read", "counts": "atomic", **_lists(call, "write"), "low_counts": "atomic"}
    template.launch("list_rows", accesses, [line], -(-call.count // block), 4)


def _write_order(template: Template, call: _Call) -> None:
    """Writes what brings the rows of places that are longer than their lists in order."""
    low, high = call.digits
    shares = f"{low}, {high}, {call.share}, {call.tile}"
    warps = min(max(call.tile // WARP_SORTED, high // WARP_COUNTED), MOST_WARPS)
    numbers = f"{call.count}, {call.rows}, {call.wraps}, {call.capacity}, {shares}"
    line = f"fmath.order_low(places, counts, low_counts, high_counts, partly, {numbers})"
    accesses = {"places": "read", "counts": "read", "low_counts": "read", "high_counts": "atomic", "partly": "write"}
    template.launch("order_low", accesses, [line], call.shares, warps)
    numbers = f"{call.count}, {call.rows}, {shares}, {call.chunk}"
    line = f"fmath.order_high(counts, high_counts, partly, packed, {numbers})"
    accesses = {"counts": "readwrite", "high_counts": "read", "partly": "read", "packed": "write"}
    template.launch("order_high", accesses, [line], call.shares, warps)


def _write_sums(template: Template, call: _Call) -> None:
    """Writes what combines the rows: those of long places come first, as programs have more of them."""
    blocks = -(-call.width // call.block)
    base, numbers = call.base or None, f'"{call.mode}", {call.initial}, {call.rows}, {call.width}'
    shares = f"{call.stride}, {call.chunk}, {call.batch}, {call.block}"
    chunked = call.chunks * blocks
    if call.capacity:
        listed = f"{call.stride}, {call.capacity}, {call.batch}, {call.block}, {type_text(call.compute)}"
        rest = f"combine_lists(counts, lists, source, {base}, out, program - {chunked}, {numbers}, {listed})"
        others = call.rows * blocks
    else:
        filled = f"{call.initial}, {call.rows}, {call.width}, {FILLED}, {call.block}"
        rest = f"fill_places(counts, {base}, out, program - {chunked}, {filled})"
        others = -(-call.rows // FILLED)
    lines = [
        "program = tl.program_id(0)",
        f"if program < {chunked}:",
        f"    fmath.combine_rows(counts, packed, source, {base}, out, edges, program, {numbers}, {shares})",
        "else:",
        f"    fmath.{rest}",
    ]
    known = {"counts": "read", "packed": "read"}
    accesses = {**known, **_lists(call, "read"), "source": "read", **_base(call), "out": "write", "edges": "write"}
    sizes = {name: template.operands[name].dtype.bytes for name in ("source", "out")}
    moved = (call.count * sizes["source"] + call.rows * sizes["out"]) * call.width
    template.launch("combine_rows", accesses, lines, chunked + others, 1, moved)
    shares = f"{call.chunk}, {ENDS}, {PARTS}, {call.columns}"
    line = f"fmath.combine_edges(counts, packed, {base}, out, edges, {numbers}, {shares})"
    accesses = {**known, **_base(call), "out": "write", "edges": "read"}
    template.launch("combine_edges", accesses, [line], -(-call.chunks // ENDS) * -(-call.width // call.columns), 4)


def _lists(call: _Call, access: str) -> dict[str, str]:
    return {"lists": access} if call.capacity else {}


def _base(call: _Call) -> dict[str, str]:
    return {call.base: "read"} if call.base else {}
