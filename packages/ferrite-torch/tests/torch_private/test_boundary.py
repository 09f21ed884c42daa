"""Private interfaces of torch are used by `ferrite_torch.torch_private` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferrite_torch

ROOT = Path(ferrite_torch.__file__).parent


def private_names(source: str) -> Iterator[str]:
    """Yields the private names of torch that a module imports or reads from the package."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found = [f"{module}.{alias.name}" for alias in names]
            case ast.Attribute():
                found = [ast.unparse(node)]
            case _:
                found = []
        for name in found:
            first, *rest = name.split(".")
            if first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest):
                yield name


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch import _C",
        "from torch.utils._sympy.symbol import SymT",
        "def late():\n    from torch._guards import TracingContext",
        "torch._C._autograd.thing()",
    ],
)
def test_every_way_to_a_private_name_is_seen(source: str) -> None:
    assert list(private_names(source))


def test_public_names_are_none() -> None:
    source = "import torch\nfrom torch.fx.experimental.proxy_tensor import make_fx\ntorch.__version__\nour._torch._name"
    assert not list(private_names(source))


def test_no_other_module_uses_any() -> None:
    others = [path for path in ROOT.rglob("*.py") if path.parent != ROOT / "torch_private"]
    assert {path.name: list(private_names(path.read_text())) for path in others} == {path.name: [] for path in others}
