"""Decoupled look-back: few long lines are scanned in one pass, by programs that wait for the sum of the parts before.

Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back" (2016); the device functions
are `ferrite_runtime.fmath.look_back`. Unlike a scan in parts, this one reads the operands once.
"""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import F32, F64, I32, I64
from ferrite_ir.language.graph import Definition, Scan, TensorType
from ferrite_scheduler.analysis.nodes import make_node
from ferrite_scheduler.model.annotations import LookBackScan, sums_16_bit
from ferrite_scheduler.model.intermediates import workspace_of
from ferrite_scheduler.model.policy import Policy

from .long_scans import is_read_in_vectors, is_strided

LOOK_BACK_GROUP = 512
"""Parts that have one inclusive sum between them; `ferrite_runtime.fmath.look_back` knows the same number."""
POINTS_OF_16_BIT = 2
"""How many times as many elements of 16 bits a program takes, which wait two in a register."""
SUMMED = (F32, F64, I32, I64)
"""Types of what is summed: a word of the workspace holds 32 bits of it."""


def looks_back(scan: Scan, types: dict[str, TensorType], policy: Policy) -> bool:
    """Returns whether a scan is one of those that programs can do in one pass: a sum along contiguous lines.

    Programs read large parts, so that 16-bit elements have to be read in vectors: odd lines are sooner done in parts.
    """
    dtype = scan.bodies[0].dtype
    if not policy.look_back or scan.combine != "sum" or dtype not in SUMMED:
        return False
    is_narrow = any(read.dtype.bytes < F32.bytes for read in scan.bodies[0].loads)
    if is_narrow and not is_read_in_vectors(scan, types):
        return False
    return not is_strided(scan, make_node(0, scan, types, {}))


def look_back_scan(scan: Scan, types: dict[str, TensorType], policy: Policy) -> tuple[Definition, ...]:
    """Returns a scan whose programs wait for each other, after the workspace through which they do.

    The workspace is a call, so that nothing computes it where it is read.
    """
    result, dtype = scan.results[0], scan.bodies[0].dtype
    length, lines = int(scan.along.size), math.prod(int(dim.size) for dim in scan.dims) // int(scan.along.size)
    points = policy.look_back_points * (POINTS_OF_16_BIT if sums_16_bit(scan.bodies[0]) else 1)
    parts = -(-length // points)
    words = lines * (parts + -(-parts // LOOK_BACK_GROUP)) * (dtype.bits // 32)
    workspace, kept = workspace_of(result, 1 + words, types, is_kept=True)
    own = (scan.results, scan.combine, scan.dims, scan.along, scan.bodies, scan.reverse, scan.origins)
    return kept, LookBackScan(*own, workspace.name, points)
