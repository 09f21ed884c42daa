"""The call that combines rows by index (a segmented reduction), and what both sides of it count by."""

from __future__ import annotations

REDUCE_SEGMENTS = "ferrite.reduce_segments"
"""The call: ``(destinations [n], source [n, width], base [rows, width] or a number)`` give ``[rows, width]``.

A destination is the number of a row of the result, counted from the end if it is negative and the call ``wraps``; a row
whose destination is the lowest number of its type goes nowhere.
"""
MOST_SHARE = 1 << 12
"""Most rows of a share, a stretch of rows that is sorted by destination."""
MOST_ROWS = 1 << 22
"""Most rows, as each chunk of a destination looks at all shares of them; where their number is symbolic, most that are
expected."""
