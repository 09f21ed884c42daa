"""Lines that ask for what later programs will read, in kernels whose programs wait for others; see decision 0026."""

from __future__ import annotations

from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import is_static

from .addresses import AddressText
from .flat import FlatKernel, computed_nodes, memory_loads
from .rows import step_along
from .space import flat_dim

ASKED = 16
"""Bytes of which requests are multiples."""


def ask_for_part(flat: FlatKernel, addresses: AddressText, operand: Scalar, points: int, *, wide: bool) -> None:
    """Writes that programs ask for the first half of a later part of their line, of all operands that lie in a row.

    Half of it is enough to keep memory at work, and takes less of the cache. The last part may be shorter; nobody asks
    for it.

    Args:
        flat: a kernel that scans lines in parts.
        addresses: writes the line.
        operand: what is scanned.
        points: of a part.
        wide: whether addresses have 64 bits.
    """
    fold, ahead = flat.space.fold, flat.kernel.ahead
    whole = 0 if fold is None else int(fold.size) // points
    if fold is None or not 0 < ahead < whole:
        return
    if any(node.op == "masked" for node in computed_nodes(flat, (operand,))):
        return  # what is read under a condition may not exist
    later = f"(part{'.to(tl.int64)' if wide else ''} + {ahead}) * {points}"
    for load in memory_loads(flat, (operand,)):
        offset, size = flat.offset(load.source, load.indices), points * load.dtype.bytes // 2
        if not offset.is_indirect and step_along(offset, "r") == 1 and size % ASKED == 0:
            start = offset - flat_dim(fold).index
            addresses.ask_for(flat.param_of(load.source), start, later, size, f"part + {ahead} < {whole}")


def ask_for_image(flat: FlatKernel, addresses: AddressText, load: Scalar) -> None:
    """Writes that programs ask for a later image, each for one of as many pieces of it, if it lies in one piece.

    Args:
        flat: a kernel that holds images.
        addresses: writes the line.
        load: what it holds.
    """
    kernel, x, y, r = flat.kernel, flat.space.axis("x"), flat.space.axis("y"), flat.space.fold
    if not kernel.ahead or x is None or y is None or r is None:
        return
    offset = flat.offset(load.source, load.indices)
    steps = {axis.name: step_along(offset, axis.name) for axis in (x, y, r)}
    if not is_static(steps["y"]) or not steps["y"] or (steps["x"], steps["r"]) != (1, x.size):
        return  # no images of which all channels of a place lie beside each other, and the next place's behind them
    programs = flat.space.parts * -(-int(x.size) // kernel.columns)
    size = int(x.size) * int(r.size) * load.dtype.bytes // programs // ASKED * ASKED
    start = offset - flat_dim(x).index - flat_dim(r).index * x.size
    later = f"{kernel.ahead * int(steps['y'])} + program % {programs} * {size // load.dtype.bytes}"
    addresses.ask_for(flat.param_of(load.source), start, later, size, f"y + {kernel.ahead} < {int(y.size)}")
