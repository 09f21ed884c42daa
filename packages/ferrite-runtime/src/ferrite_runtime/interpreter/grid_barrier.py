"""Grid barriers in an interpreter that runs one program after the other.

They are run twice. In the first round a program is left where it would begin to wait: it has published what others
wait for, and has stored nothing. In the second round everything that programs wait for is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ferrite_runtime.errors import KernelRunError
from ferrite_runtime.fmath import flags, grid_sync
from ferrite_runtime.formats.kernel_spec import KernelSpec


class LeftProgram(Exception):
    """Ends a program of the first round."""


class Barriers:
    """What programs do at a barrier, in either round: stand-ins for `fmath.grid_barrier`, `pause` and `other_epoch`."""

    def __init__(self) -> None:
        self._come: Counter[int] = Counter()

    def leave_here(self) -> None:
        """Ends a program of the first round that begins to wait for words.

        Raises:
            LeftProgram: always.
        """
        raise LeftProgram

    def stay(self) -> None:
        """Lets a program of the second round go on: all words are there."""

    def epoch_of(self, word: Any, bit: Any) -> Any:
        """Returns the epoch of a word that the program itself has left there in the first round."""
        return word & bit

    def leave(self, counter: Any, count: Any) -> None:
        """Notes that a program has come to a counter.

        Raises:
            LeftProgram: always.
        """
        self._come[_address(counter)] += 1
        raise LeftProgram

    def go_on(self, counter: Any, count: Any) -> None:
        """Lets a program go on that has waited for as many as come.

        Raises:
            KernelRunError: it would wait for ever, or not long enough.
        """
        wanted, come = int(getattr(count, "value", count)), self._come[_address(counter)]
        if come != wanted:
            raise KernelRunError(f"programs wait until {wanted} have come, and {come} come")


def _address(counter: Any) -> int:
    return int(counter.handle.data.item())


def rounds_of(spec: KernelSpec) -> tuple[tuple[tuple[Any, Callable[..., Any]], ...], ...]:
    """Returns, for each round in which a kernel is run, what stands in for the functions in which programs wait."""
    barriers = Barriers()
    first = (grid_sync.grid_barrier, barriers.leave), (grid_sync.pause, barriers.leave_here)
    last = (grid_sync.grid_barrier, barriers.go_on), (grid_sync.pause, barriers.stay)
    again = (*last, (flags.other_epoch, barriers.epoch_of))
    return (first, again) if spec.known_form.waits_for == "all" else (last,)
