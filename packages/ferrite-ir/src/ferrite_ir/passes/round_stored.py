"""Takes excess precision from half values that lie in memory, so that all who read one see the same number.

A value of a half type that a kernel computes is wider in a register than in memory: its readers may see it with *excess
precision*, as C has it for ``float`` expressions (ISO/IEC 9899, 5.2.4.2.2 and 6.3.1.8). There, too, an assignment and a
cast take the excess away. So do, here, a value that somebody may look at in memory, and a conversion that a program
states (``rounded``)::

    y: bf16[8] = loop [i < 8] cast.bf16(mul(x[i], x[i]))       # an output
    z: bool[8] = loop [i < 8] isinf(cast.f32(y[i]))            # reads the product as it is stored

    y: bf16[8] = loop [i < 8] rounded.bf16(mul(x[i], x[i]))

The largest of such values is one of them. Where it is looked at in memory, so are they: else it might be less than an
element that a reader sees with excess precision, and the root of a difference NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import (
    Definition,
    Graph,
    Loop,
    Reduction,
    Scan,
    Sort,
    Update,
    bodies_of,
    index_loads,
    names_read,
)
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar, postorder, rebuilt, rounded
from ferrite_ir.passes.rules.rule import Rule

from .rewriting import Rewriter, map_scalars, with_definitions
from .storage import fixed_names

_CHOICES = ("where", "masked")
_EXTREMES = ("max", "min", "argmax", "argmin", "cummax", "cummin")
"""Combines whose result is one of the operands."""


@dataclass(frozen=True, slots=True)
class RoundStored:
    """Rounds half values that others can see in memory, and those that somebody reads as they are stored.

    The first are outputs, what is written in place, operands of extern calls and of other graphs, and what such a
    value is copied from; only where something is computed of them. The second are read as ``rounded.T(v[...])`` of
    their own type; after this pass a plain load does.
    """

    name: ClassVar[str] = "round_stored"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with these values defined without excess precision."""
        if not any(value.type.dtype.is_half for value in graph.values.values()):
            return graph
        updates = [definition for definition in graph.definitions if isinstance(definition, Update)]
        visible = with_sources(graph, fixed_names(graph), [body for update in updates for body in bodies_of(update)])
        names = visible & _names_computed_with(graph, visible)
        wanted = _names_read_rounded(graph)
        if wanted:
            plain = _plain_loads()
            graph = with_definitions(graph, [map_scalars(d, plain, plain.index) for d in graph.definitions])
            names |= with_sources(graph, wanted)
        return round_values(graph, names)


def round_values(graph: Graph, names: Collection[str]) -> Graph:
    """Returns the graph with these values defined without excess precision."""
    memo: dict[Scalar, Scalar] = {}

    def changed(definition: Definition) -> Definition:
        if not isinstance(definition, Loop) or not any([value.name in names for value in definition.results]):  # noqa: C419
            return definition
        pairs = zip(definition.results, definition.bodies, strict=True)
        bodies = tuple([without_excess(body, memo) if value.name in names else body for value, body in pairs])
        same = bodies == definition.bodies
        return definition if same else Loop(definition.results, definition.dims, bodies, definition.origins)

    return with_definitions(graph, map(changed, graph.definitions)) if names else graph


def has_excess(body: Scalar) -> bool:
    """Returns whether a value with this body may have excess precision."""
    return any(map(_is_excessive, _Copies((body,)).halves))


def without_excess(root: Scalar, memo: dict[Scalar, Scalar]) -> Scalar:
    """Returns a body with the conversions to half types that make it, or that it chooses from, made roundings.

    ``memo`` maps old nodes to new ones and may be shared.
    """
    halves = _Copies((root,)).halves
    for node in postorder((root,)):
        if node not in halves or node in memo:
            continue
        if _is_excessive(node):
            memo[node] = rounded(node.args[0], node.dtype)
        elif node.op in _CHOICES:
            memo[node] = rebuilt(node, (node.args[0], memo[node.args[1]], memo[node.args[2]]))
        else:
            memo[node] = node
    return memo.get(root, root)


def _is_excessive(node: Scalar) -> bool:
    return node.op == "cast" and node.dtype.is_half and node.args[0].dtype.is_float


class _Copies:
    """The parts of expressions through which values of half types reach a root as they are.

    A root may choose from them, and also widen them, choose, and convert the choice back, as a concatenation does. A
    rounding ends this: whether what is rounded has excess precision makes no difference to its result.

    Attributes:
        halves: nodes of a half type that a root may be.
        wide: what lies between them: choices in a wider type, and conversions to it.
        carried: values of a wider type that are handed on, with the half type that they are converted to in the end.
    """

    __slots__ = ("carried", "halves", "wide")

    def __init__(self, roots: Iterable[Scalar], widened: Iterable[tuple[Scalar, DType]] = ()) -> None:
        self.halves: set[Scalar] = set()
        self.wide: set[Scalar] = set()
        self.carried: set[tuple[str, DType]] = set()
        stack = [root for root in roots if root.dtype.is_half]
        stack += [half for root, dtype in widened for half in self._widened((root,), dtype)]
        while stack:
            node = stack.pop()
            if node in self.halves:
                continue
            self.halves.add(node)
            if node.op in _CHOICES:
                stack += node.args[1:]
            elif node.op == "cast":
                stack += self._widened(node.args, node.dtype)

    def _widened(self, operands: Iterable[Scalar], dtype: DType) -> Iterator[Scalar]:
        """Yields the values of a type that were only widened, and chosen from, before they are converted to it."""
        stack = list(operands)
        seen: set[Scalar] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op in _CHOICES:
                self.wide.add(node)
                stack += node.args[1:]
            elif node.op == "cast" and node.args[0].dtype is dtype:
                self.wide.add(node)
                yield node.args[0]
            elif node.op == "load" and node.dtype.is_float and not node.dtype.is_half:
                self.carried.add((node.source, dtype))

    @property
    def names(self) -> set[str]:
        """Returns the values that are copied."""
        return {node.source for node in self.halves if node.op == "load"}

    def computed_with(self, node: Scalar) -> Iterator[Scalar]:
        """Yields the loads that a node takes for more than to hand them on."""
        if node.op == "cast" and node in self.wide:
            return  # whoever takes this conversion is asked
        hands_on = node in self.wide or node in self.halves
        for position, operand in enumerate(node.below):
            source: Scalar = operand.args[0] if operand.op == "cast" and operand in self.wide else operand
            is_copied = hands_on and (node.op in CONVERSIONS or (node.op in _CHOICES and position > 0))
            if source.op == "load" and not is_copied:
                yield source


def with_sources(graph: Graph, names: Collection[str], stored: Iterable[Scalar] = ()) -> set[str]:
    """Returns these values, and those that they, or expressions that are ``stored``, are copied or chosen from.

    What an extreme is chosen from counts where somebody else reads it as well.
    """
    copies = _Copies(stored)
    found, carried = set(names) | copies.names, copies.carried
    readers: Counter[str] = Counter()
    for definition in reversed(graph.definitions):
        if isinstance(definition, (Loop, Sort)):
            pairs = zip(definition.results, bodies_of(definition), strict=False)
            copies = _Copies([body for value, body in pairs if value.name in found])
            found |= copies.names
            carried |= copies.carried
        widened = list(_handed_on(definition, carried)) if carried else []
        if widened:
            copies = _Copies((), widened)
            if not readers:
                readers.update(name for each in graph.definitions for name in set(names_read(each)))
            found |= {name for name in copies.names if readers[name] > 1}
            carried |= copies.carried
    return found


def _handed_on(definition: Definition, carried: Collection[tuple[str, DType]]) -> Iterator[tuple[Scalar, DType]]:
    """Yields what the values of a definition that are carried are copied or chosen from, with their half types."""
    if isinstance(definition, (Reduction, Scan)):
        is_one = isinstance(definition, Reduction) and all(dim.size == 1 for dim in definition.reduction_dims)
        if definition.combine not in _EXTREMES and not is_one:
            return
        pairs = list(zip(definition.results[:1], definition.bodies[:1], strict=True))
    elif isinstance(definition, Loop):
        pairs = list(zip(definition.results, definition.bodies, strict=True))
    else:
        return
    yield from ((body, dtype) for value, body in pairs for name, dtype in carried if name == value.name)


def _names_computed_with(graph: Graph, visible: Collection[str]) -> set[str]:
    """Returns the values that kernels compute with, more than to copy them to what is ``visible``."""
    found: set[str] = set()
    for definition in graph.definitions:
        bodies = bodies_of(definition)
        found.update(load.source for load in index_loads(getattr(definition, "indices", ())))
        if not any([load.dtype.is_half and load.source in visible for body in bodies for load in body.loads]):  # noqa: C419
            continue
        is_visible = any([value is not None and value.name in visible for value in definition.results])  # noqa: C419
        copies = _Copies(bodies if is_visible or isinstance(definition, Update) else ())
        for node in postorder(bodies):
            found.update(load.source for load in copies.computed_with(node))
        found.update(body.source for body in bodies if body.op == "load" and body not in copies.halves)
    return found


def _names_read_rounded(graph: Graph) -> set[str]:
    """Returns the values that somebody reads as they are stored."""
    bodies = [body for definition in graph.definitions for body in bodies_of(definition)]
    halves = [body for body in bodies if any([load.dtype.is_half for load in body.loads])]  # noqa: C419
    return {node.args[0].source for node in postorder(halves) if _is_stored_load(node)}


def _is_stored_load(node: Scalar) -> bool:
    """Returns whether a node is ``rounded.T(v[i])`` of the same type."""
    return node.op == "rounded" and node.args[0].op == "load" and node.args[0].dtype is node.dtype


def _plain_load(node: Scalar) -> Scalar | None:
    return node.args[0] if _is_stored_load(node) else None


@lru_cache(maxsize=1)
def _plain_loads() -> Rewriter:
    return Rewriter([Rule("plain-loads", ("rounded",), _plain_load, "", first=("load",))])
