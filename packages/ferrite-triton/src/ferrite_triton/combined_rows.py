"""The kernels of ``ferrite.combine_rows``: texts around device functions of `ferrite_runtime.fmath`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, sqrt

from ferrite_ir.dtypes import F32, F64, I32, I64, DType
from ferrite_ir.graph import View
from ferrite_scheduler.schedule import CallExtern
from ferrite_scheduler.strategy import power_of_two

from .literals import number_text
from .templates import Expansion, Operand, Scratch, Template

ZEROED = 1024
"""Numbers that one program makes zero."""
SHARES, MANY_SHARES = 128, 1024
"""Shares of the rows: about one for each processor, and more of them, but not too many, before they are long."""
LEAST_SHARE, LONG_SHARE, MOST_SHARE = 256, 1024, 4096
"""Rows of a share, which a program sorts at once: the longer, the more steps that takes. Chunks of a place sort as many
runs as there are shares."""
MOST_RUNS = 1 << 23
"""Runs that there is room for, if shares are not too large then."""
SORTED_WARP, MOST_WARPS = 128, 16
"""How many of these rows a warp has, and warps of a program at most."""
LEAST_LISTED, MOST_LISTED = 16, 256
"""Rows of a list: a warp sorts them in registers."""
LEAST_DEPTH = 2
"""Rows of a place that are on their way at once, at least: where places have one row on average, some have two."""
LEAST_CHUNK, MOST_CHUNKS = 128, 4096
"""Rows of a chunk at least, and chunks for which these are not more: each looks at all of them."""
REGISTERS = 80
"""Registers of a thread that combines rows: enough for all rows that are on their way, and for 25 warps at once."""
NARROW = 31
"""Bits of a number in 32 bits that is never negative."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What is known of a call before it runs.

    Attributes:
        count, rows, width, stride, block, mode, wraps: as the device functions take them.
        batch: rows that a program has on their way at once.
        programs: programs that the device runs at once.
        initial: as the device functions take it, as text.
        compute: the type that is computed in.
        base: name of the tensor that places are before, "" where that is one number, ``initial``.
    """

    count: int
    rows: int
    width: int
    stride: int
    batch: int
    block: int
    programs: int
    mode: str
    initial: str
    wraps: bool
    compute: DType
    base: str

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of columns."""
        return -(-self.width // self.block)

    @property
    def depth(self) -> int:
        """Returns how many rows of one place are on their way at once: about as many as it has on average."""
        return min(self.batch, max(power_of_two(ceil(self.count / self.rows)), LEAST_DEPTH))

    @property
    def group(self) -> int:
        """Returns how many places a program combines side by side."""
        return self.batch // self.depth

    @property
    def capacity(self) -> int:
        """Returns the rows of a list: enough for all places if each is as likely as any other.

        How many rows a place has is then close to a Poisson variable, which is hardly ever six deviations above its
        mean. Where that is more than a list may have, nearly all places are long and lists are short.
        """
        mean = self.count / self.rows
        wanted = power_of_two(ceil(mean + 6 * sqrt(mean) + 8))
        return max(wanted if wanted <= MOST_LISTED else 0, 2 * self.depth, LEAST_LISTED)

    @property
    def chunk(self) -> int:
        """Returns the rows of a chunk."""
        return max(LEAST_CHUNK, self.capacity, power_of_two(-(-self.count // MOST_CHUNKS)))

    @property
    def slots(self) -> int:
        """Returns how many chunks there may be: one for each long place, and one for each that is full."""
        return self.count // (self.capacity + 1) + self.count // self.chunk

    @property
    def share(self) -> int:
        """Returns the rows of a share: more of them where there are many places, whose runs take memory."""
        wanted = max(min(-(-self.count // SHARES), LONG_SHARE), LEAST_SHARE, -(-self.count // MANY_SHARES))
        return min(power_of_two(max(wanted, -(-self.rows * self.count // MOST_RUNS))), MOST_SHARE)

    @property
    def shares(self) -> int:
        """Returns the number of shares."""
        return -(-self.count // self.share)

    @property
    def scratch(self) -> Scratch:
        """Returns the tensors that only these kernels know."""
        count_bits = self.count.bit_length() + self.shares.bit_length()
        run_bits = (self.shares * self.share * self.share - 1).bit_length()
        return {
            "counts": (I32 if count_bits <= NARROW else I64, self.rows),
            "lists": (I32, self.rows * self.capacity),
            "runs": (I32 if run_bits <= NARROW else I64, self.rows * self.shares),
            "ordered": (I32, self.shares * self.share),
            "queue": (I32, 2 * max(self.slots, 1)),
            "tasks": (I32, 1 + 2 * self.slots * self.blocks),
            "parts": (self.compute, max(self.slots, 1) * self.width),
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
    _write_zeros(template, call)
    _write_lists(template, call)
    _write_sums(template, call)
    return template.finished()


def _write_zeros(template: Template, call: _Call) -> None:
    """Writes what makes all counters zero."""
    zeroed = {name: call.scratch[name][1] for name in ("counts", "tasks")}
    lines = [f"lane = tl.program_id(0) * {ZEROED} + tl.arange(0, {ZEROED})"]
    lines += [f"tl.store({name} + lane, 0, lane < {extent})" for name, extent in zeroed.items()]
    template.launch("zero_counts", dict.fromkeys(zeroed, "write"), lines, -(-max(zeroed.values()) // ZEROED), 4)


def _write_lists(template: Template, call: _Call) -> None:
    """Writes what counts the rows of each place and lists them."""
    numbers = f"{call.count}, {call.rows}, {call.wraps}, {call.capacity}, {call.chunk}, {call.slots}, {call.share}"
    line = f"fmath.list_rows(places, counts, lists, runs, ordered, queue, tasks, {numbers})"
    accesses = {"places": "read", "counts": "atomic", **dict.fromkeys(("lists", "runs", "ordered", "queue"), "write")}
    warps = min(max(call.share // SORTED_WARP, 1), MOST_WARPS)
    template.launch("list_rows", {**accesses, "tasks": "atomic"}, [line], call.shares, warps)


def _write_sums(template: Template, call: _Call) -> None:
    """Writes what combines the rows."""
    base = call.base or None
    spread = max(power_of_two(call.shares), 2)
    sizes = f"{call.count}, {call.rows}, {call.width}, {call.stride}, {call.capacity}, {call.chunk}, {call.share}"
    shape = f"{spread}, {call.slots}, {call.group}, {call.depth}, {call.block}"
    known = ("counts", "lists", "runs", "ordered", "queue")
    operands = f"{', '.join(known)}, tasks, parts, source, {base}, out"
    line = f'fmath.combine_rows({operands}, "{call.mode}", {call.initial}, {sizes}, {shape})'
    accesses = {**dict.fromkeys(known, "read"), "tasks": "atomic", "parts": "readwrite", "source": "read"}
    accesses |= {**({call.base: "read"} if call.base else {}), "out": "write"}
    bytes_of = {name: template.operands[name].dtype.bytes for name in ("source", "out")}
    moved = (call.count * bytes_of["source"] + call.rows * bytes_of["out"]) * call.width
    # Long places are shared by as many programs as run at once.
    shared = min(call.slots * call.blocks, call.programs)
    programs = max(-(-call.rows // call.group) * call.blocks, shared)
    template.launch("combine_rows", accesses, [line], programs, 1, bytes=moved, registers=REGISTERS)
