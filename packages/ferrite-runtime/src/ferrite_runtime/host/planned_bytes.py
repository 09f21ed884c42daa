"""What a program's own buffers take up at each of its steps, if each dies where the program says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ferrite_runtime.formats.expression_sums import Names, expr_of, is_number
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.steps import Alloc, Free, Keep, Reuse, View
from ferrite_runtime.host.layout_bytes import bytes_of
from ferrite_runtime.host.product_steps import HostStep


def planned_bytes(steps: Sequence[HostStep], lengths: Names, sizes: Mapping[str, int] | None) -> tuple[int, ...] | None:
    """Returns the bytes of all buffers after each step; None where they depend on sizes that are not given.

    What libraries return does not count: how large it is they say when they have returned it.

    Args:
        steps: of a program.
        lengths: the names that sizes of buffers may depend on.
        sizes: their values; None where each call gives others.
    """
    owners: dict[str, str] = {}
    names: Counter[str] = Counter()
    held: dict[str, int] = {}
    total, found = 0, []
    for step in steps:
        match step:
            case Alloc(name=name, layout=layout) | Keep(name=name, layout=layout):
                terms = bytes_of(layout, lengths)
                if terms is None or not (is_number(terms) or sizes is not None):
                    return None
                held[name] = int(evaluate(expr_of(terms), sizes or {}))
                owners[name], names[name] = name, 1
                total += held[name]
            case View(name, base, _, _) if base in owners:
                owners[name] = owners[base]
                names[owners[base]] += 1
            case Reuse(name, source, _) if source in owners:
                owners[name] = owners.pop(source)
            case Free(ended):
                for owner in (owners.pop(name) for name in ended if name in owners):
                    names[owner] -= 1
                    total -= held[owner] if names[owner] == 0 else 0
        found.append(total)
    return tuple(found)
