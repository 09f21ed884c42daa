"""Recomputation of outer reductions: what few points of small tensors come to is computed where it is read.

Distances between all points of two clouds are sums over three coordinates, and far more than the points are. Stored,
they take a hundred times the memory traffic of all else; rematerialised (Briggs, Cooper and Torczon,
"Rematerialization", 1992), as loops that `Inline` may move, they take a few instructions each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import Definition, Graph, Reduction, loads_of

from .costs import count_nodes
from .inline import Inline
from .rewriting import with_definitions
from .simplify import simplifier
from .unroll import UNROLLED_COMBINES, unrolled


@dataclass(frozen=True, slots=True)
class Outer:
    """Unrolls reductions over few points whose results are far more than what they are made of, and inlines them.

    Attributes:
        max_points: largest number of points that is unrolled.
        min_spread: fewest results for each element that is read. Set: reading all of it, time and again, takes less
            than writing the results once.
        min_results: fewest results. Set: the bytes of fewer take no longer than a launch.
        max_nodes: largest number of nodes in the expressions that come about.
        numerics: how bodies are simplified; see `Simplify`.
    """

    name: ClassVar[str] = "outer"
    max_points: int = 4
    min_spread: int = 16
    min_results: int = 1 << 20
    max_nodes: int = 64
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with such reductions in their readers; the same object if there are none."""
        simplify = simplifier(self.numerics)

        def change(definition: Definition) -> Definition:
            if isinstance(definition, Reduction) and self._is_outer(definition, graph):
                return unrolled(definition, simplify)
            return definition

        changed = with_definitions(graph, [change(definition) for definition in graph.definitions])
        return graph if changed is graph else Inline(numerics=self.numerics).run(changed)

    def _is_outer(self, reduction: Reduction, graph: Graph) -> bool:
        points = sizes.product(dim.size for dim in reduction.reduction_dims)
        if reduction.combine not in UNROLLED_COMBINES or not isinstance(points, int):
            return False
        if not 1 < points <= self.max_points or sum(map(count_nodes, reduction.bodies)) * points > self.max_nodes:
            return False
        read = sum(sizes.hint(graph.type_of(name).numel) for name in {load.source for load in loads_of(reduction)})
        results = sizes.hint(reduction.results[0].type.numel)
        return results >= max(self.min_results, self.min_spread * read)
