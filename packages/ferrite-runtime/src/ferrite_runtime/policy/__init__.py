"""Config policies: which configurations of a kernel to try on a device, best guess first."""

from __future__ import annotations

from .blocks import next_power_of_two, previous_power_of_two
from .interpreted import interpreter_config

__all__ = ["interpreter_config", "next_power_of_two", "previous_power_of_two"]
