"""Workers that end, in the middle of a job or with it: each job has its own outcome, whatever became of the one before.

The workers are programs of a few lines, in place of `op_worker`, which end as a process does whose GPU asserted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import op_pool
from op_pool import Job, Pool

HEAD = """
import json, os, sys, time

def send(**event):
    print(json.dumps(event), flush=True)

send(ready=True)
for line in sys.stdin:
    job = json.loads(line)
    for way in job["ways"]:
"""
ENDS_WITH_A_JOB = """
        print("Assertion of", way, file=sys.stderr, flush=True)
        send(way=way, outcome={"said": way, "process": os.getpid()})
        if way.startswith("asserts"):
            send(done=True, last=True)
            time.sleep(0.3)
            sys.exit(1)
    send(done=True, last=False)
"""
ENDS_IN_A_JOB = """
        if way.startswith("dies"):
            sys.exit(3)
        print("Error: words about", way, file=sys.stderr, flush=True)
        send(way=way, outcome={"said": way, "process": os.getpid()})
    send(done=True, last=False)
"""
HANGS = """
        time.sleep(30 if way.startswith("hangs") else 0)
        send(way=way, outcome={"said": way, "process": os.getpid()})
    send(done=True)
"""


IS_RENEWED = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import op_worker

def send(**event):
    print(json.dumps(event), flush=True)

def serve():
    send(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        for way in job["ways"]:
            if way.startswith("dies"):
                os.abort()
            send(way=way, outcome={{"said": way, "process": os.getpid(), "parent": os.getppid()}})
            if way.startswith("asserts"):
                send(done=True, last=True)
                return op_worker.RENEWED
        send(done=True)
    return 0

sys.exit(op_worker.supervise(serve))
"""


def outcomes(worker: str, jobs: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Returns what came of the ways of some jobs, one worker making them one after the other."""
    program = folder / "worker.py"
    program.write_text(worker)
    monkeypatch.setattr(op_pool, "WORKER", program)
    found: dict[str, Any] = {}
    pool = Pool("cpu", 1, seconds=2.0, deadline=time.monotonic() + 60.0)
    left = pool.run([Job("op", "", "refused", ways, 1) for ways in jobs], lambda job, ways: found.update(ways))
    assert left == []
    return found


def test_a_worker_that_ends_with_a_job_costs_nobody_an_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = [("goes on 0", "eager 0"), ("asserts 1", "eager 1"), ("goes on 2", "asserts 2"), ("goes on 3", "eager 3")]
    found = outcomes(HEAD + ENDS_WITH_A_JOB, jobs, monkeypatch, tmp_path)
    assert {way: outcome["said"] for way, outcome in found.items()} == {way: way for ways in jobs for way in ways}
    processes = [found[way]["process"] for ways in jobs for way in ways]
    first, second, third = processes[0], processes[3], processes[6]
    assert processes == [first, first, first, second, second, second, third, third]
    assert len({first, second, third}) == 3


def test_another_process_takes_the_place_of_one_that_asserted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = [("asserts 0", "asserts 1"), ("goes on 2",), ("goes on 3", "dies 4", "goes on 5")]
    found = outcomes(IS_RENEWED, jobs, monkeypatch, tmp_path)
    went = [found[way] for ways in jobs for way in ways if not way.startswith("dies")]
    assert len({outcome["process"] for outcome in went}) == 4, "each after an assertion, and after the crash"
    assert len({outcome["parent"] for outcome in went}) == 2, "only a crash costs what is imported"
    assert found["dies 4"]["reasons"][0].startswith("crash: exit code -6;")


def test_what_ends_in_a_job_counts_against_that_job_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = outcomes(HEAD + ENDS_IN_A_JOB, [("fine 0",), ("dies 1", "fine 1"), ("fine 2",)], monkeypatch, tmp_path)
    assert [way for way, outcome in found.items() if "status" not in outcome] == ["fine 0", "fine 1", "fine 2"]
    (reason,) = found["dies 1"]["reasons"]
    assert reason.startswith("crash: exit code 3;")
    assert "fine 0" not in reason, "what another job wrote is no reason"


def test_a_job_that_says_nothing_is_a_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = outcomes(HEAD + HANGS, [("hangs 0",), ("fine 1",)], monkeypatch, tmp_path)
    assert found["hangs 0"]["reasons"] == ["hang: nothing for 2 s"]
    assert found["fine 1"]["said"] == "fine 1"
