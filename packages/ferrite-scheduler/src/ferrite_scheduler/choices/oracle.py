"""The port through which the scheduler asks what things cost, and the answers that need no machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from ferrite_scheduler.model.choices import Cost
from ferrite_scheduler.model.schedule import Schedule


class CostOracle(Protocol):
    """Knows what schedules cost on the machine that they are for."""

    def cost(self, schedule: Schedule, kernels: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Cost:
        """Returns what running a schedule costs; a schedule that cannot be run costs infinitely much, and says why.

        ``kernels`` are specs of kernels that its extern calls stand for, by the targets of these.
        """


@dataclass(frozen=True, slots=True)
class Unknown:
    """An oracle that knows nothing, for machines that are not there: choices stay as they are by default."""

    reason: str = "there is no GPU to measure on"

    def cost(
        self, schedule: Schedule, kernels: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    ) -> Cost:  # whatever it is
        """Returns that the cost is not known."""
        return Cost(math.inf, problem=self.reason)
