"""Dead code elimination: definitions that nothing needs are left out.

Backwards from outputs and effects, as in Cytron, Ferrante, Rosen, Wegman, Zadeck, "Efficiently computing static single
assignment form and the control dependence graph" (1991), section 7.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ferrite_ir.language.graph import (
    Attend,
    Call,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Reduction,
    Scan,
    Update,
    While,
    names_read,
)

from .rewriting import with_definitions


@dataclass(frozen=True, slots=True)
class Dce:
    """Dead-code elimination: keeps what outputs, mutations and effects need.

    A loop with several results loses the dead ones, a softmax of attention those at the end of its list, the extreme of
    a row, or the extreme so far, its position.
    """

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph without dead definitions."""
        live = set(graph.output_names)
        shared = _lasting_names(graph)
        kept: list[Definition] = []
        for definition in reversed(graph.definitions):
            if not _is_needed(definition, live, shared):
                continue
            if isinstance(definition, Loop) and len(definition.results) > 1:
                definition = _without_dead(definition, live)  # noqa: PLW2901
            elif isinstance(definition, (Reduction, Scan)) and definition.combine in _EXTREMES:
                definition = _without_position(definition, live)  # noqa: PLW2901
            elif isinstance(definition, Attend) and definition.is_softmax:
                definition = _without_dead_end(definition, live)  # noqa: PLW2901
            kept.append(definition)
            live.update(names_read(definition))
        return with_definitions(graph, reversed(kept))


def _lasting_names(graph: Graph) -> set[str]:
    """Returns the values whose storage others see too, or may.

    Inputs, results of extern calls and their updated versions.
    """
    names = {value.name for value in graph.inputs}
    for definition in graph.definitions:
        match definition:
            case Extern():
                names.update(name for pair in definition.aliases for name in pair)
            case Update() if definition.target in names:
                names.add(definition.result.name)
    return names


def _is_needed(definition: Definition, live: set[str], lasting: set[str]) -> bool:
    match definition:
        case Call() | If() | While() | For():
            return True  # a called graph may have effects
        case Extern() if definition.effects or definition.mutates:
            return True
        case Update() if definition.target in lasting:
            return True
    return any(result is not None and result.name in live for result in definition.results)


_EXTREMES = {"argmax": "max", "argmin": "min", "cummax": "max", "cummin": "min"}
"""By combine of a value and its position, the combine of the values alone."""


def _without_position(definition: Reduction | Scan, live: set[str]) -> Reduction | Scan:
    value, position = definition.results
    if position.name in live:
        return definition
    combine = _EXTREMES[str(definition.combine)]
    return replace(definition, results=(value,), combine=combine, bodies=definition.bodies[:1])


def _without_dead(loop: Loop, live: set[str]) -> Loop:
    kept = [(value, body) for value, body in zip(loop.results, loop.bodies, strict=True) if value.name in live]
    if len(kept) == len(loop.results):
        return loop
    return Loop(tuple(value for value, _ in kept), loop.dims, tuple(body for _, body in kept), loop.origins)


def _without_dead_end(attend: Attend, live: set[str]) -> Attend:
    kept = max(position for position, value in enumerate(attend.results, 1) if value.name in live)
    return attend if kept == len(attend.results) else replace(attend, results=attend.results[:kept])
