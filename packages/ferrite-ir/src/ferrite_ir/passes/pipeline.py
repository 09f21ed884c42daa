"""Sequences of passes, their text form, and the one that the compiler uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeAlias

from ferrite_ir.language.graph import Graph, Module

from .align_scans import AlignScans
from .cse import Cse
from .dce import Dce
from .fold_constants import FoldConstants
from .inline import Inline
from .narrow import Narrow
from .outer import Outer
from .pick import Pick
from .round_stored import RoundStored
from .simplify import Simplify
from .store_narrow import StoreNarrow
from .unroll import Unroll


class Pass(Protocol):
    """What a pass is: a frozen dataclass whose fields are its arguments."""

    name: ClassVar[str]

    def run(self, graph: Graph) -> Graph:
        """Returns the changed graph; the same object if nothing changes."""


PASSES: dict[str, type[Any]] = {
    pass_.name: pass_
    for pass_ in (
        *(Simplify, FoldConstants, Cse, RoundStored, Inline, Outer),
        *(AlignScans, Pick, Unroll, StoreNarrow, Dce, Narrow),
    )
}


Watch: TypeAlias = Callable[[Pass, Graph], None]
"""What sees the graph after each pass."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in order. It prints as text that `parse_pipeline` reads."""

    passes: tuple[Pass, ...]

    def run(self, graph: Graph, watch: Watch | None = None) -> Graph:
        """Returns the graph after all passes; ``watch`` sees the graph after each."""
        for pass_ in self.passes:
            graph = pass_.run(graph)
            if watch is not None:
                watch(pass_, graph)
        return graph

    def run_module(self, module: Module, watch: Watch | None = None) -> Module:
        """Returns the module with every graph after all passes; the same object if nothing changes."""
        graphs = tuple(self.run(graph, watch) for graph in module.graphs)
        return module if all(a is b for a, b in zip(graphs, module.graphs, strict=True)) else Module(graphs)

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __getitem__(self, position: int) -> Pass:
        return self.passes[position]

    def __str__(self) -> str:
        return ",".join(map(pass_text, self.passes))


PIPELINE = Pipeline(
    (
        *(Simplify(), Cse(), Dce(), RoundStored(), Inline(), Outer(), AlignScans(), Pick(), Unroll(), StoreNarrow()),
        *(Narrow(), Cse(), Dce()),
    )
)
"""The passes between lowering and scheduling."""


def pass_text(pass_: Pass) -> str:
    """Returns the text of a pass with the arguments that differ from their defaults: ``inline{max_cost=32}``."""
    default = type(pass_)()
    arguments = [
        f"{field.name}={getattr(pass_, field.name)}"
        for field in fields(pass_)  # type: ignore[arg-type]
        if getattr(pass_, field.name) != getattr(default, field.name)
    ]
    return f"{pass_.name}{{{' '.join(arguments)}}}" if arguments else pass_.name


_PASS = re.compile(r"\s*(\w+)\s*(?:\{([^}]*)\})?\s*(,|$)")


def parse_pipeline(text: str) -> Pipeline:
    """Returns the pipeline written as ``text``: names separated by commas, arguments in braces.

    ``simplify,inline{max_cost=32}`` is one; ``default`` stands for the passes of `PIPELINE`.

    Raises:
        ValueError: an unknown pass or argument, or a malformed text; the message lists what is known.
    """
    passes: list[Pass] = []
    offset = 0
    while offset < len(text):
        found = _PASS.match(text, offset)
        if found is None:
            raise ValueError(f"not a pipeline at {text[offset:]!r}; write pass,pass{{argument=value}}")
        name, arguments, _ = found.groups()
        passes += PIPELINE.passes if name == "default" else (_parse_pass(name, arguments or ""),)
        offset = found.end()
    return Pipeline(tuple(passes))


def _parse_pass(name: str, arguments: str) -> Pass:
    kind = PASSES.get(name)
    if kind is None:
        raise ValueError(f"unknown pass {name!r}; known: {', '.join(PASSES)}, default")
    known = {field.name: field.default for field in fields(kind)}
    values: dict[str, Any] = {}
    for part in re.split(r"[\s,]+", arguments.strip()) if arguments.strip() else ():
        key, equals, value = part.partition("=")
        if key not in known or not equals:
            raise ValueError(f"{name}: unknown argument {part!r}; known: {', '.join(known) or 'none'}")
        values[key] = _parse_value(name, key, value, known[key])
    return kind(**values)  # type: ignore[no-any-return]


def _parse_value(name: str, key: str, value: str, default: Any) -> Any:
    if not isinstance(default, int):
        return value
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name}: {key} is an integer, not {value!r}") from None
