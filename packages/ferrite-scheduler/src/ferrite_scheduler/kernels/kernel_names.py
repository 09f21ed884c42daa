"""Names of kernels: from the operations inside, so that equal layers give equal kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ferrite_ir.language.combine_functions import combine_name
from ferrite_ir.language.graph import Computed, Reduction, Scan, Update
from ferrite_scheduler.model.forms import Form

LONGEST = 60
"""Characters of a name: what a profiler shows of it."""


def kernel_name(form: Form, body: Iterable[Computed]) -> str:
    """Returns an identifier such as ``persistent_softmax_mul``: the form, then the source operations in order."""
    words: dict[str, None] = {}
    for definition in body:
        ops = [_short(origin.op) for origin in definition.origins]
        words.update(dict.fromkeys(op for op in ops if op))
        if not definition.origins:
            words[_kind(definition)] = None
    name = form.name
    for word in words:
        if len(name) + 1 + len(word) > LONGEST:
            break
        name = f"{name}_{word}"
    return name


def _short(op: str) -> str:
    """Returns ``gelu`` for ``aten.gelu.default``."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return re.sub(r"\W+", "_", name).strip("_")


def _kind(definition: Computed) -> str:
    match definition:
        case Reduction() | Scan():
            return combine_name(definition.combine)
        case Update():
            return f"update_{definition.mode}"
    return type(definition).__name__.lower()
