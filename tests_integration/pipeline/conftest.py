"""Gives every test a compiler without memory of the tests before it, and the CPU, on demand, what GPUs have."""

import sys
from pathlib import Path

import pytest
import torch.nn.attention.flex_attention as torch_flex

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # op_cases.py; against_eager.py, which the folders here share

from fresh_compiler import forget_compilations  # noqa: E402, F401  # a fixture


@pytest.fixture
def small_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats the CPU as a device whose library is waited for, so that small products are kernels there, too."""
    monkeypatch.setattr("ferrite_torch.lowering.products.tiled_products.DEVICES", ("cuda", "cpu"))


@pytest.fixture
def flex_gradients_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch take gradients of `flex_attention` on the CPU, which it refuses for want of a kernel there."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
