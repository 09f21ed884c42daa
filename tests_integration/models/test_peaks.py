"""What training needs of memory at once, by plan: no more than eager mode, which frees and adds up as it goes.

Nothing is run on a GPU: the plan of a compiled graph says what is alive at each step, and eager mode is watched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ferrite_torch
from against_eager import own_only, tensors_of
from ferrite_scheduler.memory.footprint import footprint

pytestmark = own_only("it reads plans")

ROWS, WIDTH, INNER, BLOCKS = 2048, 256, 1024, 3


class Watch(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, for as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for tensor in tensors_of(results):
            self.note(tensor.untyped_storage())
        return results

    def note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known or storage.nbytes() == 0:
            return
        self.known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.forget, key, storage.nbytes())

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def eager_peak(model: Callable[[Tensor], Tensor], x: Tensor, *, held: list[Tensor]) -> int:
    """Returns the bytes that a training step makes and holds at once, beside what is there before it."""
    watch = Watch()
    watch.known = {each.untyped_storage()._cdata for each in (x, *held)}
    with watch:
        model(x).sum().backward()
    return watch.peak


def planned_peak(model: Callable[[Tensor], Tensor], x: Tensor, held: list[Tensor]) -> int:
    """Returns the same of the compiled step: the most that either direction needs, of what its plan says."""
    before = sum(each.numel() * each.element_size() for each in (x, *held))
    graphs = ferrite_torch.explain(model, x).graphs
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    return max(footprint(graph.schedule).peak for graph in graphs if graph.schedule is not None) - before


def layers() -> list[nn.Module]:
    return [nn.Linear(WIDTH, INNER), nn.GELU(), nn.Dropout(0.1), nn.Linear(INNER, WIDTH), nn.LayerNorm(WIDTH)]


@pytest.mark.parametrize("is_shared", [True, False], ids=["one block many times", "many blocks"])
def test_checkpointed_blocks(is_shared: bool) -> None:  # noqa: FBT001  # a parameter of the test
    shared = layers()
    blocks = [nn.Sequential(*(shared if is_shared else layers())) for _ in range(BLOCKS)]
    held = list(dict.fromkeys(parameter for block in blocks for parameter in block.parameters()))

    def model(x: Tensor) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    x = torch.randn(ROWS, WIDTH).requires_grad_()
    ours = planned_peak(model, x, held)
    eager = eager_peak(model, x, held=held)
    assert ours <= 1.02 * eager, f"{ours >> 10} KiB, eager mode's {eager >> 10}"
