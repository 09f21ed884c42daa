"""Settings of the tests: `hand_written` is importable, and ``--bless`` rewrites expected texts."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    # Another package of the repository may have the same option.
    with contextlib.suppress(ValueError):
        parser.addoption("--bless", action="store_true", help="rewrite expected texts with what the code gives now")
