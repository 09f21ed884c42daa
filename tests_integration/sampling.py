"""Which of many alike parameters run where slow tests are left out: a sample, the same in every run.

What is left out is marked slow, so that ``nox -s thorough`` runs it. Beside a use stands what the sample still shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(parameters: Iterable[Any], every: int) -> list[Any]:
    """Returns the parameters, of which the first and then one in so many are not slow."""
    return [as_slow(each) if place % every else each for place, each in enumerate(parameters)]


def as_slow(parameter: Any) -> Any:
    """Returns a parameter marked as slow; of several together, they are a ``pytest.param``."""
    if isinstance(parameter, type(pytest.param())):
        return pytest.param(*parameter.values, id=parameter.id, marks=[*parameter.marks, pytest.mark.slow])
    return pytest.param(parameter, marks=pytest.mark.slow)
