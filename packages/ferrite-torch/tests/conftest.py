"""What the tests of this package share: graphs captured from functions, and the backend in its strict form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.capture.joint_graphs import prepare_joint
from ferrite_torch.graphs.graph_lowering import lower_module
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.rewrites.decompositions import decomposition_table
from ferrite_torch.torch_private.aot import GraphCompiler, compile_with_aot
from ferrite_torch.torch_private.graph_positions import positions_of
from quiet_dynamo import quiet_dynamo  # noqa: F401  # a fixture

Lower = Callable[..., dict[str, LoweredModule]]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def lowered() -> Lower:
    """Returns a function that runs another one through AOTAutograd and gives its graphs, lowered, by kind."""

    def capture(function: Callable[..., Any], *inputs: Any, strict: bool = True) -> dict[str, LoweredModule]:
        found: dict[str, LoweredModule] = {}

        def compiler(kind: str) -> GraphCompiler:
            def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
                outputs = positions_of(module, kind).regenerated
                found[kind] = lower_module(module, name=kind, strict=strict, regenerated=outputs)
                return run_eagerly(module)

            return compile_one

        def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
            return compile_with_aot(
                module,
                fakes,
                forward=compiler("forward"),
                backward=compiler("backward"),
                inference=compiler("inference"),
                decompositions=decomposition_table(stays_whole),
                prepare=prepare_joint,
            )

        torch.compile(function, backend=backend)(*inputs)
        return found

    return capture


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every test empty caches: a graph that another test compiled would not be lowered."""
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "ferrite-cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch-cache"))
