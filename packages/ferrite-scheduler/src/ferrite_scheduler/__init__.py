"""Ferrite's scheduler: what runs with what, in which order and in which tiles, and where results lie in memory."""

from .choices.oracle import CostOracle
from .choices.products import choose_products
from .errors import SchedulingError, UnsupportedSize
from .fusion.boundaries import Boundary, Side, boundaries
from .fusion.explanation import explain
from .memory.footprint import Footprint, footprint
from .model.choices import Choice, Cost
from .model.policy import Policy
from .model.schedule import Decision, Kernel, Schedule
from .model.target import Target
from .pipeline import schedule, schedule_module
from .text.parser import parse_schedule

__version__ = "0.1.0"

__all__ = [
    "Boundary",
    "Choice",
    "Cost",
    "CostOracle",
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
    "choose_products",
    "explain",
    "footprint",
    "parse_schedule",
    "schedule",
    "schedule_module",
]
