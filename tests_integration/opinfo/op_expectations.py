"""Failures that are known, each with its reason. One that starts to pass is reported until its line is removed."""

from __future__ import annotations

from fnmatch import fnmatchcase

EXPECTED: dict[tuple[str, str, str, str], str] = {}
"""Reasons by ``(operator or operator:variant, dtype, way, device)``; each but the operator may be a pattern."""


def expected_reason(op: str, variant: str, dtype: str, way: str, device: str) -> str | None:
    """Returns why an operator is known to fail at a dtype in a way on a device, None if it is to pass."""
    name = f"{op}:{variant}" if variant else op
    for (known, *patterns), reason in EXPECTED.items():
        if known == name and all(
            fnmatchcase(value, p) for value, p in zip((dtype, way, device), patterns, strict=True)
        ):
            return reason
    return None
