"""Software prefetch of what later programs will read, in kernels whose programs wait for others; see decision 0026."""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.dtypes import I32, I64
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.model.forms import LookBackScan as LookBackForm
from ferrite_scheduler.model.forms import RegisterNorm
from ferrite_triton.analysis.flat import FlatKernel, computed_nodes, memory_loads
from ferrite_triton.analysis.rows import step_along
from ferrite_triton.analysis.space import flat_dim
from ferrite_triton.bodies.addresses import Addresses
from ferrite_triton.bodies.builder import Builder
from ferrite_triton.bodies.positions import block_of_line
from ferrite_triton.tile.build import add, apply, converted, literal, mul, remainder
from ferrite_triton.tile.language import Literal, Name

REQUEST_BYTES = 16
"""The size of a prefetch is a multiple of so many bytes (PTX, ``cp.async.bulk.prefetch``)."""


def prefetch_block(flat: FlatKernel, addresses: Addresses, scan: LookBackScan, *, wide: bool) -> None:
    """Writes a prefetch of the first half of a later block of the line, of each operand that is contiguous along it.

    Half of it is enough to keep memory busy, and takes less of the cache. The last block may be shorter, and is not
    prefetched.

    Args:
        flat: a kernel that scans lines in parts.
        addresses: writes the prefetch.
        scan: what scans them.
        wide: whether addresses have 64 bits.
    """
    operand, points, form = scan.operand, scan.points, flat.kernel.form
    reduction, prefetch_distance = flat.space.reduction, form.prefetch_distance if isinstance(form, LookBackForm) else 0
    whole = 0 if reduction is None else int(reduction.size) // points
    if reduction is None or not 0 < prefetch_distance < whole:
        return
    if any(node.op == "masked" for node in computed_nodes(flat, (operand,))):
        return  # what is read under a condition may not exist
    dtype, block = I64 if wide else I32, block_of_line(scan)
    distance = Literal(-prefetch_distance if scan.reverse else prefetch_distance, I32)
    later = mul(add(converted(block, I32, dtype), replace(distance, dtype=dtype)), Literal(points, dtype))
    exists = apply("lt", add(block, distance), Literal(whole, I32))
    if scan.reverse:
        exists = apply("ge", block, Literal(prefetch_distance, I32))
    for load in memory_loads(flat, (operand,)):
        offset, size = flat.offset(load.source, load.indices), points * load.dtype.bytes // 2
        if not offset.is_indirect and step_along(offset, "r") == 1 and size % REQUEST_BYTES == 0:
            start = offset - flat_dim(reduction).index
            addresses.prefetch_bytes(flat.param_of(load.source), start, later, size, exists)


def prefetch_image(flat: FlatKernel, addresses: Addresses, load: Scalar, builder: Builder) -> None:
    """Writes a prefetch of a later image, if that is contiguous: each program of an image prefetches its share.

    Args:
        flat: a kernel of a register-resident norm.
        addresses: writes the prefetch.
        load: what its programs hold.
        builder: knows where the program is.
    """
    form, x, y, r = flat.kernel.form, flat.space.axis("x"), flat.space.axis("y"), flat.space.reduction
    if not isinstance(form, RegisterNorm) or not form.prefetch_distance or x is None or y is None or r is None:
        return
    offset = flat.offset(load.source, load.indices)
    steps = {axis.name: step_along(offset, axis.name) for axis in (x, y, r)}
    if not is_static(steps["y"]) or not steps["y"] or (steps["x"], steps["r"]) != (1, x.size):
        return  # no images whose channels lie beside each other, position by position
    program, image = Name("program"), builder.position("y")
    dtype = builder.type_of(program).dtype
    programs = flat.space.splits * -(-int(x.size) // form.channels)
    size = int(x.size) * int(r.size) * load.dtype.bytes // programs // REQUEST_BYTES * REQUEST_BYTES
    start = offset - flat_dim(x).index - flat_dim(r).index * x.size
    # The program and the image have the type of addresses.
    piece = mul(remainder(program, literal(programs, dtype)), literal(size // load.dtype.bytes, dtype))
    later = add(literal(form.prefetch_distance * int(steps["y"]), dtype), piece)
    exists = apply("lt", add(image, literal(form.prefetch_distance, dtype)), literal(int(y.size), dtype))
    addresses.prefetch_bytes(flat.param_of(load.source), start, later, size, exists)
