"""CUDA graphs of a program's parts: one launch for each run of steps that can be captured, the rest between them.

Who owns what: a part owns the memory that its results lie in, and copies of those inputs that move from call to call.
What one part makes another reads where it lies. What leaves a call, or is given to the user's functions, is copied out
first, so nobody else ever has a tensor that the next call overwrites.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

from ferrite_runtime.engines.engine import HostFunction, build_host
from ferrite_runtime.engines.generations import Generation, Generations
from ferrite_runtime.engines.graph_parts import partition
from ferrite_runtime.engines.graph_recorder import Recorder
from ferrite_runtime.engines.graphed_part import GraphedPart, owners_of
from ferrite_runtime.engines.lent_memory import (
    NO_LENDING,
    Lending,
    lent_view,
    readers_of,
)
from ferrite_runtime.engines.playback import Playback, PlaybackWriter
from ferrite_runtime.engines.shape_cache import ShapeCache, write_entry
from ferrite_runtime.engines.tensor_copies import copies, taker
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.host.thresholds import GRAPHS
from ferrite_runtime.process.forking import renewed_in_children

_LOG = logging.getLogger("ferrite_runtime")

_AS_IT_IS = nullcontext()

_programs: WeakSet[GraphedProgram] = WeakSet()

Build = Callable[[Program], HostFunction]
"""Returns the host function of a section."""


def graphed_host(
    program: Program,
    host: HostFunction,
    build: Build,
    device: Any,
    recorder: Recorder,
    least: int = GRAPHS.launches,
    lending: Lending = NO_LENDING,
) -> HostFunction:
    """Returns a function that plays a program's parts; calls of new sizes go on with ``host`` until these recur.

    Args:
        program: the program.
        host: runs it from the host.
        build: returns what runs a section of it from the host.
        device: the ``torch.device`` of its kernels.
        recorder: what captures.
        least: launches that a part has at least.
        lending: what is not copied before it is returned, and which inputs stay where they are.
    """
    roots = size_roots(program)
    if not roots:
        return GraphedProgram(program, host, build, recorder, least, lending)

    def write(sizes: Sequence[int]) -> HostFunction:
        known = at_sizes(program, dict(zip(roots, map(int, sizes), strict=True)))
        return GraphedProgram(known, host, build, recorder, least, lending)

    cache = ShapeCache(host, write)
    return build_host(write_entry(program, roots), {"_prepared": cache.prepared, "_specialise": cache}, device)


def capture_counts() -> Counter[str]:
    """Returns how many captures there are now in this process, by what they play and what is copied for that."""
    return Counter(text for program in list(_programs) for text in program.captures())


class GraphedProgram:
    """A program in sections, whose parts are captured when enough is known of its inputs, and played from then on.

    Results are the caller's own, but for those that are lent (`Lending`): what only its backward sees, gradients, and
    all results of a program for inference. These stay where they are, and nothing is played over them while somebody
    holds one. A call that comes meanwhile has a generation of its own, which copies them if it is one too many
    (`Lending.depths`). Who reads what others lend has a generation for each place where that lies, and for each set of
    parameters (`generations`). What is in no part runs as it did; a warning says why.
    """

    def __init__(
        self,
        program: Program,
        host: HostFunction,
        build: Build,
        recorder: Recorder,
        least: int = GRAPHS.launches,
        lending: Lending = NO_LENDING,
    ) -> None:
        self._program = program
        self._host = host
        self._build = build
        self._recorder = recorder
        self._lock = renewed_in_children(threading.Lock())
        self._warm = threading.local()
        self._partition = partition(program, least)
        self._names = [value.name for value in program.inputs]
        self._given = frozenset(self._names)
        read = {name for section in self._partition.sections if section.is_part for name in section.inputs}
        self._watched = [position for position, name in enumerate(self._names) if name in read]
        self._take_watched = taker(self._watched)
        self._lendable, self._lent = _lendable(self._partition.sections[-1].program, lending.results, self._given)
        self._lending = lending
        self.generations = Generations(self._names, self._watched, lending, lends=bool(self._lent))
        self._streams: list[Any] = []
        self._last: Generation | None = None
        self.played = 0
        self.from_host = 0
        self.reason = "" if self._partition.parts else self._reasons()
        if self._partition.obstacles:
            self._warn()
        _programs.add(self)

    def captures(self) -> Iterator[str]:
        """Yields for each generation that is captured what it plays, and what is copied for that."""
        for each in list(self.generations.values()):
            played = sum(part.section.launches for part in each.parts if part.is_played)
            if played:
                copied = f"{len(each.moving)} of {len(self._names)} inputs copied"
                yield f"{self._program.name}: {played} launches, {copied}"

    def _reasons(self) -> str:
        found = "; ".join(map(str, self._partition.obstacles))
        return found or "it launches nothing that a graph could hold"

    def _warn(self) -> None:
        if self.reason:
            _LOG.warning("program %s runs without a CUDA graph: %s", self._program.name, self.reason)
        else:
            parts = self._partition.parts
            _LOG.warning(
                "program %s runs as %d CUDA graph%s, and from the host for the rest: %s",
                *(self._program.name, parts, "s" if parts > 1 else "", self._reasons()),
            )

    def _give_up(self, reason: str) -> None:
        self.reason, self._last = reason, None
        self.generations.clear()
        self._warn()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the program; clears ``args``."""
        # Who calls it while it runs, in another thread or from a function of the user's in the middle, does not wait.
        if self.reason or self._recorder.is_recorded() or not self._lock.acquire(blocking=False):
            return self._host(args)
        import torch

        try:
            with torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS:
                addresses = list(map(torch.Tensor.data_ptr, self._take_watched(args)))
                depth = self._depth(addresses)
                generation = self._last
                if generation is None or generation.depth != depth or not generation.comes_again(addresses):
                    generation = self._last = self.generations.at(depth, addresses, args)
                    if generation is None:
                        return self._host(args)
                    if not self._is_prepared(generation, addresses):
                        results = self._host(args)
                        if self._lent and self._lending.is_nested:
                            generation.watch(results[self._lent[0]])
                        return results
                self._follow(generation)
                playback = self._settled(generation)
                return self._run(generation, args) if playback is None else self._play(generation, playback, args)
        finally:
            self._lock.release()

    def _depth(self, addresses: Sequence[int]) -> int:
        """Returns the depth of what is played now, for inputs that lie at these addresses.

        Graphs of a later generation may have lent what lies in the temporary memory of an earlier one, as they have
        one pool: so the earlier one is not played while they are held. Those that take turns have a pool each.
        """
        if not self._lent:
            return 0
        held = [each for each in self.generations.values() if each.lends and each.is_held()]
        if not held:
            return 0
        if self._lending.is_nested:
            return min(1 + max(each.depth for each in held), self._lending.calls)
        depths = {each.depth for each in held}
        if 0 not in depths:
            return 0
        is_next = len(depths) == 1 and any(each.memory.lends_at(addresses) for each in held)
        return 1 if is_next else self._lending.depths

    def _is_prepared(self, generation: Generation, addresses: Sequence[int]) -> bool:
        """Tells whether parts may be played; begins anew with them where inputs have moved that did not before."""
        if generation.is_ready(addresses):
            return True
        if not generation.look_at(addresses, is_warm=self._is_warm()):
            return False
        if generation.captured == GRAPHS.captures:
            self._give_up(f"its inputs moved after each of {GRAPHS.captures} captures")
            return False
        self._recorder.wait()
        pool = self.generations.pool_for(generation)
        generation.begin((GraphedPart(s, self._build(s.program)) for s in self._partition.sections), addresses)
        generation.pools = [self._recorder.make_pool() if pool is None else pool]
        self.generations.note_capture(generation)
        return True

    def _is_warm(self) -> bool:
        """Tells whether this thread has run the program before: libraries make what they need of a thread then.

        That allocates, past torch, which a capture does not allow.
        """
        is_warm, self._warm.has_run = getattr(self._warm, "has_run", False), True
        return is_warm

    def _follow(self, generation: Generation) -> None:
        """Has this call wait for those before it, and for who reads what they were lent, in other streams.

        What another generation lends may lie in temporary memory of this one.
        """
        readers = readers_of(each.memory for each in self.generations.values())
        *_, current = map(self._recorder.follow, [*(self._streams or [None]), *readers])
        kept = self._streams if self._lent else []
        self._streams = [*(each for each in kept if each != current), current]

    def _settled(self, generation: Generation) -> Playback | None:
        """Returns what this call does, if it is known; the call with which parts were captured has to be over."""
        if generation.lends and self._recorder.is_hooked():
            return None
        if not generation.is_settled and all(
            part.is_played or part.failure or not part.section.is_part for part in generation.parts
        ):
            lendable = self._lendable if generation.lends else ()
            writer = PlaybackWriter(self._names, lendable, generation.memory, generation.places)
            generation.playback = writer.write(generation.parts)
            generation.is_settled = True
        return generation.playback

    def _play(self, generation: Generation, playback: Playback, args: list[Any]) -> tuple[Any, ...]:
        results = playback(args)
        self.played += playback.played
        self.from_host += playback.from_host
        self._tell(generation, results)
        return results

    def _tell(self, generation: Generation, results: Sequence[Any]) -> None:
        if generation.lends:
            generation.memory.tell(results[position] for position in self._lent)

    def _run(self, generation: Generation, args: list[Any]) -> tuple[Any, ...]:
        values = dict(zip(self._names, args, strict=True))
        args.clear()
        placed = {name for name in values if name not in generation.moving}
        results: tuple[Any, ...] = ()
        for part in generation.parts:
            section = part.section
            names: Collection[str] = section.escaping
            if part is generation.parts[-1] and generation.lends and not self._recorder.is_hooked():
                names = self._lend(generation, names, values, placed)
            self._copy_out(generation, names, values, placed)
            given = [values.pop(name) if name in section.dying else values[name] for name in part.inputs]
            if section.is_part and not part.is_played and not part.failure:
                self._capture(generation, part, given, placed)
            results = part(given)
            self._count(part)
            made = {name: value for name, value in zip(part.outputs, results, strict=True) if name is not None}
            values |= made
            if part.is_played:
                placed.update(made)
        self._tell(generation, results)
        return results

    def _capture(
        self, generation: Generation, part: GraphedPart, given: Sequence[Any], placed: Collection[str]
    ) -> None:
        part.capture(given, set(part.inputs) - set(placed), self._recorder, generation.pools[-1])
        generation.memory.add(part.results)
        if part.is_played:
            found = map(generation.memory.find, part.results)
            generation.places |= {name: each for name, each in zip(part.outputs, found, strict=True) if name}
        part.let_go(generation.static or ())
        failures = [each.failure for each in generation.parts if each.failure]
        if len(failures) == self._partition.parts:
            self._give_up("; ".join(dict.fromkeys(failures)))
        elif part.failure:
            _LOG.warning(
                "program %s runs %d launches from the host: a CUDA graph of them failed: %s",
                *(self._program.name, part.section.launches, part.failure),
            )
            # torch takes no pool again that nobody used any more
            generation.pools.append(self._recorder.make_pool())

    def _lend(
        self, generation: Generation, names: Collection[str], values: dict[str, Any], placed: Collection[str]
    ) -> Collection[str]:
        """Replaces values that are lent by tensors over the same memory; returns the names of the others.

        What lies in memory that another program lends is not lent again: that program could not be played meanwhile.
        """
        lent = set()
        for name in names:
            place = generation.place_of(name, values[name], placed) if name in self._lendable else None
            if place is not None and generation.memory.owns(place):
                values[name] = lent_view(values[name])
                generation.memory.lend(generation.memory.loan((place,)))
                lent.add(name)
        return [name for name in names if name not in lent]

    def _copy_out(
        self, generation: Generation, names: Collection[str], values: dict[str, Any], placed: set[str]
    ) -> None:
        """Replaces values that lie in the memory of parts by copies, before somebody gets them who may keep them."""
        theirs = [
            name
            for name in names
            if name not in self._given and generation.place_of(name, values[name], placed) is not None
        ]
        values |= zip(theirs, copies([values[name] for name in theirs]), strict=True)
        placed.difference_update(theirs)

    def _count(self, part: GraphedPart) -> None:
        if part.is_played:
            self.played += part.section.launches
        else:
            self.from_host += part.section.launches


def _lendable(last: Program, lent: Collection[int], given: Collection[str]) -> tuple[frozenset[str], tuple[int, ...]]:
    """Returns which inputs of a program's last section only its results at ``lent`` lie in, and which results do.

    ``given`` are the inputs of the whole program, whose memory is the caller's.
    """
    owners, inputs = owners_of(last), {value.name for value in last.inputs}
    lying = [None if output.value is None else owners.get(output.value, output.value) for output in last.outputs]
    found = [name if name in inputs else None for name in lying]
    others = {name for position, name in enumerate(found) if position not in lent}
    names = frozenset(name for name in found if name is not None) - others - set(given)
    return names, tuple(position for position, name in enumerate(found) if name in names)
