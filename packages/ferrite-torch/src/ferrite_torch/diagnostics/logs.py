"""What ``TORCH_LOGS="ferrite"`` shows: graphs, schedules, fusion decisions, kernels and what the caches had.

The loggers are called as the modules of the package `ferrite`, which says how torch finds them. Nothing is written down
that nobody reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ferrite_ir import Module
from ferrite_scheduler import Schedule, boundaries

ALL = logging.getLogger("ferrite")
GRAPHS = logging.getLogger("ferrite.graphs")
SCHEDULE = logging.getLogger("ferrite.schedule")
FUSION = logging.getLogger("ferrite.fusion")
KERNELS = logging.getLogger("ferrite.kernels")
BACKGROUND = logging.getLogger("ferrite.background")

if ALL.level == logging.NOTSET:
    # Whoever lets all of a program's loggers speak does not mean texts of whole compilations.
    ALL.setLevel(logging.WARNING)


def log_lowered(kind: str, graph: Module) -> None:
    """Logs a graph as it was lowered, at level DEBUG."""
    if GRAPHS.isEnabledFor(logging.DEBUG):
        GRAPHS.debug("%s graph, as lowered:\n%s", kind, graph)


def log_graph(kind: str, graph: Module) -> None:
    """Logs a graph as it is scheduled."""
    if GRAPHS.isEnabledFor(logging.INFO):
        GRAPHS.info("%s graph, after the passes:\n%s", kind, graph)


def log_schedule(kind: str, plan: Schedule) -> None:
    """Logs a schedule, and the decisions that led to it."""
    if SCHEDULE.isEnabledFor(logging.INFO):
        SCHEDULE.info("%s graph, scheduled:\n%s", kind, plan)
    if FUSION.isEnabledFor(logging.INFO):
        lines = [*map(str, plan.changes), *map(str, plan.decisions), *map(str, boundaries(plan))]
        FUSION.info("%s graph, decisions and boundaries:\n%s", kind, "\n".join(lines) or "none")


def log_kernels(kind: str, program: Mapping[str, Any]) -> None:
    """Logs the texts of a program's kernels."""
    if KERNELS.isEnabledFor(logging.INFO):
        for kernel in program["kernels"]:
            KERNELS.info("%s graph, kernel %s:\n%s", kind, kernel["name"], kernel["source"])
