"""Compilations without a measurement that no test reads: a fixture for folders whose tests compile.

At the end of each compilation Dynamo flushes the CPU's caches, and measures how long its guards take. That takes 20 ms,
where a whole compilation takes 50 to 200, and takes their caches from what runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def unmeasured_guards() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
        yield
