"""Versions of a kernel: what the one that holds its rows in one tile computes otherwise than the one that loops."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from ferrite_ir.language.graph import Computed, Reduction
from ferrite_ir.language.scalar import apply, load

from .forms import PersistentReduction
from .schedule import Kernel


def persistent_version(kernel: Kernel) -> Kernel:
    """Returns a looped kernel as one that holds its rows in one tile.

    A maximum and a sum of exponentials are two reductions there, so that it computes no exponential twice.

    Where the maximum is infinite the sum differs from that of the joined reduction. `_sum_of` does not look at it
    there; what combines the parts of a split row would, so a sum that is stored stays as it is.
    """
    body: list[Computed] = []
    for definition in kernel.body:
        if _is_joined(definition) and definition.results[1].name not in kernel.stored:
            (maximum, mass), (value,) = definition.results, definition.bodies
            shift = load(maximum.name, kernel.homes[maximum.name], value.dtype)
            body.append(replace(definition, results=(maximum,), combine="max"))
            exponential = apply("exp", apply("sub", value, shift))
            body.append(replace(definition, results=(mass,), combine="sum", bodies=(exponential,)))
        else:
            body.append(definition)
    return replace(kernel, form=PersistentReduction(), body=tuple(body))


def _is_joined(definition: Computed) -> TypeGuard[Reduction]:
    return isinstance(definition, Reduction) and definition.combine == "online_softmax" and len(definition.bodies) == 1
