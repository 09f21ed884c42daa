"""Common-subexpression elimination: definitions that compute the same become one.

Equal definitions are found by hashing (value numbering: Cocke and Schwartz, "Programming languages and their
compilers", 1970).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ferrite_ir.language.graph import (
    Attend,
    Call,
    Contract,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Output,
    Reduction,
    Scan,
    Sort,
    Update,
    View,
    While,
    bodies_of,
)

from .renaming import Renaming
from .storage import Storage, trace_storage


@dataclass(frozen=True, slots=True)
class Cse:
    """Common-subexpression elimination between definitions: equal ones become one, whatever op they came from.

    Two values that outlive the graph, or that are changed in place, stay two: they are different tensors to the caller.
    """

    name: ClassVar[str] = "cse"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with equal definitions merged."""
        return _Merger(graph).merged()


class _Merger:
    __slots__ = ("_first", "_graph", "_outputs", "_own", "_reading", "_renamed", "_storage")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._storage: Storage = trace_storage(graph)
        self._outputs = set(graph.output_names)
        self._own = _names_changed_in_place(graph)
        self._renamed: dict[str, str] = {}
        self._reading = Renaming(self._renamed)
        self._first: dict[Hashable, Definition] = {}

    def merged(self) -> Graph:
        graph = self._graph
        kept: list[Definition] = []
        for position, original in enumerate(graph.definitions):
            definition = self._with_new_names(original)
            key = _key(definition, self._storage, position)
            earlier = None if key is None else self._first.setdefault(key, definition)
            if earlier is None or earlier is definition or not self._merge(definition, earlier):
                kept.append(definition)
        if not self._renamed:
            return graph
        outputs = tuple(self._renamed_output(output) for output in graph.outputs)
        return Graph(graph.name, graph.inputs, tuple(kept), outputs, graph.mutations, graph.device, graph.sizes)

    def _merge(self, definition: Definition, earlier: Definition) -> bool:
        pairs = [
            (new.name, old.name) for new, old in zip(definition.results, earlier.results, strict=True) if new and old
        ]
        if any(
            new in self._own or old in self._own or (new in self._outputs and old in self._outputs)
            for new, old in pairs
        ):
            return False
        for new, old in pairs:
            self._renamed[new] = old
            if new in self._outputs:
                self._outputs.add(old)
        return True

    def _renamed_output(self, output: Output) -> Output:
        if isinstance(output, View) and output.name in self._renamed:
            return replace(output, name=self._renamed[output.name])
        return output

    def _with_new_names(self, definition: Definition) -> Definition:
        if not self._renamed:
            return definition
        renamed = self._renamed
        match definition:
            case Extern():
                kwargs = tuple((name, _rename(argument, renamed)) for name, argument in definition.kwargs)
                args = _rename(definition.args, renamed)
                if (args, kwargs) == (definition.args, definition.kwargs):
                    return definition
                return replace(definition, args=args, kwargs=kwargs)
            case Call() | While() | For():
                return replace(definition, args=tuple(renamed.get(name, name) for name in definition.args))
            case If():
                args = tuple(renamed.get(name, name) for name in definition.args)
                return replace(definition, condition=renamed.get(definition.condition, definition.condition), args=args)
        return self._reading.reads(definition)


def _rename(argument: Any, renamed: dict[str, str]) -> Any:
    if isinstance(argument, View):
        return replace(argument, name=renamed[argument.name]) if argument.name in renamed else argument
    return tuple(_rename(item, renamed) for item in argument) if isinstance(argument, tuple) else argument


def _names_changed_in_place(graph: Graph) -> set[str]:
    """Returns the values that must keep a storage of their own.

    They, or what shares their storage, are changed or escape.
    """
    names = {value for _, value in graph.mutations}
    for definition in graph.definitions:
        match definition:
            case Update():
                names.update((definition.target, definition.result.name))
            case Extern():
                names.update(definition.mutates)
                names.update(name for pair in definition.aliases for name in pair)
    return names


def _key(definition: Definition, storage: Storage, position: int) -> Hashable:
    """Returns what two definitions that compute the same have in common, or None for those that are never merged."""
    match definition:
        case Loop():
            what: Hashable = definition.dims
        case Reduction():
            what = (definition.combine, definition.dims, definition.reduction_dims)
        case Scan():
            what = (definition.combine, definition.dims, definition.along, definition.reverse)
        case Sort():
            what = (definition.dims, definition.along, definition.descending, definition.top)
        case Contract():
            segments = definition.segments
            grouped = None if segments is None else (segments.of, segments.group)
            what = (definition.dims, definition.reduction_dims, definition.fast, definition.stored, grouped)
        case Attend():
            # Products have names of their own, so two of these are equal only if they are written twice.
            what = replace(definition, results=())
        case _:
            return None
    bodies = bodies_of(definition)
    types = tuple([result.type for result in definition.results])
    if not storage.writes:
        return (type(definition), what, bodies, types)
    versions = storage.versions(bodies, position)
    return (type(definition), what, bodies, types, versions)
