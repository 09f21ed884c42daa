"""Settings of the integration tests: what lies in `gpu/` is marked so, and what is marked so skips without a GPU."""

from functools import cache
from pathlib import Path

import pytest

GPU_FOLDER = Path(__file__).parent / "gpu"


@cache
def gpu_absence() -> str | None:
    """Returns why no GPU can be used, or None where one can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    return None if torch.cuda.is_available() else "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(GPU_FOLDER):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := gpu_absence()):
        pytest.skip(reason)
