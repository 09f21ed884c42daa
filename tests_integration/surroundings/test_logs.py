"""What ``TORCH_LOGS`` shows of a compilation."""

from __future__ import annotations

from pathlib import Path

from against_eager import own_only
from apart import run

pytestmark = own_only("it reads ferrite's own logs")

PROGRAM = """
import torch, ferrite_torch
torch.compile(lambda x: x.softmax(-1).sum(0).cumsum(0), backend="ferrite")(torch.randn(4, 8))
"""
GRAPH = "inference graph, after the passes:"
TEXTS = {
    "graphs": GRAPH,
    "schedule": "inference graph, scheduled:",
    "fusion": "F03, iteration spaces match: ",
    "kernels": "@triton.jit",
    "cache": "ferrite.cache",
}


def shown(logs: str | None, folder: Path, more: str = "", program: str = PROGRAM) -> str:
    """Returns what a program wrote to its error stream under these logs."""
    env = {"TORCH_LOGS": logs, "TORCH_LOGS_FORMAT": "%(name)s %(message)s", "FERRITE_CACHE_DIR": str(folder)}
    done = run("-c", more + program, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_ferrite_is_a_log_of_torch(tmp_path: Path) -> None:
    text = shown("ferrite", tmp_path)
    assert all(mark in text for mark in TEXTS.values()), text
    assert "as lowered" not in text
    again = shown("+ferrite,aot", tmp_path)
    assert "as lowered" in again
    assert GRAPH in again, "what is stored is compiled anew, to be seen"


def test_each_kind_has_a_log_of_its_own(tmp_path: Path) -> None:
    text = shown("ferrite.schedule, ferrite.kernels", tmp_path)
    assert {name for name, mark in TEXTS.items() if mark in text} == {"schedule", "kernels"}, text


def test_the_switch_of_a_graph_is_shown(tmp_path: Path) -> None:
    beside = PROGRAM.replace('backend="ferrite"', 'backend="ferrite", options={"compile_budget_s": 100}')
    text = shown("ferrite.background", tmp_path, program=beside)
    assert "ferrite.background inference graph: ready, calls are compiled from now on" in text, text


def test_nobody_else_is_shown_them(tmp_path: Path) -> None:
    everything = "import logging; logging.basicConfig(level=logging.INFO)\n"
    text = shown(None, tmp_path, everything)
    assert not any(mark in text for name, mark in TEXTS.items() if name != "cache"), text
