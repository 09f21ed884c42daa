"""The example bundles: the compiler writes them to the byte, the runtime's own tests read them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_bundles", HERE / "make_bundles.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_are_what_the_compiler_writes(maker) -> None:
    stale = [name for name, data in maker.make_bundles().items() if (maker.FOLDER / name).read_bytes() != data]
    assert not stale, f"{', '.join(stale)}: run python tests_integration/contracts/make_bundles.py"
