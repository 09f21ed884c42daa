"""The table of results in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from op_expectations import expected_reason

LIMIT = 5800
"""Characters that the list of failures may have; more of them are shortened first, then left out."""


def summary(rows: Sequence[dict[str, Any]], device: str) -> tuple[str, bool]:
    """Returns counts by dtype and way, then one line per failure; and whether there are no failures."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    lines: dict[str, list[str]] = {}
    for row in rows:
        for way, outcome in row["ways"].items():
            status = judged(row, way, outcome["status"], device)
            counts.setdefault((row["dtype"], way), Counter())[status] += 1
            if status in ("fail", "xpass"):
                reason = outcome["reasons"][0] if outcome["reasons"] else ""
                name = ":".join(filter(None, (row["op"], row["variant"])))
                lines.setdefault(f"{name} {way}", []).append(f"{row['dtype']} {status}: {reason}")
    head = []
    for (dtype, way), found in counts.items():
        judged_ones = sum(found.values()) - found["none"]
        good = found["pass"] + found["eager"]
        share = f"{100 * good / judged_ones:.2f}%" if judged_ones else "-"
        head.append(
            f"{dtype:9} {way:9} {share:>8} of {judged_ones}: "
            + ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
        )
    return "\n".join([*sorted(head), *failures(lines)]), not lines


def judged(row: dict[str, Any], way: str, status: str, device: str) -> str:
    """Returns a status with expectations applied: ``xfail`` for a failure with a reason, ``xpass`` if that passes."""
    if expected_reason(row["op"], row["variant"], row["dtype"], way, device) is None:
        return status
    return {"fail": "xfail", "pass": "xpass", "eager": "xpass"}.get(status, status)


def failures(lines: dict[str, list[str]]) -> list[str]:
    """Returns one line per operator and way, with the reason at its first dtype; cut so that all of them fit."""
    if not lines:
        return []
    width = max(72, min(300, LIMIT // len(lines)))
    listed = []
    for name, found in sorted(lines.items()):
        others = f" (+{', '.join(line.split()[0] for line in found[1:])})" if len(found) > 1 else ""
        listed.append(f"{name}{others} {found[0]}"[:width])
    shown = listed[: LIMIT // width]
    more = [f"and {len(listed) - len(shown)} more, in the table"] if len(shown) < len(listed) else []
    return [f"{len(lines)} operators and ways fail:", *shown, *more]
