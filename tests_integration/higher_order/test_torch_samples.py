"""PyTorch's own samples of higher-order ops: all that torch can capture are compiled, and none makes its graph eager.

In the interpreter at two dtypes; ``sample_verdicts.py`` runs all of them, with GPUs too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from against_eager import devices, own_only
from sample_verdicts import EAGER_REFUSES, NATIVE, STEP, TORCH_REFUSES, database, verdicts

pytestmark = own_only("it says what runs in kernels of ours")

DTYPES = (torch.float32, torch.int64)
STEPS = frozenset(("inline_asm_elementwise",))
"""Ops whose samples are steps of their own. Those of all others are kernels and extern calls alone."""
ENTRIES = {f"{info.name}:{info.variant_test_name}": info for info in database()}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ENTRIES)
def test_samples(name: str, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where torch cannot partition a graph it leaves a file
    for verdict in verdicts(ENTRIES[name], device, DTYPES, dynamic=False):
        expected = STEP if ENTRIES[name].name in STEPS else NATIVE
        assert verdict.status in (expected, EAGER_REFUSES, TORCH_REFUSES), verdict


WARNS = """
import unittest
import warnings

TestCase = unittest.TestCase
warnings.warn("of what stands beside torch", DeprecationWarning)
warnings.warn("of what is slow")
"""
READS = """
import sys
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch, triton
import sample_verdicts

assert sample_verdicts.database() and "expecttest" in sys.modules
"""


def test_what_is_warned_of_while_the_samples_are_imported_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "expecttest.py").write_text(WARNS)  # torch's testing modules import it
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parent)))
    command = [sys.executable, "-W", "error", "-c", READS]
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
