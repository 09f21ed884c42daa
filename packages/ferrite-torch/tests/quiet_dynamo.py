"""Compilations without what no test reads: a fixture for folders whose tests compile.

At the end of each compilation Dynamo flushes the CPU's caches, and measures how long its guards take. That takes 20 ms,
where a whole compilation takes 50 to 200, and takes their caches from what runs beside it. And where modules of torch's
own tests were imported, every compilation writes traces, which nobody is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def quiet_dynamo() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
        patch.setattr("torch._logging._internal.trace_log.handlers", [])
        yield
