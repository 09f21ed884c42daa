from __future__ import annotations

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # another package's tests may have it too
        parser.addoption("--bless", action="store_true", help="rewrite expected texts with what the code gives now")
