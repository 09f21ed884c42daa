"""A process that checks operators, one job a line, and can be lost without losing more than the way it was at.

It reads jobs as JSON lines from standard input and writes events to what was standard output: ``{"ready": true}``
once, then for each way of a job its outcome, then ``{"done": true}``, with ``"last": true`` if the process ends with
it; ``{"lost": reason}`` when it ends in the middle because its GPU context is gone. What operators print goes to
standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

REFUSED = "refused"
"""In the place of a dtype: the job is a call that eager refuses, by its number."""
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]


def main() -> int:
    """Returns 0 when there are no more jobs, 1 when the process must not go on."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    import torch

    from op_checks import Poisoned
    from op_samples import database

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
    device = sys.argv[1]
    if device == "cuda":
        torch.zeros(1, device=device)
    infos = {(info.name, info.variant_test_name): info for info in database()}
    send(events, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        if job["dtype"] == REFUSED:
            if run_refusal(job, device, events):
                leave()
            continue
        try:
            run_job(job, infos[job["op"], job["variant"]], device, events)
        except Poisoned as error:
            send(events, {"lost": str(error)})
            return 1
    return 0


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


def leave() -> None:
    """Ends the process at once: without a GPU, what it would tidy up may wait for ever."""
    sys.stderr.flush()
    os._exit(1)


def send(events: TextIO, event: dict[str, Any]) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    sys.exit(main())
