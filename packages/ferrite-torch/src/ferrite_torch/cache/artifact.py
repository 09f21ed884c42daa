"""Compiled graphs as plain data: all that is needed to load one again, in this process or in another."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from ferrite_runtime import PackageInvalid, Store, VersionUnsupported, load_record, save_record
from ferrite_torch.calls.layouts import Layouts
from ferrite_torch.calls.lazy_results import LazyResult
from ferrite_torch.calls.shared_inputs import SharedBase
from ferrite_torch.diagnostics.origins import Location

log = logging.getLogger(__name__)

GRAPHS = "graphs"
"""The kind of these entries in the store."""

Strides: TypeAlias = "tuple[int, ...] | None"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled graph.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        program: the program as a mapping, in the format of docs/kernel-spec.md.
        arguments: number of arguments of the graph.
        selection: positions of the arguments that the program takes, after the constants.
        repeats: positions of results that are tensors of their own over the storage of others.
        passed: positions of results that are arguments which the program does not take, and of these arguments.
        lazy: results that are conjugated or negated when they are read, and lie in memory as others.
        bases: arguments that stand for several of the caller's, which share memory.
        constants: attribute paths of the tensors that the graph's module holds.
        externs: ``(op, reason)`` of each extern call.
        layouts: strides of arguments, by position, that the program wants otherwise than they were traced.
        strides: of each result, None for those that are no tensors.
        changed: strides of the results that lie otherwise than they were traced, by position.
        donated: positions of the arguments that a backward may overwrite.
        saved: positions of results of a forward that only its backward sees.
        static: positions of the arguments that are parameters or buffers, which stay where they are.
        lent: how many of the last arguments the call around AOTAutograd's lends (`calls.lent_arguments`).
        names: what the user's program calls symbols of the program's sizes.
        locations: where each origin of a kernel or an extern call is in the graph, for messages (`origins.Location`).
        captured: the target of each step that calls a place in the captured graph, with the position of its node, and
            why it is one.
    """

    kind: str
    program: Mapping[str, Any]
    arguments: int
    selection: tuple[int, ...]
    repeats: tuple[int, ...]
    passed: tuple[tuple[int, int], ...]
    constants: tuple[str, ...]
    externs: tuple[tuple[str, str], ...]
    layouts: Layouts
    strides: tuple[Strides, ...]
    changed: Layouts
    donated: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    static: tuple[int, ...] = ()
    lent: int = 0
    lazy: tuple[LazyResult, ...] = ()
    bases: tuple[SharedBase, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    locations: Mapping[str, Location] = field(default_factory=dict)
    captured: tuple[tuple[str, int, str], ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Returns the JSON form."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        tables: dict[str, Any] = {"names": dict(self.names), "locations": dict(self.locations)}
        tables |= {"lazy": [each.to_record() for each in self.lazy], "bases": [each.to_record() for each in self.bases]}
        return {**record, "layouts": _pairs(self.layouts), "changed": _pairs(self.changed), **tables}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Artifact:
        """Returns the artifact in its JSON form.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        return cls(
            kind=str(record["kind"]),
            program=dict(record["program"]),
            arguments=int(record["arguments"]),
            selection=tuple(map(int, record["selection"])),
            repeats=tuple(map(int, record["repeats"])),
            passed=tuple((int(result), int(argument)) for result, argument in record["passed"]),
            constants=tuple(map(str, record["constants"])),
            externs=tuple((str(op), str(reason)) for op, reason in record["externs"]),
            layouts={int(position): tuple(strides) for position, strides in record["layouts"]},
            strides=tuple(None if strides is None else tuple(strides) for strides in record["strides"]),
            changed={int(position): tuple(strides) for position, strides in record["changed"]},
            donated=tuple(map(int, record["donated"])),
            saved=tuple(map(int, record["saved"])),
            static=tuple(map(int, record["static"])),
            lent=int(record["lent"]),
            lazy=tuple(map(LazyResult.from_record, record["lazy"])),
            bases=tuple(map(SharedBase.from_record, record["bases"])),
            names={str(symbol): str(name) for symbol, name in record["names"].items()},
            locations={
                str(origin): (int(number), str(description))
                for origin, (number, description) in record["locations"].items()
            },
            captured=tuple(
                (str(target), int(location), str(reason)) for target, location, reason in record["captured"]
            ),
        )


def _pairs(layouts: Layouts) -> list[list[Any]]:
    return [[position, list(strides)] for position, strides in layouts.items()]


NO_PROGRAM = (PackageInvalid, VersionUnsupported, AttributeError, LookupError, TypeError, ValueError)
"""What loading raises where a record is that of no program, or of one that this version does not know."""


def recall_artifact(store: Store, key: str) -> Artifact | None:
    """Returns the stored artifact of a graph; one that does not read is logged, removed, and counts as absent."""
    try:
        record = load_record(store, GRAPHS, key)
        return None if record is None else Artifact.from_record(record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("the stored graph %s does not read and was removed: %s", key[:12], error)
        store.remove(GRAPHS, key)
        return None


def origins_in(program: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the kernels of a program, and the extern calls of its graphs and its own, came from."""
    steps = (step for body in (program, *program.get("graphs", ())) for step in body["steps"])
    for each in (*program["kernels"], *steps):
        yield from each.get("origin", ())


def with_locations(program: Mapping[str, Any], locations: Mapping[str, str]) -> dict[str, Any]:
    """Returns a program whose extern calls tell what they came from with the whole paths of the files, by origin."""

    def description(step: dict[str, Any]) -> dict[str, Any]:
        return step | {"origin": [locations.get(each, each) for each in step["origin"]]} if "origin" in step else step

    def changed(body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "steps": list(map(description, body["steps"]))}

    return changed(program) | ({"graphs": list(map(changed, program["graphs"]))} if "graphs" in program else {})


def content_key(artifact: Artifact) -> str:
    """Returns a key for an artifact that is the digest of what it holds.

    Raises:
        TypeError: it cannot be written down.
    """
    return hashlib.sha256(json.dumps(artifact.to_record(), sort_keys=True).encode()).hexdigest()


def keep_artifact(store: Store, key: str, artifact: Artifact) -> None:
    """Stores the artifact of a graph."""
    save_record(store, GRAPHS, key, artifact.to_record())
