"""A process that checks operators, one job a line, and can be lost without losing more than the way it was at.

It reads jobs as JSON lines from standard input and writes events to what was standard output: ``{"ready": true}``
once, then for each way of a job its outcome, then ``{"done": true}``; ``{"lost": reason}`` when it ends because its GPU
context is gone. What operators print goes to standard error.

On a GPU, calls that are refused end contexts by the dozen. So what serves is a child of a process that has imported all
that takes long, and has begun nothing on the GPU:

    imports ── fork ── serves jobs … {"done": true, "last": true}, exit
            ── fork ── {"ready": true}, serves jobs …
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

REFUSED = "refused"
"""In the place of a dtype: the job is a call that eager refuses, by its number."""
RENEWED = 17
"""How a process ends whose place a new one takes."""
ALONE = "--alone"
"""Serve in this process, whatever becomes of it."""
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]


def main() -> int:
    """Returns 0 when there are no more jobs, another number when the process must not go on."""
    device, *flags = sys.argv[1:]
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    if device == "cpu" or ALONE in flags:
        return serve(device, events)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for GPUs must not begin anything on them
    import_all()
    return supervise(lambda: serve_in_child(device, events))


def import_all() -> None:
    """Imports what each child needs; not the database, which asks the GPU for its properties."""
    import sympy  # noqa: F401
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch.fx.experimental.symbolic_shapes  # noqa: F401
    import triton  # noqa: F401

    import ferrite_torch.backend
    import ferrite_torch.lowering  # noqa: F401
    import op_refusals  # noqa: F401


def supervise(child: Callable[[], int]) -> int:
    """Runs a function in child processes, one after the other while they end as `RENEWED`; returns how the last did."""
    while True:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = child()
            except BaseException:
                traceback.print_exc()  # `os._exit` says nothing
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)  # without a GPU, what a process tidies up at its end may wait for ever
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        if code != RENEWED:
            return code


def serve_in_child(device: str, events: TextIO) -> int:
    """Serves jobs, in a program begun anew if the GPU cannot be used after a fork."""
    import torch

    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        sys.stderr.write(f"no GPU after a fork: {error}\n")
        sys.stderr.flush()
        os.dup2(events.fileno(), 1)
        os.execv(sys.executable, [sys.executable, "-u", __file__, device, ALONE])
    return serve(device, events)


def serve(device: str, events: TextIO) -> int:
    """Does jobs until there are no more (0), or the process must not go on (1), or only another one can (`RENEWED`)."""
    import torch

    from op_checks import Poisoned

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
    if device == "cuda":
        torch.zeros(1, device=device)
    send(events, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        if job["dtype"] == REFUSED:
            if run_refusal(job, device, events):
                return RENEWED
            continue
        try:
            run_job(job, info_of(job["op"], job["variant"]), device, events)
        except Poisoned as error:
            send(events, {"lost": str(error)})
            return 1
    return 0


@functools.cache
def info_of(name: str, variant: str) -> Any:
    """Returns an operator of the database, which takes seconds to import."""
    from op_samples import database

    return next(info for info in database() if (info.name, info.variant_test_name) == (name, variant))


def run_job(job: dict[str, Any], info: Any, device: str, events: TextIO) -> None:
    """Checks an operator at one dtype in each way that the job names, and sends the outcomes."""
    import torch

    from op_checks import Outcome, Poisoned, check, short

    for way in job["ways"]:
        started = time.perf_counter()
        try:
            outcome = check(info, getattr(torch, job["dtype"]), device, way, job["most"])
        except Poisoned:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of the check itself is a finding, too
            outcome = Outcome("fail", reasons=[f"the check failed: {short(error)}"])
        send(events, {"way": way, "outcome": {**asdict(outcome), "seconds": round(time.perf_counter() - started, 2)}})
    send(events, {"done": True})


def run_refusal(job: dict[str, Any], device: str, events: TextIO) -> bool:
    """Makes a refused call in each way that the job names, until one of them leaves no GPU to go on with.

    Returns whether that is so: the process must end, and what is left of the job is for another one.
    """
    from op_refusals import raising, refused_calls

    is_lost = False
    for way in job["ways"]:
        kind, number = way.split()
        call = refused_calls(job["op"], job["variant"], device)[int(number)]
        found = raising(call, kind)
        send(events, {"way": way, "outcome": {**asdict(found), "call": call.text()}})
        is_lost = found.is_assertion
        if is_lost:
            break
    send(events, {"done": True, "last": is_lost})
    return is_lost


def send(events: TextIO, event: dict[str, Any]) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code) if code else sys.exit(0)
