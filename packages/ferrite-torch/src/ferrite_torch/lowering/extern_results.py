"""Results of extern calls: nested as torch nests them, from a list of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_torch.sizes.symbolic_sizes import size_of


def flatten(fakes: Any, flat: list[Any]) -> Callable[[list[Any]], Any]:
    """Appends the leaves of nested results to a list; returns the function that nests as many leaves the same way."""
    if fakes is None and not flat:
        return lambda leaves: None
    start = len(flat)
    if not isinstance(fakes, (tuple, list)):
        flat.append(size_of(fakes) if isinstance(fakes, torch.SymInt) else fakes)
        return lambda leaves: leaves[start]
    return _flatten_sequence(fakes, flat)


def _flatten_sequence(fakes: Sequence[Any], flat: list[Any]) -> Callable[[list[Any]], Any]:
    parts: list[Callable[[list[Any]], Any]] = []
    for fake in fakes:
        if isinstance(fake, (tuple, list)):
            parts.append(_flatten_sequence(fake, flat))
        else:
            position = len(flat)
            flat.append(size_of(fake) if isinstance(fake, torch.SymInt) else fake)
            parts.append(lambda leaves, position=position: leaves[position])  # type: ignore[misc]
    return lambda leaves: tuple(part(leaves) for part in parts)
