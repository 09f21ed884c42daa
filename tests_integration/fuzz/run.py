"""Runs random programs through the compiler, against eager; prints those that fail as scripts that stand alone.

    python tests_integration/fuzz/run.py --device cuda --count 5000 --jobs 16 --scripts failing

A program depends on its seed alone (and on the version of torch that it is drawn with): ``--first 1234 --count 1`` runs
one of them again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, Self

HERE = Path(__file__).resolve().parent
WORKER = HERE / "fuzz_worker.py"
PROGRAMS = 200
"""The programs that a process checks before another takes its place."""


def main() -> int:
    """Returns 0 if all programs are right, 1 if not, 2 if the deadline came first."""
    chosen = parse_arguments()
    os.environ.setdefault("FERRITE_CACHE_DIR", tempfile.mkdtemp(prefix="ferrite-fuzz-"))
    if chosen.scripts is not None:
        chosen.scripts.mkdir(parents=True, exist_ok=True)
    gpus = visible_gpus() if chosen.device == "cuda" else [""]
    campaign = Campaign(
        seeds=deque(range(chosen.first, chosen.first + chosen.count)),
        device=chosen.device,
        deadline=time.monotonic() + chosen.deadline,
        limit=chosen.limit,
        scripts=chosen.scripts,
    )
    threads = [
        threading.Thread(target=campaign.serve, args=(gpus[n % len(gpus)],))
        for n in range(min(chosen.jobs, chosen.count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for script in campaign.failing[:3]:
        print(f"\n{script}")
    left = chosen.count - campaign.judged - campaign.refused
    seconds, failing = time.monotonic() - campaign.started, len(campaign.failing)
    print(f"{campaign.judged} programs in {seconds:.0f} s, {failing} fail; ", end="")
    print(f"torch captures {campaign.refused} not, {left} not run")
    return 2 if left else 1 if campaign.failing else 0


@dataclass
class Campaign:
    """Seeds that wait, and what was found of the others; what fails is printed, and written down, at once."""

    seeds: deque[int]
    device: str
    deadline: float
    limit: float
    scripts: Path | None
    started: float = field(default_factory=time.monotonic)
    judged: int = 0
    refused: int = 0
    failing: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, gpu: str) -> None:
        """Has processes check seeds, one after another, until there are none or the time is up."""
        while self.seeds and time.monotonic() < self.deadline:
            with Worker(self.device, gpu) as worker:
                for _ in range(PROGRAMS):
                    try:
                        seed = self.seeds.popleft()
                    except IndexError:
                        return
                    event = worker.ask(seed, min(self.limit, self.deadline - time.monotonic()))
                    if (event is None or "reason" in event) and time.monotonic() >= self.deadline:
                        # A compilation that the signal interrupts fails, too: such a seed is to be run again.
                        found = worker.found if event is None else event["reason"]
                        print(f"seed {seed} was being judged when the time was up: {found}", flush=True)
                        return
                    self.enter(seed, event or {"reason": worker.last_words(), "script": worker.script})
                    if event is None or "lost" in event:
                        break

    def enter(self, seed: int, event: dict[str, Any]) -> None:
        """Counts what was found of a seed, and prints it unless it is right."""
        with self.lock:
            if "uncapturable" in event:
                self.refused += 1
                print(f"seed {seed} is beyond torch's own capture: {event['uncapturable'][:200]}", flush=True)
                return
            self.judged += 1
            if "reason" in event:
                print(f"seed {seed}: {event['reason']}", flush=True)
                self.failing.append(event["script"])
                if self.scripts is not None:
                    (self.scripts / f"seed_{seed}.py").write_text(event["script"])
            if self.judged % 200 == 0:
                print(f"{self.judged} programs in {time.monotonic() - self.started:.0f} s", flush=True)


class Worker:
    """A process that checks seeds; it can be lost."""

    def __init__(self, device: str, gpu: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        self.found = self.script = ""
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(WORKER), device], stdin=PIPE, stdout=PIPE, stderr=self._words, text=True,
            env=environment,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._words.close()

    def ask(self, seed: int, seconds: float) -> dict[str, Any] | None:
        """Returns what the process says of a seed; None if it is lost, or was stopped after so many seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.found = "no failure found"
        limit = threading.Timer(max(seconds, 0.0), self._process.send_signal, [signal.SIGABRT])  # it says where it was
        limit.start()
        try:
            self._process.stdin.write(f"{seed}\n")
            self._process.stdin.flush()
            while (line := self._process.stdout.readline()).endswith("}\n"):
                event: dict[str, Any] = json.loads(line)
                if "found" not in event:
                    return event
                self.found, self.script = event["found"], event["script"]
        except BrokenPipeError:
            pass
        finally:
            limit.cancel()
        return None

    def last_words(self) -> str:
        """Returns how the process ended, and the end of what it printed: the stacks of one that was stopped."""
        code = self._process.wait()
        self._words.seek(0)
        words = self._words.read()
        begun = words.rfind("Fatal Python error") if code == -signal.SIGABRT else -1
        return f"exit code {code}: {words[-300:] if begun < 0 else words[begun : begun + 6000]}"


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return list(map(str, range(torch.cuda.device_count())))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5000, help="the number of programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which what runs is stopped")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a program may take")
    parser.add_argument("--scripts", type=Path, default=None, help="folder for the failing programs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
