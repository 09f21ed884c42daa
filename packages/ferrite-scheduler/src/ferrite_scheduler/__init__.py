"""Ferrite's scheduler: what runs with what, in which order and in which tiles, and where results lie in memory."""

from .boundaries import Boundary, Side, boundaries
from .errors import SchedulingError, UnsupportedSize
from .explanation import explain
from .footprint import Footprint, footprint
from .schedule import Decision, Kernel, Schedule
from .scheduling import schedule
from .target import Policy, Target

__version__ = "0.1.0"

__all__ = [
    "Boundary",
    "Decision",
    "Footprint",
    "Kernel",
    "Policy",
    "Schedule",
    "SchedulingError",
    "Side",
    "Target",
    "UnsupportedSize",
    "boundaries",
    "explain",
    "footprint",
    "schedule",
]
