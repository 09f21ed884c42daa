"""Launches and device time of programs of many small kernels, with and without shared launches, beside Inductor.

python benchmarks/host/combos.py --workers 12
python benchmarks/host/combos.py --only clip --ways ours,apart --policy combo_unlike_bytes=0

Programs are compiled by several processes at once; one of them measures at a time. ``ours`` has mixed combos (decision
0052), ``apart`` has not; ``inductor`` is as it comes, ``combo`` has its ``combo_kernels``. Results are compared with
eager's first. A row tells microseconds of the device for a call, and launches; the last lines, geometric means.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.host.combo_programs import Program, programs
from benchmarks.tools.backends import compile_with
from benchmarks.tools.profiling import profile_step
from benchmarks.tools.timing import machine_name, time_launches

WAYS = ("ours", "apart", "inductor", "combo")
CALLS, REPEATS = 20, 7
"""Calls that are queued for one figure, and figures of which the median counts."""
HOST_CALLS = 50


def compiled(way: str, function: Callable[..., Any], policy: dict[str, Any]) -> Callable[..., Any]:
    """Returns a function compiled one way."""
    torch._dynamo.reset()
    if way in ("ours", "apart"):
        chosen = {**policy, **({} if way == "ours" else {"mixed_combos": False})}
        return compile_with("ferrite", function, policy=chosen, fullgraph=True, dynamic=False)
    options = {"combo_kernels": True} if way == "combo" else {}
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Lets no other process measure meanwhile."""
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check(program: Program, call: Callable[..., Any], device: str) -> None:
    """Raises `AssertionError` where results, or what a program changes in place, are not eager's.

    Of 16-bit types they are compared with eager mode in float32, which rounds no result between two ops.
    """
    mine, eager = program.tensors(device), program.tensors(device)
    if program.half:
        eager = tuple(tensor.float() for tensor in eager)
    got, expected = call(*mine), program.function(*eager)
    if program.half:
        eager = tuple(tensor.bfloat16() for tensor in eager)
        expected = None if expected is None else tuple(tensor.bfloat16() for tensor in expected)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if program.half else {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(mine, eager, **tolerance)
    if expected is not None:
        torch.testing.assert_close(tuple(got) if program.half else got, expected, **tolerance)


def measure(program: Program, way: str, policy: dict[str, Any], lock: str, device: str) -> dict[str, Any]:
    """Returns one cell: microseconds of device and host, launches, seconds of compilation."""
    started = time.perf_counter()
    call = compiled(way, program.function, policy)
    check(program, call, device)
    seconds = time.perf_counter() - started
    tensors = program.tensors(device)
    for _ in range(3):
        call(*tensors)
    if device != "cuda":
        return {"seconds": seconds}
    with alone(lock):
        torch.cuda.synchronize()
        times = [time_launches(lambda: call(*tensors), CALLS, device) * 1e3 for _ in range(REPEATS)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(HOST_CALLS):
            call(*tensors)
        host = (time.perf_counter() - began) / HOST_CALLS * 1e6
        torch.cuda.synchronize()
        kinds = profile_step(lambda: call(*tensors), device)["kinds"]
    launches = int(sum(kind["launches"] for kind in kinds.values()))
    return {"device": statistics.median(times), "host": host, "launches": launches, "seconds": seconds}


def work(task: tuple[int, Sequence[str], dict[str, Any], str, str]) -> dict[str, Any]:
    """Returns the row of one program."""
    number, ways, policy, lock, device = task
    program = list(programs())[number]
    row: dict[str, Any] = {"program": program.name, "levels": program.levels}
    for way in ways:
        try:
            row[way] = measure(program, way, policy, lock, device)
        except Exception as error:  # noqa: BLE001 - a row says what went wrong with it
            row[way] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return row


def told(row: dict[str, Any], ways: Sequence[str]) -> str:
    """Returns a line of the table."""
    cells = []
    for way in ways:
        cell = row[way]
        if "device" in cell:
            cells.append(f"{cell['device']:8.1f} {cell['launches']:3d} {cell['host']:6.0f}")
        else:
            cells.append(f"{cell.get('error', 'compiled')[:19]:>19s}")
    return f"{row['program']:32s} {row['levels']:2d} | " + " | ".join(cells)


def summary(rows: Sequence[dict[str, Any]], ways: Sequence[str]) -> Iterator[str]:
    """Yields geometric means of the first way over each other one."""
    for way in ways[1:]:
        pairs = [(row, row[ways[0]], row[way]) for row in rows if "device" in row[ways[0]] and "device" in row[way]]
        for kind in ("device", "host"):
            if pairs:
                ratios = {row["program"]: mine[kind] / other[kind] for row, mine, other in pairs}
                mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
                worst = max(ratios, key=lambda name: ratios[name])
                yield f"{ways[0]} / {way}, {kind}: {mean:.3f} of {len(ratios)}, worst {ratios[worst]:.3f} ({worst})"
    counted = [row for row in rows if "launches" in row[ways[0]]]
    if counted:
        many = [
            f"{row['program']} {row[ways[0]]['launches']}"
            for row in counted
            if row[ways[0]]["launches"] > row["levels"]
        ]
        total, levels = (
            sum(values) for values in zip(*((r[ways[0]]["launches"], r["levels"]) for r in counted), strict=True)
        )
        yield f"launches {total} of {levels} levels; more than levels: {', '.join(many) or 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--only", default="", help="programs whose name has one of these words, by commas")
    parser.add_argument("--policy", action="append", default=[], help="threshold=number of the scheduler, for ours")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no more is begun")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None, help="file for the rows, as JSON lines")
    chosen = parser.parse_args()
    ways, words = chosen.ways.split(","), [word for word in chosen.only.split(",") if word]
    policy = {name: int(value) for name, value in (each.split("=") for each in chosen.policy)}
    numbers = [n for n, each in enumerate(programs()) if not words or any(word in each.name for word in words)]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    began, rows = time.perf_counter(), []
    with tempfile.NamedTemporaryFile() as lock, get_context("spawn").Pool(chosen.workers, maxtasksperchild=8) as pool:
        tasks = [(number, ways, policy, lock.name, chosen.device) for number in numbers]
        found = pool.imap_unordered(work, tasks)
        print(machine_name(chosen.device), "- device us, launches, host us per call")
        print(f"{'program':32s} lv | " + " | ".join(f"{way:>19s}" for way in ways))
        for _ in tasks:
            try:
                rows.append(
                    found.next(
                        timeout=max(1.0, chosen.budget - (time.perf_counter() - began))
                        if chosen.budget < math.inf
                        else None
                    )
                )
            except TimeoutError:
                print(f"the time is up: {len(tasks) - len(rows)} programs left out")
                break
            print(told(rows[-1], ways), flush=True)
        pool.terminate()
    for line in summary(rows, ways):
        print(line)
    if chosen.out is not None:
        chosen.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    failed = [f"{row['program']} {way}: {row[way]['error']}" for row in rows for way in ways if "error" in row[way]]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
