"""PyTorch's own samples of higher-order ops: all that torch can capture are compiled, and none makes its graph eager.

In the interpreter at two dtypes; ``sample_verdicts.py`` runs all of them, with GPUs too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from against_eager import devices, own_only
from sample_verdicts import EAGER_REFUSES, NATIVE, STEP, TORCH_REFUSES, database, verdicts

pytestmark = own_only("it says what runs in kernels of ours")

DTYPES = (torch.float32, torch.int64)
NATIVE_OPS = frozenset(
    ("auto_functionalize", "cond", "flex_attention", "flex_attention_backward", "map", "register_hook", "scan")
) | {"while_loop"}
"""Ops whose samples are kernels and extern calls alone. All others are steps of their own."""
EITHER = frozenset(("invoke_subgraph",))
"""Ops that torch writes out in some versions and calls in others."""
ENTRIES = {f"{info.name}:{info.variant_test_name}": info for info in database()}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ENTRIES)
def test_samples(name: str, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where torch cannot partition a graph it leaves a file
    for verdict in verdicts(ENTRIES[name], device, DTYPES, dynamic=False):
        op = ENTRIES[name].name
        expected = (NATIVE, STEP) if op in EITHER else (NATIVE,) if op in NATIVE_OPS else (STEP,)
        assert verdict.status in (*expected, EAGER_REFUSES, TORCH_REFUSES), verdict
