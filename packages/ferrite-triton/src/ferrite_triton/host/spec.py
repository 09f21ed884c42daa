"""Kernel specs, format 2 of docs/kernel-spec.md, as the builder makes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrite_ir.language.sizes import Size
from ferrite_triton.analysis.accesses import Condition
from ferrite_triton.facts.records import Facts

Expr: TypeAlias = "int | str | list[Any]"

FORMAT = 2


def canonical_json(value: object) -> str:
    """Returns the canonical JSON text of a value, on which identities are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel as text with everything that a runner has to know; the fields are those of the format.

    But for ``sizes``: what a launch passes for each size param, over the symbols of the graph.
    """

    name: str
    source: str
    form: str
    params: tuple[dict[str, Any], ...]
    axes: tuple[dict[str, Any], ...]
    blocks: dict[str, int]
    grid: Expr
    mutated: tuple[str, ...]
    index_width: int
    facts: Facts
    origin: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    parts: tuple[dict[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """Returns the identity: a digest of everything but the origin."""
        content = {key: value for key, value in self._fields().items() if key != "origin"}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {**self._fields(), "id": self.id}

    def _fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "source": self.source,
            "form": self.form,
            "params": [dict(param) for param in self.params],
            "axes": [dict(axis) for axis in self.axes],
            "blocks": dict(self.blocks),
            "grid": self.grid,
            "mutated": list(self.mutated),
            "index_width": self.index_width,
            "facts": self.facts.to_mapping(),
            "origin": list(self.origin),
            **({"parts": [dict(part) for part in self.parts]} if self.parts else {}),
        }


@dataclass(frozen=True, slots=True)
class GivenKernel:
    """A kernel that is not ours: its spec as somebody else has written it, in the format.

    Attributes:
        mapping: the spec.
        origin: where it and its launches come from.
    """

    mapping: Mapping[str, Any]
    origin: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Returns the identity that the spec states."""
        return str(self.mapping["id"])

    @property
    def source(self) -> str:
        """Returns the kernel's text."""
        return str(self.mapping["source"])

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {**self.mapping, "origin": list(self.origin)}


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel as texts that all take the same arguments.

    Attributes:
        spec: the one that is right for all sizes.
        alternatives: better ones, each with what must hold for it to be right, the best first.
    """

    spec: KernelSpec
    alternatives: tuple[tuple[tuple[Condition, ...], KernelSpec], ...] = ()
