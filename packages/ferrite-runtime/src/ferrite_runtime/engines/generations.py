"""Generations of a program: what is captured of it for calls that are alike, and how many such captures there are.

Calls are alike if as many earlier ones hold what they were lent, if what others lend lies where it lay, and if the
*static* inputs do: parameters, buffers and constants, which a program reads where they lie. So a program that is called
for each of several equal layers has a capture for the parameters of each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ferrite_runtime.engines.graphed_part import GraphedPart
from ferrite_runtime.engines.lent_memory import GraphMemory, Lending, is_gone, is_lent, lent_among
from ferrite_runtime.engines.playback import Playback
from ferrite_runtime.engines.tensor_copies import taker
from ferrite_runtime.host.thresholds import GRAPHS


class Generation:
    """A program captured for calls that are alike in whose memory is lent: its parts, and what they count on.

    An input that is where it was at the call before is read there. When one moves that did not before, all parts are
    captured again, so that they agree on where their common values lie.

    Attributes:
        depth: how many calls before it hold what they were lent while it is played; 1 of those that take turns with
            others of depth 0, whichever are held (`Lending.depths`).
        lends: whether it lends anything, or copies all.
        static: names of the static inputs, whose addresses are its own; None if it is for any addresses of these.
        parts: the sections, once they have been captured.
        moving: the inputs that lie elsewhere in the next call.
        captured: how often its parts were captured.
        memory: where the results of its parts lie.
        places: where in it values lie, by name, of those that captured parts make: these lie there in each call.
        playback: what a call does, once parts are captured; None where that is looked at in each call.
        is_settled: whether this has been found out.
        pools: those that its parts are captured in, the next of them in the last.
        used: when `Generations` was asked for it last.
    """

    def __init__(
        self,
        watched: Sequence[str],
        depth: int,
        looks: int,
        *,
        lends: bool,
        is_shown: bool = False,
        static: Mapping[str, Any] | None = None,
    ) -> None:
        self.depth = depth
        self.lends = lends
        self.static = None if static is None else frozenset(static)
        self.parts: tuple[GraphedPart, ...] = ()
        self.moving: set[str] = set()
        self.captured = 0
        self.memory = GraphMemory(is_shown=is_shown)
        self.places: dict[str, int | None] = {}
        self.playback: Playback | None = None
        self.is_settled = False
        self.pools: list[Any] = []
        self.used = 0
        self._watched = watched
        self._addresses: Sequence[int] | None = None
        self._looks, self._least_looks = 0, looks
        self._take_resting, self._take_moving = taker(()), taker(())
        self._rests: Sequence[int] = ()
        self._seen: Callable[[], bool] = lambda: True
        self._gone = tuple(map(is_gone, (static or {}).values()))

    def is_ready(self, addresses: Sequence[int]) -> bool:
        """Tells whether its parts may be played where inputs lie at these addresses."""
        return bool(self.parts) and self._take_resting(addresses) == self._rests

    def comes_again(self, addresses: Sequence[int]) -> bool:
        """Tells whether a call whose inputs lie at these addresses is like the one before, which played its parts."""
        return self.static is not None and self.is_ready(addresses) and not lent_among(self._take_moving(addresses))

    def look_at(self, addresses: Sequence[int], *, is_warm: bool) -> bool:
        """Looks at where inputs lie; tells whether enough is known of them for its parts to be captured."""
        before = self._addresses
        if before is None or not is_warm:
            if not self.parts:  # graphs go on reading where they did
                self._addresses = addresses
            return False
        moved = {name for name, one, now in zip(self._watched, before, addresses, strict=True) if one != now}
        self.moving = self.moving | moved if self.parts else moved
        self._addresses = addresses
        self._looks += 1
        return self._looks >= self._least_looks

    def begin(self, parts: Iterable[GraphedPart], addresses: Sequence[int]) -> None:
        """Forgets what is captured: all of it is captured anew in this call."""
        self.captured += 1
        resting = [place for place, name in enumerate(self._watched) if name not in self.moving]
        self._take_resting = taker(resting)
        self._rests = self._take_resting(addresses)
        self._take_moving = taker([place for place, name in enumerate(self._watched) if name in self.moving])
        self.playback, self.is_settled = None, False
        self.memory, self.places = GraphMemory(is_shown=self.memory.is_shown), {}
        self.parts = self.parts or tuple(parts)
        for part in self.parts:
            part.forget()

    def watch(self, result: Any) -> None:
        """Has a call that ran from the host count as one that holds what it was lent, as long as it holds a result."""
        self._seen = is_gone(result)

    def place_of(self, name: str, value: Any, placed: Collection[str]) -> int | None:
        """Returns where the memory of its parts that a value lies in begins; None if it lies elsewhere, as a copy does.

        ``placed`` are the names of values that are where they were at the capture.
        """
        return self.places[name] if name in self.places and name in placed else self.memory.find(value)

    def is_held(self) -> bool:
        """Tells whether somebody holds what its last call was lent."""
        return not self._seen() or self.memory.is_held()

    def is_left(self) -> bool:
        """Tells whether a static input that it was made for is there no longer; it does not hold them."""
        return any(gone() for gone in self._gone)


class Key(NamedTuple):
    """What calls of one generation have in common.

    Attributes:
        depth: how many calls before it hold what they were lent.
        static: addresses of the static inputs; none if the generation is for any.
        lent: addresses, among those of inputs, of what others lend.
    """

    depth: int
    static: tuple[int, ...]
    lent: tuple[int, ...]


class Generations(dict[Key, Generation]):
    """The generations of a program. Few have addresses of static inputs of their own; one for all others copies these.

    Whose inputs are new in each call, as are weights that are made in each step, would be captured for nothing: so
    there are as many generations in a row for addresses that do not come again, and then no more.
    """

    def __init__(self, names: Sequence[str], watched: Sequence[int], lending: Lending, *, lends: bool) -> None:
        super().__init__()
        self._watched = [names[position] for position in watched]
        static = [position for position in watched if position in lending.static]
        self._static = [names[position] for position in static]
        self._take_tensors = taker(static)
        self._take_static = taker([watched.index(position) for position in static])
        self._lending = lending
        self._lends = lends
        self._time = 0
        self._fresh = 0
        self._refused: dict[tuple[int, ...], tuple[int, int]] = {}

    def at(self, depth: int, addresses: Sequence[int], args: Sequence[Any]) -> Generation | None:
        """Returns what is, or will be, played for a call; None if there are already many.

        ``addresses`` tell where those of its ``args`` lie that are watched.
        """
        self._time += 1
        key = Key(depth, self._take_static(addresses), lent_among(addresses))
        found = self.get(key)
        if found is None and key.static and self._is_due(key.static):
            self._forget_stale(key)
            if self._has_room(key.static):
                found = self._added(key, dict(zip(self._static, self._take_tensors(args), strict=True)))
        if found is None:
            found = self._for_any(key._replace(static=()))
        if found is not None:
            found.used = self._time
        return found

    def note_capture(self, generation: Generation) -> None:
        """Notes that a generation is captured: addresses do come again."""
        self._fresh = 0 if generation.static else self._fresh

    def pool_for(self, generation: Generation) -> Any:
        """Returns the pool that a generation may be captured in; None for a new one.

        What an earlier generation lends must not lie in the temporary memory of a later one, which may be played. What
        takes turns has pools of its own: each is played while the other's results are held. Torch takes no pool again
        that nobody uses any more, as may be one in which a capture failed: those are not the last of their generation.
        """
        depths: dict[Any, set[int]] = {}
        for each in self.values():
            for pool in each.pools:
                depths.setdefault(pool, set()).add(each.depth)
        turns, depth = generation.lends and not self._lending.is_nested, generation.depth
        used = {each.pools[-1]: depths[each.pools[-1]] for each in self.values() if each.pools}
        fitting = [pool for pool, found in used.items() if max(found) <= depth <= (min(found) if turns else depth)]
        return max(fitting, key=lambda pool: max(used[pool]), default=None) if not generation.captured else None

    def _for_any(self, key: Key) -> Generation | None:
        found = self.get(key)
        if found is None:
            self._forget_stale(key)
            if sum(not each.static for each in self) == GRAPHS.generations:
                return None
            found = self._added(key, None if self._static else {})
        return found

    def _added(self, key: Key, static: Mapping[str, Any] | None) -> Generation:
        """Returns a new generation.

        The first call may have been another's, as of another layer: that somebody held what it was lent was not seen
        where it ran before this looked. What borrows waits for the one that lends, which is looked at twice.
        """
        self._fresh += bool(static)
        lends = self._lends and key.depth < self._lending.depths
        looks = 1 + (self._lending.is_nested or (self._lending.borrows and not key.lent))
        is_shown = not self._lending.is_nested and not self._lending.borrows  # all results are the caller's
        self[key] = Generation(self._watched, key.depth, looks, lends=lends, is_shown=is_shown, static=static)
        return self[key]

    def _is_due(self, static: tuple[int, ...]) -> bool:
        """Tells whether addresses that nothing is captured for may be: not if they were refused a short time ago."""
        if static not in self._refused:
            return True
        since, calls = self._refused[static]
        self._refused[static] = since, calls + 1
        return (calls + 1) % GRAPHS.calls_when_full == 0

    def _has_room(self, static: tuple[int, ...]) -> bool:
        """Tells whether there may be one more generation with addresses of its own; refuses these if not.

        Two make room: one of the same addresses, or of some that are captured at another depth, that never came again;
        and one that was not asked for while these addresses came many times.
        """
        since, _ = self._refused.get(static, (0, 0))
        own, is_bold = [key for key in self if key.static], bool(since) or self._fresh < GRAPHS.addresses
        if len(own) < GRAPHS.addresses and is_bold:
            self._refused.pop(static, None)
            return True
        idle = [key for key in own if self[key].used < since and not self[key].is_held()]
        if self._fresh < 4 * GRAPHS.addresses:
            elsewhere = {static, *(key.static for key in own if self[key].captured)}
            idle += [key for key in own if key.static in elsewhere and not self[key].captured]
        if idle:
            del self[min(idle, key=lambda key: self[key].used)]
            self._refused.pop(static, None)
            return True
        if len(self._refused) >= GRAPHS.refused:
            self._refused.clear()
        self._refused[static] = self._time, 0
        return False

    def _forget_stale(self, key: Key) -> None:
        """Drops what reads what is there no longer, and what copies what is lent, if a generation is not to.

        What somebody was lent may lie in the temporary memory of other generations: while it is held, its own is known.
        """
        for each, generation in list(self.items()):
            is_copying = bool(key.lent) and not each.lent and each.static == key.static
            is_stale = is_copying or generation.is_left() or not all(map(is_lent, each.lent))
            if is_stale and not (generation.captured and generation.is_held()):
                del self[each]
