"""The callable that a compiled graph is: what runs it, waits for its kernels, and runs it op by op instead."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

Boxed: TypeAlias = Callable[[list[Any]], Any]
"""A function of the list of its arguments, which it empties: AOTAutograd's convention."""


def _nothing() -> None:
    """Waits for nothing."""


def _always() -> bool:
    """Tells that there is nothing to wait for."""
    return True


def chooser(positions: Sequence[int]) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Returns what takes the values at some positions: for the hundreds of a backward graph the cheapest way."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda values: [values[position] for position in positions]


class CompiledGraph:
    """A graph of AOTAutograd that can be called with the list of its arguments, which it empties.

    Attributes:
        run: what a call does.
        wait: returns when all kernels are compiled; raises what the compiler of kernels does.
        is_ready: tells whether `wait` returns, or raises, at once.
        eager: the same graph run op by op, in the layouts that others count on.
        rest: makes the compiled graph of one that runs op by op for now, in any thread; None where nothing is left.
        key: its identity in the store; None where it is not stored.
        calls_captured: whether steps of it call functions of the graph that was captured.
        __wrapped__: what AOTAutograd's cache keeps in its place; only where it keeps something.
    """

    __wrapped__: Any

    def __init__(
        self,
        run: Boxed,
        *,
        wait: Callable[[], None] = _nothing,
        is_ready: Callable[[], bool] = _always,
        eager: Boxed | None = None,
        rest: Callable[[], CompiledGraph] | None = None,
        key: str | None = None,
    ) -> None:
        self.run = run
        self.wait = wait
        self.is_ready = is_ready
        self.rest = rest
        self.eager: Boxed = run if eager is None else eager
        self.key = key
        self.calls_captured = False
        self._boxed_call = True  # torch's name, and of the instance: functions around it copy what its dictionary holds

    def __call__(self, arguments: list[Any]) -> Any:
        """Returns the results."""
        return self.run(arguments)

    def fall_back(self, note: Callable[[Exception], None]) -> None:
        """Has the graph run op by op if its kernels turn out not to compile; ``note`` is told why, once.

        Kernels compile in the background; the first call waits for them, before anything has run or been written.
        """
        compiled = self.run

        def first(arguments: list[Any]) -> Any:
            try:
                self.wait()
            except Exception as error:  # noqa: BLE001  # whatever the compiler of kernels raises
                note(error)
                self.run = self.eager
            else:
                self.run = compiled
            return self.run(arguments)

        self.run = first
