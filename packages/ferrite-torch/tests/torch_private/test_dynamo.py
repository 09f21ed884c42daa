"""Dynamo's registry, restarts and floats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from ferrite_torch.torch_private.dynamo import is_restart, register_backend


def test_the_backend_is_in_the_registry() -> None:
    import ferrite_torch.backend

    assert "ferrite" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("ferrite") is ferrite_torch.backend.ferrite


def test_registering_twice_is_harmless() -> None:
    register_backend(print, "ferrite")
    assert torch._dynamo.lookup_backend("ferrite") is not print


def test_dynamo_restarts_are_recognised() -> None:
    from torch._dynamo import exc

    assert is_restart(exc.TensorifyScalarRestartAnalysis("again"))
    assert not is_restart(ValueError())


def test_writes_to_numbers_survive_a_restart() -> None:
    def function(number: Tensor) -> Tensor:
        found = number + 1
        number.sub_(found)
        return found

    number = torch.tensor(0.25, dtype=torch.float64)
    found = torch.compile(function, backend=ferrite_torch.ferrite, options={"fallback": False})(number)
    assert (float(found), float(number)) == (1.25, -1.0)


@pytest.mark.parametrize(("origin", "wanted"), [("ferrite_torch.backend", 0), ("another.backend", 1)])
def test_floats_of_modules_are_constants_for_one_backend_alone(origin: str, wanted: int) -> None:
    counts: list[int] = []

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        counts.append(sum(isinstance(fake, torch.Tensor) and fake.dtype is torch.float64 for fake in fakes))
        return module

    backend.__module__ = origin
    torch.compile(torch.nn.LayerNorm(3), backend=backend, dynamic=True)(torch.randn(2, 3))
    assert counts == [wanted]
