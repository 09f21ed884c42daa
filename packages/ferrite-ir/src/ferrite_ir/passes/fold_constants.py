"""Constant folding: operations on constants are computed at compile time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ferrite_ir.language.graph import Graph
from ferrite_ir.language.scalar import Scalar, const
from ferrite_ir.reference.scalar_semantics import constant_result

from .rewriting import Rewriter, map_functions, map_scalars, with_definitions


def folded(node: Scalar) -> Scalar | None:
    """Returns the constant that an operation on constants gives, or None where an operand is not constant."""
    if node.dtype.kind == "opaque":
        return None
    result = constant_result(node)
    return None if result is None else const(result, node.dtype)


@lru_cache(maxsize=1)
def _folder() -> Rewriter:
    return Rewriter((), folded)


@dataclass(frozen=True, slots=True)
class FoldConstants:
    """Replaces operations on constants by their results, rounded as at run time."""

    name: ClassVar[str] = "fold_constants"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with constant subexpressions computed."""
        change = _folder()
        return with_definitions(
            graph, [map_functions(map_scalars(d, change, change.index), change) for d in graph.definitions]
        )
