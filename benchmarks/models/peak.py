"""Prints what is alive when the memory of one step of a model is at its peak: for CUDA devices.

    python benchmarks/models/peak.py gpt2 inference eager
    python benchmarks/models/peak.py gpt2 inference ferrite --largest 30
    python benchmarks/models/peak.py qwen3 inference ferrite --batch 8          # one of the wide set

One backend per process: what another one left in the allocator's cache would be measured with it. Two numbers stand for
each allocation: the bytes that were asked for and, for those older than the step, the block that the allocator gave.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.models.cell import Cell, build_module, inference_step, training_step, workload_of
from benchmarks.models.wide import WIDE
from benchmarks.models.workloads import WORKLOADS
from benchmarks.tools.backends import compile_with
from benchmarks.tools.tree import add_packages_to_path

MIB = 1 << 20
BEFORE = "before the step"
OWN_FRAMES = 3
"""Innermost Python frames that say where an allocation came from."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One block: bytes asked for, bytes given (0 if not known), and where it was allocated."""

    asked: int
    given: int
    origin: str


def blocks_now() -> dict[int, Allocation]:
    """Returns the allocated blocks of the current device by address."""
    found: dict[int, Allocation] = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                asked = block.get("requested_size", block["size"])
                found[block["address"]] = Allocation(asked, block["size"], BEFORE)
    return found


def replay(alive: dict[int, Allocation], events: Iterable[Mapping[str, Any]]) -> tuple[int, dict[int, Allocation]]:
    """Returns the most bytes asked for at once during some allocator events, and what was alive then."""
    live = dict(alive)
    total = peak = sum(block.asked for block in live.values())
    then = dict(live)
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = Allocation(event["size"], 0, origin_of(event.get("frames", ())))
            total += event["size"]
        elif event["action"] == "free_requested" and event["addr"] in live:
            total -= live.pop(event["addr"]).asked
        if total > peak:
            peak, then = total, dict(live)
    return peak, then


def origin_of(frames: Iterable[Mapping[str, Any]]) -> str:
    """Returns the innermost Python frames of a stack in one line."""
    python = [frame for frame in frames if not str(frame["filename"]).endswith((".cpp", ".h", "??"))]
    names = [f"{frame['name']} ({Path(frame['filename']).name}:{frame['line']})" for frame in python[:OWN_FRAMES]]
    return " < ".join(names) or "?"


def measure(cell: Cell, warm_up: int) -> tuple[int, int, dict[int, Allocation]]:
    """Returns the allocator's own peak in one step, the peak of what was asked for, and what was alive then."""
    workload = workload_of(cell)
    module, inputs = build_module(cell, workload)
    compiled = compile_with(cell.backend, module)
    if cell.mode == "training":
        step, _ = training_step(compiled, module, inputs, workload.learning_rate)
    else:
        step = inference_step(compiled, inputs)
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = blocks_now()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")  # no public name
    step()
    torch.cuda.synchronize()
    (events,) = [trace for trace in torch.cuda.memory._snapshot()["device_traces"] if trace]
    torch.cuda.memory._record_memory_history(enabled=None)
    return torch.cuda.max_memory_allocated(), *replay(before, events)


def print_alive(own_peak: int, peak: int, alive: Mapping[int, Allocation], largest: int) -> None:
    blocks = sorted(alive.values(), key=lambda block: -block.asked)
    padding = sum(block.given - block.asked for block in blocks if block.given)
    print(f"peak: allocated {own_peak / MIB:.2f} MiB, asked for {peak / MIB:.2f} MiB in {len(blocks)} blocks")
    print(f"rounding of the blocks older than the step: {padding / MIB:.2f} MiB")
    for block in blocks[:largest]:
        print(f"{block.asked / MIB:10.2f} MiB  {block.origin}")
    rest = sum(block.asked for block in blocks[largest:])
    print(f"{rest / MIB:10.2f} MiB  in {max(0, len(blocks) - largest)} smaller blocks")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="one of benchmarks/models/run.py; with --batch, of its wide set")
    parser.add_argument("mode", choices=("inference", "training"))
    parser.add_argument("backend")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=0, help="samples of a call of a model of the wide set")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="of its images")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before the one that is looked at")
    parser.add_argument("--largest", type=int, default=20, help="how many blocks to print")
    given = parser.parse_args(arguments)
    models = WIDE if given.batch else WORKLOADS
    if given.model not in models:
        parser.error(f"no model {given.model!r}; there are {', '.join(models)}")
    if not torch.cuda.is_available():
        parser.error("the peak is read from the allocator of a CUDA device, and torch finds none")
    variant = (given.batch, given.layout if given.batch and WIDE[given.model].images else "")
    cell = Cell(given.model, given.mode, given.backend, "cold", given.size, "cuda", given.dtype, 1, 1, *variant)
    print_alive(*measure(cell, given.warm_up), given.largest)


if __name__ == "__main__":
    add_packages_to_path()
    main()
