"""Packed additions of two 16-bit integers, split into two before PTX is assembled.

LLVM narrows indices that fit in 16 bits and adds two of them at once, ``add.s16x2``, on GPUs of compute capability 9.0
and newer. ptxas 12.8, 12.9 and 13.0 lose a constant where one half of an operand is undefined: the instruction becomes
``VIADD.16x2 R, R, 0x0``, and indices are silently wrong. ptxas 13.4 is right. Triton 3.6 brings one of the former. Two
additions of 16 bits say the same, and all of them assemble those rightly. See decision 0084.
"""

from __future__ import annotations

import re

_ADDITION = re.compile(
    r"(?P<guard>@!?%\w+[ \t]+)?\badd\.[su]16x2[ \t]+"
    r"(?P<to>%\w+)[ \t]*,[ \t]*(?P<a>[^,;\s]+)[ \t]*,[ \t]*(?P<b>[^,;\s]+)[ \t]*;"
)
_TWO_ADDITIONS = (
    "{\n"
    "\t.reg .b16 %pa<2>, %pb<2>, %pc<2>;\n"
    "\t.reg .b32 %pw<2>;\n"
    "\tmov.b32 %pw0, \\g<a>;\n"
    "\tmov.b32 %pw1, \\g<b>;\n"
    "\tmov.b32 {%pa0, %pa1}, %pw0;\n"
    "\tmov.b32 {%pb0, %pb1}, %pw1;\n"
    "\tadd.s16 %pc0, %pa0, %pb0;\n"
    "\tadd.s16 %pc1, %pa1, %pb1;\n"
    "\t\\g<guard>mov.b32 \\g<to>, {%pc0, %pc1};\n"
    "\t}"
)


def split_packed_additions(ptx: str) -> str:
    """Returns PTX in which no instruction adds two pairs of 16-bit integers; the same object where none did."""
    if "16x2" not in ptx:
        return ptx
    apart, count = _ADDITION.subn(_TWO_ADDITIONS, ptx)
    return apart if count else ptx
