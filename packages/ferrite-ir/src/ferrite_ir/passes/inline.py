"""Inlining, which is producer-consumer fusion: pointwise values are substituted into the bodies that read them.

What Halide calls ``compute_inline`` (Ragan-Kelley et al., "Halide: a language and compiler for optimizing parallelism,
locality, and recomputation", 2013), done where it saves memory traffic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import (
    Attend,
    Contract,
    Definition,
    Graph,
    Loop,
    Origin,
    Origins,
    Reduction,
    Update,
    Value,
    bodies_of,
    domain_of,
    loads_of,
    names_read,
)
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import sole_dim
from ferrite_ir.language.scalar import Scalar, replace_in_index, replace_loads, substitute_dims
from ferrite_ir.language.sizes import Size

from .costs import COSTS, REPEATED_COSTS, cost_up_to, count_new_nodes, count_nodes
from .held_rows import HeldRows
from .rewriting import Rewriter, map_scalars, with_definitions
from .round_stored import has_excess, round_values, with_sources
from .simplify import simplifier
from .storage import NEVER, Storage, fixed_names, trace_storage
from .vectors import is_in_vectors


@dataclass(frozen=True, slots=True)
class Inline:
    """Inlines loops into their readers.

    A value that one reader uses at one index always moves there, unless many points would repeat an expensive body. A
    value with several uses moves if computing it again reads no more bytes than loading it, and is cheap. A value that
    must lie in memory anyway moves only if it costs next to nothing. What rounds a product for another product stays,
    as does what rounds sums of which there are many: the kernel that makes these stores it. And so does what a
    contraction loads in vectors, or what is loaded in vectors many times, if what it is made of lies otherwise. What is
    made of a row that its kernel holds stays if its readers take other points: `held_rows`.

    Attributes:
        max_cost: most expensive body that is computed at several places, in simple instructions.
        max_repeated_cost: most expensive body that is computed at more points than its value has.
        repeated_operations, operations_of_byte: simple instructions that may be computed beside those that make each
            element once, as the points of a window that share elements do: as many as take the time of a launch, and
            for each byte of the value as many as take the time to store and load it. Of an H200: 132 multiprocessors
            with 128 lanes at 1.7 GHz beside 4.2 TB/s, and 2 us.
        max_factor_cost: the same for a factor of a contraction, which each program computes anew for rows or columns
            that it shares with others.
        max_strip_cost: the same where the contraction has so many rows that several tiles of them compute it anew:
            beside tensor cores that are busy all the time nothing is for free.
        tile_rows: rows of a contraction that one tile has.
        max_stored_cost: most expensive body that is computed again although its value must lie in memory.
        max_loads: most loads in a body that is computed at several places.
        max_single_loads, least_reads: most points at which elements are loaded one by one that would be in vectors from
            a copy, and how often each is read at least if there are more. Read one by one these take about as long as a
            launch.
        max_row: elements of the longest row of a reduction that a kernel holds, about.
        max_body_nodes, max_body_loads: readers stop growing here.
        numerics: how bodies are simplified on the way; see `Simplify`.
    """

    name: ClassVar[str] = "inline"
    max_cost: int = 48
    max_repeated_cost: int = 64
    repeated_operations: int = 1 << 26
    operations_of_byte: int = 14
    max_factor_cost: int = 12
    max_strip_cost: int = 2
    tile_rows: int = 128
    max_stored_cost: int = 2
    max_loads: int = 6
    max_single_loads: int = 4 << 20
    least_reads: int = 64
    max_row: int = 4096
    max_body_nodes: int = 600
    max_body_loads: int = 40
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with loops inlined; loops that nobody reads any more are gone.

        Readers of a value that have moved into one reader are one use of it, so that it may move there as well.
        """
        while True:
            inliner = _Inliner(self, graph)
            inlined = inliner.inlined()
            twofold = inliner.values_with_excess(inlined)
            if twofold:
                rounded = round_values(graph, twofold)
                assert rounded != graph, f"nothing takes the excess precision from {', '.join(sorted(twofold))}"
                graph = rounded
            elif inliner.leaves_sole_uses(inlined):
                graph = inlined
            else:
                return inlined


@dataclass(slots=True)
class _Uses:
    """How a value is read.

    Attributes:
        sites: number of (reader, index) pairs.
        points: the largest number of points at which one reader needs it.
        repeated: the elements that readers need beside one of each, as the points of windows do.
        factors: the loads of it by contractions.
        often: the loads of it by others, and at how many points.
        rows: the most rows of such a reader.
    """

    sites: int = 0
    points: Size = 0
    repeated: int = 0
    factors: list[Scalar] = field(default_factory=list)
    often: list[tuple[Scalar, int]] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    """A loop result that its readers compute themselves.

    Attributes:
        value, dims, body: the loop.
        home: its dims as indices: where the value is computed.
        origins: where the loop and what was inlined into it came from.
        nodes: at most so many nodes are in the body.
        until: position of the definition that changes the value, or what the body reads; not computed later.
        instances: bodies at other indices, by load.
    """

    value: Value
    dims: tuple[Dim, ...]
    home: tuple[Index, ...]
    body: Scalar
    origins: Origins
    nodes: int
    until: int
    instances: dict[Scalar, Scalar] = field(default_factory=dict)

    def at(self, load: Scalar, simplify: Rewriter) -> Scalar:
        """Returns the body at the indices of a load."""
        if load.args[1:] == self.home:
            return self.body
        found = self.instances.get(load)
        if found is None:
            mapping = {dim: index for dim, index in zip(self.dims, load.indices, strict=True) if dim.index is not index}
            found = simplify(substitute_dims(self.body, mapping)) if mapping else self.body
            self.instances[load] = found
        return found


class _Inliner:
    """One run over one graph, producers before readers."""

    __slots__ = (
        "_fixed",
        "_graph",
        "_held_rows",
        "_moved",
        "_points",
        "_policy",
        "_simplify",
        "_sources",
        "_storage",
        "_tiled",
        "_uses",
        "_windows",
    )

    def __init__(self, policy: Inline, graph: Graph) -> None:
        self._policy, self._graph = policy, graph
        self._tiled = {
            result.name for d in graph.definitions if isinstance(d, Contract | Attend) for result in d.results
        }
        sums = (d for d in graph.definitions if isinstance(d, Reduction) and self._makes_many(d))
        self._windows = {result.name for d in sums for result in d.results}
        self._simplify = simplifier(policy.numerics)
        self._storage: Storage = trace_storage(graph)
        self._fixed = fixed_names(graph)
        self._held_rows = HeldRows(graph, self._fixed, policy.max_row)
        self._points: dict[tuple[tuple[Dim, ...], ...], Size] = {}
        self._uses: dict[str, _Uses] = {}
        self._sources: dict[str, _Source] = {}
        self._moved: set[str] = set()

    def _makes_many(self, reduction: Reduction) -> bool:
        """Returns whether a reduction has about as many results as it reads elements, as one of windows has."""
        types = (self._graph.values[load.source].type for load in loads_of(reduction))
        most = max((sizes.hint(kind.numel) for kind in types), default=0)
        return not _is_small(reduction.results[0].type.numel, most)

    def inlined(self) -> Graph:
        definitions = [single for definition in self._graph.definitions for single in _split(definition)]
        positions = [position for position, d in enumerate(self._graph.definitions) for _ in _split(d)]
        for definition in definitions:
            self._count_uses(definition)
        changed: list[Definition] = []
        for position, definition in zip(positions, definitions, strict=True):
            new = self._with_sources(definition, position)
            changed.append(new)
            if isinstance(new, Loop):
                self._consider(new, definition, position)
        if not self._sources:
            return self._graph
        return with_definitions(self._graph, self._without_unread(changed))

    def values_with_excess(self, inlined: Graph) -> set[str]:
        """Returns the values that some readers compute anew with excess precision, and others find in memory.

        And those that they are copied from: a copy has its excess precision from there.
        """
        excessive = {name for name in self._moved if has_excess(self._sources[name].body)}
        if not excessive:
            return excessive
        found = excessive & self._fixed.union(load.source for d in inlined.definitions for load in loads_of(d))
        return with_sources(self._graph, found)

    def leaves_sole_uses(self, inlined: Graph) -> bool:
        """Returns whether a loop that stays, as it has had several uses, has a single one left."""
        several = {name for name, uses in self._uses.items() if uses.sites > 1 and name not in self._fixed}
        stay = several.intersection(d.results[0].name for d in inlined.definitions if isinstance(d, Loop))
        left = Counter(load.source for d in inlined.definitions for load in loads_of(d)) if stay else {}
        return any(left[name] == 1 for name in stay)

    def _count_uses(self, definition: Definition) -> None:
        loads = loads_of(definition)
        if not loads or isinstance(definition, Attend):
            return
        points = self._points_of(definition)
        rows = _rows_of(definition) if isinstance(definition, Contract) else 0
        for source, read in _elements_read(loads).items():
            repeated = read - sizes.hint(self._graph.values[source].type.numel)
            uses = self._uses.setdefault(source, _Uses())
            uses.repeated += 0 if isinstance(definition, Contract) else max(0, repeated)
        for load in loads:
            uses = self._uses.setdefault(load.source, _Uses())
            uses.sites += 1
            if isinstance(definition, Contract):
                uses.factors.append(load)
            elif sizes.hint(points) > self._policy.max_single_loads:
                uses.often.append((load, sizes.hint(points)))
            uses.rows = max(uses.rows, rows)
            if sizes.hint(points) > sizes.hint(uses.points):
                uses.points = points

    def _points_of(self, definition: Definition) -> Size:
        domain = domain_of(definition)
        found = self._points.get(domain)
        if found is None:
            found = self._points[domain] = sizes.product(dim.size for dims in domain for dim in dims)
        return found

    def _with_sources(self, definition: Definition, position: int) -> Definition:
        """Returns the definition with the sources that it reads computed in place, as far as order and size allow."""
        sources = self._sources
        if isinstance(definition, Attend):
            return definition  # its programs read an element many times, so it lies in memory
        loads = [load for load in loads_of(definition) if load.source in sources]
        if not loads:
            return definition
        instances: dict[str, list[Scalar]] = {}
        for load in loads:
            source = sources[load.source]
            if self._may_move(source, definition, position):
                instances.setdefault(load.source, []).append(source.at(load, self._simplify))
        moved = self._within_size(definition, instances)
        if not moved:
            return definition
        self._moved.update(moved)
        memo: dict[Scalar, Scalar] = {}

        def replacement(load: Scalar) -> Scalar | None:
            # The indices of the load may have changed just now, so the body is asked for again.
            return sources[load.source].at(load, self._simplify) if load.source in moved else None

        def change(body: Scalar) -> Scalar:
            return self._simplify(replace_loads(body, replacement, memo))

        def change_index(index: Index) -> Index:
            return self._simplify.index(replace_in_index(index, replacement, memo)) if index.is_indirect else index

        origins = [origin for name in moved for origin in sources[name].origins]
        return _with_origins(map_scalars(definition, change, change_index), origins)

    def _may_move(self, source: _Source, definition: Definition, position: int) -> bool:
        """Returns whether what a source reads is still unchanged where the definition runs."""
        if _device_of(definition) != source.value.type.device:
            return False
        if position < source.until:
            return True
        return position == source.until and isinstance(definition, Update) and self._is_elementwise(source, definition)

    def _is_elementwise(self, source: _Source, update: Update) -> bool:
        """Returns whether an update overwrites just the elements that the source reads at the same point, each once."""
        dims = [sole_dim(index) for index in update.indices]
        if update.mode != "set" or None in dims or len(set(dims)) != len(dims) or set(dims) != set(update.dims):
            return False
        root = self._storage.root(update.target)
        reads = [load for load in loads_of(update) if load.source == source.value.name]
        bodies = [source.at(load, self._simplify) for load in reads]
        touched = [load for body in bodies for load in body.loads if self._storage.root(load.source) == root]
        return all(load.source == update.target and load.indices == update.indices for load in touched)

    def _within_size(self, definition: Definition, instances: dict[str, list[Scalar]]) -> list[str]:
        """Returns those of the sources whose bodies (``instances``) keep the definition below the size limits."""
        policy, sources = self._policy, self._sources
        nodes = sum([sources[name].nodes * len(bodies) for name, bodies in instances.items()])
        reads = sum([len(body.loads) for bodies in instances.values() for body in bodies])
        if reads <= policy.max_body_loads // 2:
            own = (
                sum([count_nodes(body) for body in bodies_of(definition)]) if nodes > policy.max_body_nodes // 2 else 0
            )
            if nodes + own <= policy.max_body_nodes:
                return list(instances)
        counted: set[Scalar] = set()
        size = sum(count_new_nodes(body, counted) for body in bodies_of(definition))
        loads = {load for load in loads_of(definition) if load.source not in instances}
        fitting: list[str] = []
        for name, bodies in instances.items():
            size += sum(count_new_nodes(body, counted) for body in bodies)
            grown = loads.union(*(body.loads for body in bodies))
            if size <= policy.max_body_nodes and len(grown) <= policy.max_body_loads:
                fitting.append(name)
                loads = grown
        return fitting

    def _consider(self, loop: Loop, original: Definition, position: int) -> None:
        """Makes the loop's value a source if its readers should compute it themselves."""
        (value,), (body,) = loop.results, loop.bodies
        uses = self._uses.get(value.name)
        if uses is None or not self._is_worthwhile(value, body, uses) or self._lies_better(loop, uses):
            return
        if self._held_rows.holds(value, body, self._sources):
            return
        nodes = self._count_at_most(body, original)
        if nodes > self._policy.max_body_nodes:
            return
        home = tuple([dim.index for dim in loop.dims])
        until = NEVER
        if self._storage.writes:
            # An extern call may write the value itself: whoever reads it afterwards wants what was written.
            read = (value.name, *(load.source for load in body.loads))
            until = min(self._storage.next_write(name, position) for name in read)
        self._sources[value.name] = _Source(value, loop.dims, home, body, loop.origins, nodes, until)

    def _count_at_most(self, body: Scalar, original: Definition) -> int:
        """Returns a number of nodes that a body does not exceed.

        Exact only where it is near the limit, since counting walks all of them.
        """
        (own,) = bodies_of(original)
        if own is body:
            return count_nodes(body)
        sources = self._sources
        bound = count_nodes(own) + sum([sources[load.source].nodes for load in own.loads if load.source in sources])
        return bound if bound <= self._policy.max_body_nodes else count_nodes(body)

    def _is_worthwhile(self, value: Value, body: Scalar, uses: _Uses) -> bool:
        policy = self._policy
        if value.name in self._fixed:
            return self._is_cheap(value, body, policy.max_stored_cost, 1)
        is_strip = uses.rows > policy.tile_rows
        if self._is_narrower(value, body, is_factor=bool(uses.factors)):
            return False
        if uses.sites > 1:
            most = policy.max_strip_cost if is_strip else policy.max_cost
            is_cheap = self._is_cheap(value, body, most, policy.max_loads)
            return is_cheap and self._repeats_little(value, cost_up_to(body, most, COSTS), uses)
        if sizes.hint(uses.points) <= sizes.hint(value.type.numel):
            return True
        factor_cost = policy.max_strip_cost if is_strip else policy.max_factor_cost
        most = factor_cost if uses.factors else policy.max_repeated_cost
        cost = cost_up_to(body, most, COSTS)
        return cost <= most and (bool(uses.factors) or self._repeats_little(value, cost, uses))

    def _repeats_little(self, value: Value, cost: int, uses: _Uses) -> bool:
        """Returns whether computing elements anew within readers takes no longer than storing and loading them.

        What is read by rows is computed once for each row.
        """
        policy, moved = self._policy, sizes.hint(value.type.numel) * value.type.dtype.bytes
        return uses.repeated * cost <= policy.repeated_operations + moved * policy.operations_of_byte

    def _is_narrower(self, value: Value, body: Scalar, *, is_factor: bool) -> bool:
        """Returns whether a value has fewer bytes than the sums that it rounds.

        The kernel that makes it stores it as it is; others would load the wider ones, a contraction for each of its
        strips.
        """
        wide = [load.source for load in body.loads if load.dtype.bytes > value.type.dtype.bytes]
        if is_factor and any(name in self._tiled for name in wide):
            return True
        counts = [self._graph.values[name].type.numel for name in wide if name in self._windows]
        return any(not _is_small(count, value.type.numel) for count in counts)

    def _lies_better(self, loop: Loop, uses: _Uses) -> bool:
        """Returns whether a value is loaded in vectors, and all that it is made of could not be.

        By a contraction, or so often that making it costs little.
        """
        (value,), (body,) = loop.results, loop.bodies
        strides, least = value.type.strides, self._policy.least_reads * sizes.hint(value.type.numel)
        for read in (*uses.factors, *(load for load, points in uses.often if points >= least)):
            if not is_in_vectors(read, strides):
                continue
            mapping = dict(zip(loop.dims, read.indices, strict=True))
            for load in substitute_dims(body, mapping).loads:
                kind = self._graph.values[load.source].type
                is_part = kind.dtype.bytes < value.type.dtype.bytes or _is_small(kind.numel, value.type.numel)
                if not is_part and not is_in_vectors(load, kind.strides):
                    return True
        return False

    def _is_cheap(self, value: Value, body: Scalar, max_cost: int, max_loads: int) -> bool:
        """Returns whether computing a value again is no dearer than loading it."""
        loads = body.loads
        if len(loads) > max_loads:
            return False
        numel, budget = value.type.numel, value.type.dtype.bytes
        for load in loads:
            read = self._graph.values.get(load.source)
            if read is None or not _is_small(read.type.numel, numel):
                budget -= load.dtype.bytes
        return budget >= 0 and cost_up_to(body, max_cost, REPEATED_COSTS) <= max_cost

    def _without_unread(self, definitions: list[Definition]) -> list[Definition]:
        needed = set(self._fixed)
        kept: list[Definition] = []
        for definition in reversed(definitions):
            if isinstance(definition, Loop):
                (value,) = definition.results
                if value.name in self._sources and value.name not in needed:
                    continue
            kept.append(definition)
            needed.update(names_read(definition))
        kept.reverse()
        return kept


def _split(definition: Definition) -> tuple[Definition, ...]:
    """Returns a loop with several results as one loop for each."""
    if not isinstance(definition, Loop) or len(definition.results) == 1:
        return (definition,)
    pairs = zip(definition.results, definition.bodies, strict=True)
    return tuple(Loop((value,), definition.dims, (body,), definition.origins) for value, body in pairs)


def _with_origins(definition: Definition, earlier: list[Origin]) -> Definition:
    """Returns the definition with further origins in front of its own."""
    origins = tuple(dict.fromkeys((*earlier, *definition.origins)))
    return definition if origins == definition.origins else replace(definition, origins=origins)


def _device_of(definition: Definition) -> str:
    results = definition.results
    return results[0].type.device if results and results[0] is not None else ""


def _is_small(numel: Size, reference: Size) -> bool:
    """Returns whether a value has less than half as many elements as another, as far as their hints tell.

    That an extent of the other alone is short in the call that is compiled says little about the calls to come.
    """
    times = sizes.quotient(reference, numel)
    if times is not None and not sizes.is_static(times):
        return True
    return 2 * sizes.hint(numel) + 1 <= sizes.hint(reference)


def _elements_read(loads: Iterable[Scalar]) -> dict[str, int]:
    """Returns how many elements loads read of each value, each as often as it does where dims of the reader differ."""
    found: dict[str, int] = {}
    for load in loads:
        dims = frozenset[Dim]().union(*(index.dims for index in load.indices))
        found[load.source] = found.get(load.source, 0) + math.prod(sizes.hint(dim.size) for dim in dims)
    return found


def _rows_of(contract: Contract) -> int:
    """Returns how many rows a contraction has, about: points of the dims that its right factor does not depend on."""
    return sizes.hint(sizes.product(dim.size for dim in contract.dims if dim not in contract.right.dims))
