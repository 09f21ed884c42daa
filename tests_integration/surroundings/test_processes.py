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
    """No GPU is to be seen: to compile, dynamo reads the state of its random numbers, which no child of its users can.

    A process that has used CUDA has children that cannot, which is CUDA's own limit.
    """
    run_program(FORKS, tmp_path, env={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""})


WITHOUT_GPU = """
import os, sys
import torch, ferrite_torch

STRICT = {"fallback": False, "use_cache": False}
x = torch.randn(6, 4)
torch.compile(lambda x: x.sin(), backend="ferrite", options=STRICT)(x)  # dynamo keeps what it asks of the GPU at first
def refuse(*arguments):  # what torch does in such a child
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda._lazy_init = torch._C._cuda_getDevice = torch._C._cuda_getCurrentRawStream = refuse
torch.cuda.get_rng_state = lambda *device: torch.zeros(16, dtype=torch.uint8)  # as dynamo does
torch.cuda.set_rng_state = lambda *state: None
torch.cuda.is_current_stream_capturing = torch.accelerator.is_available = lambda: False  # dynamo of 2.14 asks both

def check():
    functions = (
        lambda x: x.softmax(-1), lambda x: (x @ x.t()).relu(), lambda x: torch.nn.functional.dropout(x).shape,
        lambda x: x.to(torch.float8_e4m3fn).float(), lambda x: x.half().cumsum(0),
        lambda x: torch.nn.functional.conv2d(x[None, None], torch.ones(1, 1, 2, 2)), lambda x: torch.linalg.inv(x[:4]),
    )
    for function in functions:
        for needs_gradient in (False, True):
            torch._dynamo.reset()
            given = x.clone().requires_grad_(needs_gradient)
            made = torch.compile(function, backend="ferrite", options=STRICT)(given)
            torch.testing.assert_close(made, function(given))
            if needs_gradient and isinstance(made, torch.Tensor):
                made.float().sum().backward()

child = os.fork()
if child == 0:
    try:
        check()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_programs_on_the_cpu_do_not_touch_a_gpu(tmp_path: Path) -> None:
    """A child that may not use CUDA compiles and runs what has only tensors on the CPU.

    CUDA's refusal is torch's, made up: in a real child dynamo itself asks for the GPU's stream, on some versions.
    """
    run_program(WITHOUT_GPU, tmp_path)
