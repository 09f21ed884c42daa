"""Every test run keeps its store to itself."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def private_store(tmp_path_factory: pytest.TempPathFactory):
    """Points the on-disk store into a folder of this run."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FERRITE_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
    yield
    patch.undo()
