"""Settings of the integration tests.

What lies in `gpu/` is marked so, and what is marked so skips without a GPU, or fails where one is asked for. With
``--emitted FOLDER`` every kernel that a test emits is kept there, for compile_emitted.py.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quiet_dynamo import quiet_dynamo  # noqa: F401  # a fixture

GPU_FOLDER = Path(__file__).parent / "gpu"
GPU_NEEDED = "FERRITE_TESTS_NEED_GPU"
"""Where this variable is set, tests that need a GPU fail without one: what hides the GPU must not pass for a run."""


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
        if os.environ.get(GPU_NEEDED):
            pytest.fail(f"{reason}, and {GPU_NEEDED} is set")
        pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emitted", type=Path, default=None, help="folder for the specs of all kernels that tests emit")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--emitted")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        keep_kernels(folder)
        # Graphs that an earlier session stored would emit nothing.
        os.environ["FERRITE_CACHE_DIR"] = tempfile.mkdtemp(prefix="ferrite-emitted-")


def keep_kernels(folder: Path) -> None:
    """Makes every program that is emitted leave the specs of its kernels in a folder, one file per kernel."""
    from ferrite_triton import Program

    write_out = Program.to_mapping

    def to_mapping(program: Program) -> Mapping[str, Any]:
        mapping = write_out(program)
        for kernel in mapping["kernels"]:
            path = folder / f"{kernel['id']}.json"
            if not path.exists():
                part = path.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps(kernel))
                part.replace(path)
        return mapping

    Program.to_mapping = to_mapping  # type: ignore[method-assign]
