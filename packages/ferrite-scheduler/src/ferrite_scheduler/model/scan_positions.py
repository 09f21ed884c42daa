"""Which way the positions go that scans of values and positions take."""

from __future__ import annotations

from ferrite_ir.language.graph import Scan

_OPERAND = {"masked": 1, "cast": 0}
"""Operations that leave a position what it is, and which operand it is there."""


def positions_rise(scan: Scan) -> bool:
    """Returns whether the positions that a scan takes beside its values grow from point to point, in its direction.

    Then the last of equal values is that of the highest position. Those that are no index along the axis are taken for
    positions that do.
    """
    position = scan.bodies[-1]
    while position.op in _OPERAND:
        position = position.args[_OPERAND[position.op]]
    if position.op != "index":
        return True
    falls = any(type(coefficient) is int and coefficient < 0 for _, coefficient in position.indices[0].terms)
    return falls == scan.reverse
