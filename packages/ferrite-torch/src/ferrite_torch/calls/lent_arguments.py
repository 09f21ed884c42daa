"""Arguments that AOTAutograd never sees: lent by the call of a captured graph to the compiled graph inside of it.

captured graph      call(x, w_1, w_2, …, w_48)
AOTAutograd's       run(x, w_1)                      beside it, on the list of the thread: w_2, …, w_48
compiled graph      run([x, w_1, w_2, …, w_48])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ferrite_torch.calls.compiled_graph import CompiledGraph, chooser


class _Lent(threading.local):
    """What calls that are under way lend, the innermost last; of each thread its own."""

    def __init__(self) -> None:
        self.lists: list[Iterable[Any]] = []


_lent = _Lent()


def lending(call: Callable[..., Any], kept: Sequence[int], lent: Sequence[int]) -> Callable[..., Any]:
    """Returns a function of all arguments that calls one of some of them, and lends the others to what it calls.

    Args:
        call: takes the arguments at ``kept``, one by one.
        kept: positions of the arguments that are handed over.
        lent: positions of those that are lent.
    """
    choose_kept, choose_lent = chooser(kept), chooser(lent)

    def run(*arguments: Any) -> Any:
        _lent.lists.append(choose_lent(arguments))
        try:
            return call(*choose_kept(arguments))
        finally:
            _lent.lists.pop()

    return run


def borrowing(graph: CompiledGraph) -> CompiledGraph:
    """Returns a compiled graph that takes what the call around it lends behind its own arguments."""

    def run(arguments: list[Any]) -> Any:
        arguments.extend(_lent.lists[-1])
        return graph(arguments)

    return CompiledGraph(run, wait=graph.wait, is_ready=graph.is_ready, key=graph.key)
