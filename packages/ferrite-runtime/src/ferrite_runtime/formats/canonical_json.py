"""Canonical JSON and the digests made of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ferrite_runtime.errors import SpecError


def dump_canonical(value: object) -> str:
    """Returns the canonical JSON text of ``value``.

    Raises:
        SpecError: if ``value`` holds a non-finite float or something that JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError("", f"not representable as JSON: {error}") from error


def digest(value: object) -> str:
    """Returns the SHA-256, in hex, of the canonical JSON of ``value``."""
    return hashlib.sha256(dump_canonical(value).encode()).hexdigest()


def kernel_id(mapping: Mapping[str, Any]) -> str:
    """Returns the identity of a kernel spec: the digest of the mapping without ``id``, ``origin`` and ``configs``.

    Where a kernel came from, and what may be tried with it, is not what it is, unless the configs say what its grids
    are of: then a launch is right with these alone.
    """
    left_out = ("id", "origin") if "grids" in mapping else ("id", "origin", "configs")
    return digest({key: value for key, value in mapping.items() if key not in left_out})
