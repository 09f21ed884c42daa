"""The call that combines rows by index (a segmented reduction), and what both sides of it count by."""

from __future__ import annotations

REDUCE_SEGMENTS = "ferrite.reduce_segments"
"""The call: ``(places [n], source [n, width], base [rows, width] or a number)`` give ``[rows, width]``.

A place is counted from the end if it is negative and the call ``wraps``; the lowest number of all is none.
"""
MOST_SHARE = 1 << 12
"""Most rows of a share."""
MOST_ROWS = 1 << 22
"""Most rows, as each chunk of a place looks at all shares of them; where their number is symbolic, most that are
expected."""
