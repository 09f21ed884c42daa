"""Runs random programs through the compiler, against eager; prints those that fail as scripts that stand alone.

    python tests_integration/fuzz/run.py --device cuda --count 2000 --jobs 16 --scripts failing

A program depends on its seed alone (and on the version of torch that it is drawn with): ``--first 1234 --count 1`` runs
one of them again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORKER = HERE / "fuzz_worker.py"
CHUNK = 40
SECONDS = 600.0
"""The time that a chunk of seeds may take."""


def main() -> int:
    """Returns 0 if all programs are right, 1 if not, 2 if the deadline came first."""
    chosen = parse_arguments()
    os.environ.setdefault("FERRITE_CACHE_DIR", tempfile.mkdtemp(prefix="ferrite-fuzz-"))
    last = chosen.first + chosen.count
    chunks = deque((start, min(start + CHUNK, last)) for start in range(chosen.first, last, CHUNK))
    found: list[dict[str, Any]] = []
    started = time.monotonic()
    gpus = visible_gpus() if chosen.device == "cuda" else [""]
    threads = [
        threading.Thread(
            target=serve, args=(chunks, found, chosen.device, gpus[n % len(gpus)], started + chosen.deadline)
        )
        for n in range(min(chosen.jobs, len(chunks)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = sorted((each for each in found if "uncapturable" in each), key=lambda item: item["seed"])
    found = [each for each in found if "reason" in each]
    for each in refused:
        print(f"seed {each['seed']} is beyond torch's own capture: {each['uncapturable'][:200]}")
    for each in sorted(found, key=lambda item: item["seed"]):
        print(f"seed {each['seed']}: {each['reason']}")
        if chosen.scripts is not None:
            chosen.scripts.mkdir(parents=True, exist_ok=True)
            (chosen.scripts / f"seed_{each['seed']}.py").write_text(each["script"])
    for each in found[:3]:
        print(f"\n{each['script']}")
    left = sum(end - start for start, end in chunks)
    seconds, judged = time.monotonic() - started, chosen.count - left - len(refused)
    print(f"{judged} programs in {seconds:.0f} s, {len(found)} fail; torch captures {len(refused)} not, {left} not run")
    return 2 if left else 1 if found else 0


def serve(chunks: deque[tuple[int, int]], found: list[dict[str, Any]], device: str, gpu: str, deadline: float) -> None:
    """Runs chunks of seeds until there are none; a process that is lost costs the seed that it was at."""
    while time.monotonic() < deadline:
        try:
            start, end = chunks.popleft()
        except IndexError:
            return
        while start < end:
            start = run_chunk(start, end, found, device, gpu)


def run_chunk(start: int, end: int, found: list[dict[str, Any]], device: str, gpu: str) -> int:
    """Runs seeds in a process of their own, enters failures; returns the seed to go on with."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    if gpu:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    command = [sys.executable, "-u", str(WORKER), device, str(start), str(end)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False)
        output, words, code = done.stdout, done.stderr, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, words, code = (error.stdout or b"").decode(), "", "a hang"
        is_lost = True
    else:
        is_lost = done.returncode != 0
    events = [json.loads(line) for line in output.splitlines() if line.endswith("}")]
    found += [event for event in events if "reason" in event or "uncapturable" in event]
    if not is_lost:
        return end
    last = max((event["seed"] for event in events if "seed" in event), default=start)
    if not any(event["seed"] == last for event in found):
        found.append(
            {"seed": last, "reason": f"{code}: {words[-300:]}", "script": f"# seed {last}: the process was lost\n"}
        )
    return last + 1


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
    parser.add_argument("--count", type=int, default=2000, help="the number of programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which no chunk is begun")
    parser.add_argument("--scripts", type=Path, default=None, help="folder for the failing programs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
