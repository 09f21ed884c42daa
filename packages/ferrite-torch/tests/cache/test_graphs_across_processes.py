"""Graphs that one process has stored are found by another, which then needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys

from stored_graph_cases import (
    fresh_statistics,  # noqa: F401  # a fixture
    needs_stored_graphs,
)

_PROGRAM = """
import sys
import torch, ferrite_torch
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
x = torch.randn(3, 6)
loss = torch.compile(module, backend="ferrite", options={"fallback": False})(x).square().sum()
loss.backward()
counts = ferrite_torch.statistics()
compiler = ("ferrite_torch.graphs.graph_lowering", "ferrite_ir", "ferrite_scheduler", "ferrite_triton")
layers = sum(name in sys.modules for name in compiler)
print(counts["graphs"], counts["recalled"], layers, loss.item(), module[0].weight.grad.sum().item())
"""


def _spawn(program: str = _PROGRAM) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)


def _results(process: subprocess.Popen[str]) -> tuple[list[int], list[str]]:
    words = process.communicate(timeout=300)[0].split()
    assert process.returncode == 0
    return [int(word) for word in words[:3]], words[3:]


@needs_stored_graphs
def test_processes_share_graphs_and_a_warm_one_imports_no_compiler() -> None:
    both = [_spawn(), _spawn()]  # at once: one may find what the other has stored, neither may be disturbed
    (_, first), (_, second) = map(_results, both)
    (graphs, found, layers), third = _results(_spawn())
    assert (graphs, found, layers) == (2, 2, 0)
    assert first == second == third


_BRANCHES = """
import torch, ferrite_torch
x = torch.arange(12.0, requires_grad=True)
y = torch.compile(
    lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x * 2,)).relu() + x, backend="ferrite"
)(x)
(gradient,) = torch.autograd.grad(y.sum(), x)
counts = ferrite_torch.statistics()
print(counts["graphs"], counts["recalled"], len(counts["fallbacks"]), y.sum().item(), gradient.sum().item())
"""


def test_a_second_process_finds_graphs_with_branches() -> None:
    (graphs, found, fallbacks), first = _results(_spawn(_BRANCHES))
    assert (graphs, found, fallbacks) == (2, 0, 0)
    (graphs, found, fallbacks), second = _results(_spawn(_BRANCHES))
    assert (graphs, found, fallbacks) == (2, 2, 0)
    assert first == second
