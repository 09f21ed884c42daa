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


@pytest.fixture
def keeper():
    """Yields what an operator of the user's was given: it keeps all of it."""
    torch = pytest.importorskip("torch")
    kept: list = []
    library = torch.library.Library("graph_parts", "DEF")
    library.define("keep(Tensor x) -> Tensor")
    library.impl("keep", lambda x: kept.append(x) or x.clone(), "CPU")
    yield kept
    library._destroy()
