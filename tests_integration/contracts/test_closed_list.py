"""The list of operators that bundles may call is of every supported torch, the one that runs here among them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from ferrite_runtime.operators import torch_operators, torch_versions

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_operators", HERE / "make_operators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_is_of_the_versions_that_are_supported() -> None:
    assert sorted(torch_versions()) == ["2.11", "2.12", "2.13", "2.14", "2.15"]


def test_the_list_has_the_operators_of_this_torch(maker: ModuleType) -> None:
    assert maker.own_version() in torch_versions(), "run make_operators.py with this torch"
    assert sorted(maker.listed_operators() - torch_operators()) == []


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
