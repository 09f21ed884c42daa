"""The list of operators that bundles may call is of every supported torch, the one that runs here among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ferrite_runtime.host.operators import torch_operators, torch_versions

HERE = Path(__file__).resolve().parent


def test_the_list_is_of_the_versions_that_are_supported() -> None:
    assert sorted(torch_versions()) == ["2.11", "2.12", "2.13", "2.14", "2.15"]


def test_the_list_has_the_operators_of_this_torch() -> None:
    """In a process of its own: other tests import modules that add operators."""
    command = [sys.executable, str(HERE / "make_operators.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr[-2000:]


@pytest.mark.parametrize(
    "name",
    [
        "aten.set_.source_Tensor",
        "aten.shallow_copy_data_.default",
        "aten.resize_.default",
        "aten.from_file.default",
        "aten._unsafe_view.out",
        "aten.select.Dimname",
        "aten.rename.default",
        "aten._local_scalar_dense.default",
    ],
)
def test_what_does_more_than_compute_is_not_listed(name: str) -> None:
    assert name not in torch_operators()
