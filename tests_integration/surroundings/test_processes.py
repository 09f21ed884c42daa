"""Threads, forks and other processes around compiled functions."""

from __future__ import annotations

from pathlib import Path

from against_eager import own_only
from apart import run_program

pytestmark = own_only("it is about ferrite's own processes and locks")

FORKS = """
import os, signal, threading
import torch, ferrite_torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
softmax = torch.compile(lambda x: x.softmax(-1), backend="ferrite")
other = torch.compile(lambda x, y: (x * y).softmax(-1).sum(0), backend="ferrite")
x = torch.randn(3, 4)
softmax(x), other(x, x)
ended = False

def call_on():
    while not ended:
        other(x, x)

def compile_on():
    made = 0
    while not ended:
        made += 1
        torch.compile(eval(f"lambda x: x.cumsum(-1) * {made}"), backend="ferrite", options={"use_cache": False})(x)

def count_on():
    while not ended:
        ferrite_torch.statistics()

def in_child():
    # Before torch 2.15 a flag of the process says that one of its threads captures: the child has it for ever.
    if hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag"):
        torch.fx._symbolic_trace._is_fx_tracing_flag = False
    torch.testing.assert_close(softmax(x), torch.softmax(x, -1))
    new = torch.compile(lambda x: x.cos() + x.sum(), backend="ferrite", options={"fallback": False})
    torch.testing.assert_close(new(x), x.cos() + x.sum())
    assert ferrite_torch.statistics()["graphs"]

class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, row):
        return softmax(x + row), os.getpid()

threads = [threading.Thread(target=target) for target in (call_on, compile_on, count_on)]
for thread in threads:
    thread.start()
try:
    states = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            in_child()
            os._exit(0)
        states.append(os.waitpid(child, 0)[1])
    assert states == [0] * 4, states
    rows = list(DataLoader(Rows(), num_workers=2, multiprocessing_context="fork", timeout=100))
    torch.testing.assert_close(torch.cat([row for row, _ in rows]), torch.stack([softmax(x + i) for i in range(4)]))
    assert os.getpid() not in {int(process) for _, process in rows}
finally:
    ended = True
    for thread in threads:
        thread.join()
"""


def test_forks_while_other_threads_call_and_compile(tmp_path: Path) -> None:
    run_program(FORKS, tmp_path)
