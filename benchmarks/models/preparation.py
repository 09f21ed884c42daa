"""Runs cells of `benchmarks/models/run.py` in several processes at once.

Where all cells compile first, each process keeps to its share of the cores, and the device is shared: seconds of
compiling are those of a machine that is busy. What a backend measures meanwhile, to choose between builds, is measured
beside others, and so forgotten; it is measured again where the second process of a cell finds the caches of the first.
Of those second processes one at a time has the device (`benchmarks/tools/turns.py`); others trace meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.models.cell import Cell
from benchmarks.tools.zygote import Zygote, start_zygote, stop_zygote

PREPARING, PREPARED = 0.5, 0.65
"""Parts of the time until the deadline: after the first no process begins to compile, after the second none goes on."""

Record = dict[str, Any]
RunCell = Callable[[Zygote, Cell, tuple[int, int]], Record]
"""Runs a cell in a child of a zygote, on a share of the cores; returns its record."""


@contextmanager
def zygotes_for(count: int, preload: Sequence[str]) -> Iterator[list[Zygote]]:
    """Has so many zygotes live as long as a block runs."""
    found = [start_zygote(preload) for _ in range(count)]
    try:
        yield found
    finally:
        for zygote in found:
            stop_zygote(zygote)


def run_all(
    cells: Sequence[Cell], zygotes: Sequence[Zygote], run_cell: RunCell, until: float, tell: Callable[[Record], None]
) -> None:
    """Runs cells in the order given, as many at once as there are zygotes.

    Args:
        cells: what is to run.
        zygotes: whose children run, one at a time for each.
        run_cell: runs one.
        until: the monotonic clock's seconds after which none begins.
        tell: is called with each record as it comes, and with one that says so for each cell that did not run.
    """
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(len(zygotes)):
        free.put(slot)
    telling = threading.Lock()

    def run(cell: Cell) -> None:
        slot = free.get()
        try:
            if time.monotonic() < until:
                record = run_cell(zygotes[slot], cell, (slot, len(zygotes)))
            else:
                record = {"cell": asdict(cell), "failed": "not run: the deadline came first"}
        finally:
            free.put(slot)
        with telling:
            tell(record)

    with ThreadPoolExecutor(len(zygotes)) as pool:
        list(pool.map(run, cells))
