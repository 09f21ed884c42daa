"""Thresholds of calls: memory that may live longer for faster ones, functions written for sizes, launches, CUDA graphs.

All are set: by what a call of a small program takes, tens of microseconds, beside which a few MiB more do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryThresholds:
    """Memory of values, in bytes.

    Attributes:
        arena: most bytes of all values of a program that are made by one allocation.
        deferred: most bytes of values of known sizes that live until the launches that wait are started.
        deferred_of_lengths: the same for sizes that a call gives. Their text is one for many sizes: it cannot start
            what waits just where the sum gets too large, as it does for known sizes, but only where it did so for the
            sizes of one call, and leave calls of much larger ones to another text.
        raised: most bytes by which values that live longer raise the peak of a program, where a buffer that is larger
            than all of them makes the peak.
    """

    arena: int = 8 << 20
    deferred: int = 8 << 20
    deferred_of_lengths: int = 32 << 20
    raised: int = 1 << 20


@dataclass(frozen=True, slots=True)
class ShapeThresholds:
    """Host functions that are written for the sizes of calls.

    Attributes:
        calls: calls of the same sizes after which a function is written for them: writing it takes as long as several.
        functions: of a program at once; one more takes the place of the oldest.
        calls_when_full: calls of the same sizes after which another function goes for theirs: so often is one written,
            at most.
        counted: different sizes whose calls are counted; beyond that counting starts anew.
        sized: functions of a program that are written for the sizes of one call each, and serve several times these.
        prepared: starts of a sequence of launches, each for other sizes, that one place of a program keeps; beyond that
            it starts anew.
    """

    calls: int = 32
    functions: int = 16
    calls_when_full: int = 1024
    counted: int = 256
    sized: int = 3
    prepared: int = 512


@dataclass(frozen=True, slots=True)
class GraphThresholds:
    """CUDA graphs of parts of a program (decision 0056).

    Attributes:
        captures: captures of all parts after which a program whose inputs move again is left to the host: each takes
            as long as many calls. Set.
        generations: calls of a program that hold what they were lent at a time (decision 0061); more run from the host.
            Set: one for each layer of a model whose layers are one program.
        addresses: captures of a program for the addresses of one set of parameters each (decision 0073); calls with
            other sets copy them. As many in a row are not captured, because their sets did not come again, until no
            more are begun. Set, as ``generations``.
        calls_when_full: calls with a set of parameters without a capture after which it takes the place of one that
            was not asked for meanwhile. Set: a capture takes as long as many calls.
        refused: sets of parameters without a capture whose calls are counted; beyond that counting starts anew. Set.
        launches: launches and extern calls that a part has at least, by default. Set: the driver's graphs of launches
            start from as many on (decision 0008); of a part more is replayed, and where its inputs lie is looked at.
    """

    captures: int = 4
    generations: int = 32
    addresses: int = 32
    calls_when_full: int = 256
    refused: int = 256
    launches: int = 4


@dataclass(frozen=True, slots=True)
class LaunchThresholds:
    """Launches that start before the kernel before them has ended (programmatic dependent launch, decision 0014).

    Attributes:
        light_bytes, light_operations: what a light kernel moves and computes, at most, which starts early however few
            programs it has. Set: it is to gain more by that than its places may cost. A start saves about as long as a
            GPU of 3 TB/s takes to move that.
    """

    light_bytes: int = 4 << 20
    light_operations: int = 8 << 20


MEMORY, SHAPES, GRAPHS, LAUNCHES = MemoryThresholds(), ShapeThresholds(), GraphThresholds(), LaunchThresholds()
"""What host functions are written by, and replayed."""
