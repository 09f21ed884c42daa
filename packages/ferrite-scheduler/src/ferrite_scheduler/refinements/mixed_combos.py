"""Horizontal fusion (combo kernels) of whole kernels: small independent ones, of any forms and sizes, share a launch.

A launch costs the host and the device a few microseconds, which is most of what a small kernel takes. Kernels that
need nothing of each other can be one launch though they have nothing in common: each gets a range of its programs.

```text
 before   launch A  launch B  launch C         programs   0 1 2 3 4 5 6 7 8 9
 after    launch (A, B, C)                     are of     A A A A B C C C C C
```

Kernels are taken in the order of execution. Each is moved up to an earlier one, or that down to it, if nothing between
needs them where they are, if no more memory is in use at the peak, and if the rules below, `RULES`, have nothing
against it; what they say is kept as decisions. Where too few come together in a program of many kernels they stay
apart, if others are like them: a kernel that no other layer has would be compiled for each such launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import Graph
from ferrite_ir.language.sizes import symbols_of
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.fusion.rules import Refusal, refuse
from ferrite_scheduler.kernels.shared_launches import combined, moved_bytes, row_length, stores_rows
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.memory.positions import Positions
from ferrite_scheduler.model.forms import Combo, Pointwise
from ferrite_scheduler.model.launch_rules import CACHE, FEW, PATH, PEAK
from ferrite_scheduler.model.lists import as_written, single_members
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Decision, Kernel, Param


class Written(dict[int, frozenset[int]]):
    """The texts that kernels at positions of the order of execution have, by numbers, made as they are asked for."""

    def __init__(self, work: Sequence[Work]) -> None:
        super().__init__()
        self._work = work
        self._numbers: dict[Kernel, int] = {}

    def __missing__(self, position: int) -> frozenset[int]:
        kernel = self._work[position]
        assert isinstance(kernel, Kernel), "kernels are asked for"
        texts = map(as_written, single_members(kernel))
        found = self[position] = frozenset(self._numbers.setdefault(text, len(self._numbers)) for text in texts)
        return found


@dataclass(slots=True)
class Launch:
    """Kernels that share a launch, in the order in which they joined, and what the rules ask about them.

    Attributes:
        position: in the order of execution.
        kernels: at first one, or the members of one.
        form: a form of theirs that shares no launch, "" if there is none.
        is_guarded: whether it is left out for some sizes.
        params, devices, symbols: of all; the last ones those that the sizes of axes are made of.
        largest, total: bytes moved by the largest, and by all.
        shortest, longest: points of their reduction axes; 1 without one.
        is_pointwise: whether none has one.
        is_stored: whether one that has one stores about as much as it reads.
        taken: where its kernels were in the order of execution.
        written: the texts of kernels, by those positions.
        bound: most bytes of one of them that others of the graph have made, or are to read.
        is_free: whether there are none.
    """

    position: int
    kernels: list[Kernel]
    form: str
    is_guarded: bool
    params: set[str]
    devices: set[str]
    symbols: frozenset[str]
    largest: int
    total: int
    shortest: int
    longest: int
    is_pointwise: bool
    is_stored: bool
    bound: int
    is_free: bool
    taken: list[int]
    written: Written

    @classmethod
    def of(cls, kernel: Kernel, position: int, own: Sequence[Param], written: Written) -> Launch:
        """Returns the launch of one kernel, or of those that it holds.

        ``own`` are the params that the graph makes for itself.
        """
        members = list(kernel.members)
        sizes, rows = [moved_bytes(member) for member in members], [row_length(member) for member in members]
        return cls(
            position,
            members,
            next((member.form.name for member in members if not member.form.joins), ""),
            bool(kernel.skip_guard),
            {param.name for param in kernel.params},
            {param.type.device for param in kernel.params if not param.host_scalar},
            frozenset().union(*map(changing_sizes, members)),
            max(sizes),
            sum(sizes),
            min(rows),
            max(rows),
            all(isinstance(member.form, Pointwise | Combo) for member in members),
            any(stores_rows(member) for member in members),
            max(moved_bytes(replace(member, params=tuple(p for p in member.params if p in own))) for member in members),
            not own,
            [position],
            written,
        )

    @property
    def texts(self) -> frozenset[int]:
        """Returns the texts that the kernels have, one for all that are alike."""
        return frozenset().union(*(self.written[position] for position in self.taken))

    @property
    def name(self) -> str:
        """Returns a value that is made here."""
        return self.kernels[-1].body[-1].results[0].name

    def absorb(self, other: Launch) -> None:
        """Adds the kernels of another launch."""
        self.kernels += other.kernels
        self.taken += other.taken
        self.params |= other.params
        self.devices |= other.devices
        self.symbols |= other.symbols
        self.largest, self.total = max(self.largest, other.largest), self.total + other.total
        self.shortest, self.longest = min(self.shortest, other.shortest), max(self.longest, other.longest)
        self.is_pointwise = self.is_pointwise and other.is_pointwise
        self.is_stored = self.is_stored or other.is_stored
        self.bound, self.is_free = max(self.bound, other.bound), self.is_free and other.is_free


def changing_sizes(kernel: Kernel) -> frozenset[str]:
    """Returns the symbols that the sizes of the axes of a kernel are made of."""
    return frozenset(name for axis in kernel.axes for dim in axis.dims for name in symbols_of(dim.size))


def _forms(a: Launch, b: Launch, _: Policy) -> Refusal | None:
    if form := a.form or b.form:
        return refuse(f"programs of the form {form} share no launch with others")
    return refuse("one of them is not launched for all sizes") if a.is_guarded or b.is_guarded else None


def _devices(a: Launch, b: Launch, _: Policy) -> Refusal | None:
    return refuse("they run on different devices") if len(a.devices | b.devices) > 1 else None


def _parts(a: Launch, b: Launch, policy: Policy) -> Refusal | None:
    limit = policy.max_combo_parts
    if len(a.kernels) + len(b.kernels) <= limit:
        return None
    texts = len(a.texts | b.texts)
    return None if texts <= limit else refuse("too many kernels share the launch", parts=texts, limit=limit)


def _params(a: Launch, b: Launch, policy: Policy) -> Refusal | None:
    count, limit = len(a.params | b.params), policy.max_launch_params
    return None if count <= limit else refuse("too many tensors", tensors=count, limit=limit)


def _sizes(a: Launch, b: Launch, policy: Policy) -> Refusal | None:
    moved, limit = max(a.largest, b.largest), policy.combo_part_bytes
    # Programs that only reduce want about as many warps as each other; of what is stored as well each wants its own.
    is_alike = a.is_pointwise == b.is_pointwise and not (a.is_stored or b.is_stored)
    is_detached = max(a.bound, b.bound) <= policy.combo_moved_bytes and is_alike
    if moved <= limit or is_detached or a.texts == b.texts:
        return None
    return refuse("a launch is little beside what one takes", bytes=moved, limit=limit)


def _rows(a: Launch, b: Launch, policy: Policy) -> Refusal | None:
    if a.total + b.total <= policy.combo_unlike_bytes or (a.is_pointwise and b.is_pointwise):
        return None
    limit, longest = policy.combo_row_elements, max(a.longest, b.longest)
    if min(a.shortest, b.shortest) <= limit < longest:
        return refuse("programs of long rows want more warps than those of others", longest=longest, limit=limit)
    return None


def _symbols(a: Launch, b: Launch, _: Policy) -> Refusal | None:
    if a.symbols <= b.symbols or b.symbols <= a.symbols:
        return None
    here, there = (", ".join(sorted(each.symbols)) for each in (a, b))
    return refuse("compiled for sizes that change by themselves, there would be many of it", first=here, second=there)


RULES: dict[str, Callable[[Launch, Launch, Policy], Refusal | None]] = {
    "C01": _forms,
    "C02": _devices,
    "C03": _parts,
    "C04": _params,
    "C05": _sizes,
    "C06": _rows,
    "C07": _symbols,
}
"""What checks whether two launches may be one, by the number of the rule; those about the order come after these."""


def combine_kernels(
    work: Sequence[Work], graph: Graph, dependences: Dependences, policy: Policy, released: Collection[str] = ()
) -> tuple[list[Work], tuple[Decision, ...]]:
    """Returns the work with kernels that share launches, and why they do or do not.

    ``released`` are inputs whose storage is freed after their last use.
    """
    kernels = [position for position, item in enumerate(work) if isinstance(item, Kernel) and item.points]
    if not policy.mixed_combos or len(kernels) < 2:
        return list(work), ()
    alone: set[int] = set()
    few: list[Decision] = []
    written = Written(work)
    while True:
        walk = _Walk(work, Positions(work, graph, dependences, released), dependences, policy, written)
        for position in kernels:
            if position not in alone:
                walk.take(position)
        least = policy.combo_least_parts if len(kernels) > policy.combo_small_program else 2
        small = [launch for launch in walk.launches if 1 < len(launch.kernels) < least]
        small = [launch for launch in small if _is_written_again(launch, kernels, written)] if small else []
        if not small:
            return walk.finished(), (*walk.decisions, *few)
        for launch in small:
            alone.update(launch.taken)
            few.append(_too_few(launch, policy))


def _is_written_again(launch: Launch, kernels: Sequence[int], written: Written) -> bool:
    """Returns whether kernels of a launch are written for others, too: to join them is another text then."""
    texts = launch.texts
    return any(position not in launch.taken and not texts.isdisjoint(written[position]) for position in kernels)


def _too_few(launch: Launch, policy: Policy) -> Decision:
    first, *_, last = (kernel.body[-1].results[0].name for kernel in launch.kernels)
    numbers = (("kernels", len(launch.kernels)), ("least", policy.combo_least_parts))
    return Decision(first, last, False, FEW, "another kernel text for a launch or two", numbers)


class _Walk:
    """The way through the order of execution: launches so far, and what was decided."""

    def __init__(
        self,
        work: Sequence[Work],
        positions: Positions,
        dependences: Dependences,
        policy: Policy,
        written: Written,
    ) -> None:
        self.decisions: list[Decision] = []
        self._work: list[Work | None] = list(work)
        self._positions = positions
        share = min(positions.peak // policy.combo_peak_share, policy.combo_moved_bytes)
        self._peak = positions.peak + max(policy.combo_peak_bytes, share)
        self._policy, self._written = policy, written
        self._storage, self._definer = dependences.storage, dependences.definer
        self._kept = {dependences.storage[name] for name in dependences.kept}
        self.launches: list[Launch] = []
        self._open: list[Launch] = []

    def take(self, position: int) -> None:
        """Has the kernel at a position join a launch before, or be one that others may join."""
        kernel = self._work[position]
        assert isinstance(kernel, Kernel), "kernels are taken"
        mine = Launch.of(kernel, position, self._own_params(kernel), self._written)
        earliest = self._positions.earliest(position)
        refused: list[Decision] = []
        farthest = position - self._policy.combo_distance
        self._open = [launch for launch in self._open if launch.position >= farthest]
        for launch in self._open[-self._policy.combo_launches :]:  # the earliest first: its dependences are the fewest
            found = self._join(launch, mine, earliest)
            if found is None:
                self.decisions.append(Decision(launch.name, mine.name, True, "", "saves a launch"))
                launch.absorb(mine)
                if len(launch.params) >= self._policy.max_launch_params:
                    self._open.remove(launch)
                return
            rule, refusal = found
            if rule != PATH:  # fusion rules tell of kernels that need each other
                refused.append(Decision(launch.name, mine.name, False, rule, refusal.reason, refusal.numbers))
        self.decisions += refused[-self._policy.combo_refusals :]
        if not mine.form and not mine.is_guarded:
            self.launches.append(mine)
            self._open.append(mine)

    def _join(self, launch: Launch, mine: Launch, earliest: int) -> tuple[str, Refusal] | None:
        """Moves a kernel to a launch, or the launch to it; returns why not, with the number of the rule.

        ``earliest`` is the first position at which the kernel could run.
        """
        for rule, check in RULES.items():
            refusal = check(launch, mine, self._policy)
            if refusal is not None:
                return rule, refusal
        positions, there, here = self._positions, launch.position, mine.position
        ways = [(here, there)] if earliest <= there else []
        if not ways or not (launch.is_free and mine.is_free):
            ways += [(there, here)] if positions.latest(there) >= here else []
        if not ways or positions.crosses_wall(there, here):
            return PATH, refuse("what is needed between them runs between them")
        bound, limit = max(launch.bound, mine.bound), self._policy.combo_moved_bytes
        if bound > limit and any(item is not None for item in self._work[there + 1 : here]):
            return CACHE, refuse("it would not find its operands in the cache any more", bytes=bound, limit=limit)
        source, target = ways[0]
        if not (launch.is_free and mine.is_free):
            peaks = [positions.peak_after(*way) for way in ways]
            source, target = ways[peaks.index(min(peaks))]
            if min(peaks) > self._peak:
                return PEAK, refuse("values would live longer, at the peak", bytes=min(peaks), peak=self._peak)
        positions.move(source, target)
        self._work[target], self._work[source] = self._work[there], None
        launch.position = target
        return None

    def _own_params(self, kernel: Kernel) -> list[Param]:
        """Returns the params of a kernel that the caller neither gives nor gets."""
        return [
            param
            for param in kernel.params
            if (
                self._storage[param.name] in self._definer
                if param.access == "read"
                else self._storage[param.name] not in self._kept
            )
        ]

    def finished(self) -> list[Work]:
        """Returns the work in order, with the kernels of each launch as one."""
        for launch in self.launches:
            if len(launch.kernels) > 1:
                self._work[launch.position] = combined(launch.kernels, self._policy)
        return [item for item in self._work if item is not None]
