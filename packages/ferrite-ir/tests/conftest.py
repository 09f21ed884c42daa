from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine does; pytest-timeout ends what does not end.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # another package's tests may have it too
        parser.addoption("--bless", action="store_true", help="rewrite expected texts with what the code gives now")
