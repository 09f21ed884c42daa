"""Providers: who offers ways to compute the products of a kernel, with what is fused with them.

A provider looks at a *part*, what one kernel of tiles computes as a graph of its own, and names its candidates. Each is
a rewrite of graphs: it gives a graph in which products, and what the candidate fuses with them, are computed its way.
The rewritten part is scheduled and its cost asked for; the winner rewrites the whole graph.

    part                    candidates                           cost (`CostOracle`)
    p = contract …          library:      q = extern aten.mm …   41.2 us
    y = loop relu(p) …      own kernel:   as it is               36.0 us      taken
                            their kernel: y = extern kernel.…    38.5 us

Two are here: the library's calls, and our own kernels, which take the graph as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ferrite_ir.language.graph import Contract, Graph
from ferrite_scheduler.model.target import Target

from .library_products import as_extern_calls

OWN, LIBRARY = "own kernel", "library"
"""Names of the candidates of the providers that are here."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a kernel computes.

    Attributes:
        graph: of its products and of what is fused with them, alone.
        products: names of the contractions' results.
        target: the device that it is for.
    """

    graph: Graph
    products: tuple[str, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class Emitted:
    """A graph that computes products in a candidate's way.

    Attributes:
        graph: with the same inputs and outputs as before.
        kernels: specs (docs/kernel-spec.md) of the kernels that its extern calls stand for, by the targets of these.
    """

    graph: Graph
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Provider(Protocol):
    """Offers candidates for the products of a part."""

    @property
    def name(self) -> str:
        """Returns what people call it; no other provider is called so."""
        ...

    @property
    def version(self) -> str:
        """Returns what its choices depend on, beside the part: graphs that were stored with another are not used."""
        ...

    def applicable(self, part: Part) -> bool:
        """Returns whether it has candidates for a part; asked first, and should be quick."""
        ...

    def candidates(self, part: Part) -> Sequence[str]:
        """Returns the names of its candidates for a part to which it is applicable, each another one."""
        ...

    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:
        """Returns a graph in which some products are computed in a candidate's way.

        Args:
            graph: a part, or the whole graph that parts are of; names differ.
            products: names of contractions' results, of parts for which the provider has named the candidate.
            candidate: its name.
        """
        ...


class Library:
    """Torch's library of matrix products, with the epilogues that its calls have."""

    name, version = LIBRARY, "1"

    def applicable(self, part: Part) -> bool:
        """Returns whether calls compute all products of a part."""
        called = as_extern_calls(part.graph, part.products)
        return not any(isinstance(definition, Contract) for definition in called.definitions)

    def candidates(self, part: Part) -> Sequence[str]:  # the same for all
        """Returns the one name."""
        return (LIBRARY,)

    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:  # there is one
        """Returns a graph with extern calls."""
        return Emitted(as_extern_calls(graph, products))


class OwnKernels:
    """Kernels of tiles, written by the code generator for each part: what a graph has unless it is rewritten."""

    name, version = OWN, "1"

    def applicable(self, part: Part) -> bool:  # a part is what such a kernel computes
        """Returns that it is."""
        return True

    def candidates(self, part: Part) -> Sequence[str]:  # the same for all
        """Returns the one name."""
        return (OWN,)

    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:  # whatever they are
        """Returns the graph as it is."""
        return Emitted(graph)


SHIPPED: tuple[Provider, ...] = (Library(), OwnKernels())
"""Who is asked in any case, the first one first: of candidates whose costs hardly differ the first one is taken."""
