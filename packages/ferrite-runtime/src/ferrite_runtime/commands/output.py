"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

FINE = 0
"""Exit status: done, and nothing is wrong."""
FOUND = 1
"""Exit status: done, and what was looked at is not as it should be."""
REFUSED = 2
"""Exit status: not done; a message on stderr says why."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option ``--json`` to a command."""
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of text")


def print_json(value: object) -> None:
    """Prints a value as JSON, the same value as the same text."""
    print(json.dumps(value, indent=2, sort_keys=True))


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table with aligned columns, numbers to the right, and nothing after the last character of a line."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    numeric = [all(isinstance(cell, (int, float)) for cell in column) for column in zip(*rows, strict=True)]
    numeric = numeric or [False] * len(headers)
    lines = [
        "  ".join(
            cell.rjust(width) if is_numeric else cell.ljust(width)
            for cell, width, is_numeric in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [list(headers), *cells]
    ]
    return "\n".join(lines)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table."""
    print(format_table(headers, rows))


def format_bytes(size: int) -> str:
    """Returns a size for people, such as ``1.4 MiB``."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"
