"""Facts about the device at hand, as the scheduler takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrite_scheduler import Target
from ferrite_torch.devices.facts import device_facts


def target_of(device: str, changes: Mapping[str, Any] | None = None) -> Target:
    """Returns the facts about the current device of a type, with some changed by name.

    Raises:
        ValueError: a change names no fact.
    """
    return Target.from_mapping({**device_facts(device), **(changes or {})})
