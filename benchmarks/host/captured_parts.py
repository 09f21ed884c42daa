"""Measures how much of a program with an obstacle in its middle is played from CUDA graphs, in ``reduce-overhead``.

    python benchmarks/host/captured_parts.py
    python benchmarks/host/captured_parts.py --obstacles item --backends ferrite-reduce

Layers of a small GPT with, between two of them, what no CUDA graph can hold: a number that the CPU computes, one that
the host reads from the device (``item``), a ``print``, an operator of the user's on the CPU. After results are compared
with eager mode's, the profiler counts a call's kernels, and the launches that the host asked for one by one; what is
left was launched by graphs. Times are of a call, the device's work included, least of several.

Each program is compiled by each backend in a process of its own, all at once; times are taken one after the other, once
all have compiled, so that nobody else uses the cores by then. What is not through within ``--limit`` seconds is
stopped, and what it was at is told. Below each program stands what ferrite says is in no graph, and why, and what its
graphs have copied before they are played: kernels that the host launches.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from benchmarks.models.gpt import Block
from benchmarks.tools.backends import UNCOMPILED, compile_with, ferrite_statistics
from benchmarks.tools.timing import machine_name
from benchmarks.tools.tree import add_packages_to_path, caches_in, results_folder
from benchmarks.tools.turns import Turn, meet

LAYERS, WIDTH, LENGTH = 6, 256, 64
WARM, CALLS, REPEATS = 8, 20, 7
PATIENCE = 20.0
"""Seconds for which a process waits for others to compile."""
ASKED = 0.9
"""Least part of the kernels that graphs launch."""
TOLERANCE = 2e-2
"""Of results in bfloat16, of which the greatest are about 4, beside eager mode's: half a dozen roundings of 2^-8."""
_HOST_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernel")
"""What begins the names of the calls that launch one kernel."""
Obstacle = Callable[[Tensor, Tensor], Tensor]


@torch.library.custom_op("ferrite_benchmarks::halved_on_cpu", mutates_args=())
def halved_on_cpu(x: Tensor) -> Tensor:
    """An operator of the user's, which the CPU computes."""
    return x / 2


@halved_on_cpu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def by_cpu_scalar(x: Tensor, scale: Tensor) -> Tensor:
    return x * (scale * 2 + 1)


def by_item(x: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + x.abs().amax().item() * 1e-3)


def by_print(x: Tensor, scale: Tensor) -> Tensor:
    print("half of the layers are through")
    return x


def by_operator(x: Tensor, scale: Tensor) -> Tensor:
    return x + halved_on_cpu(x[:, :1].cpu()).to(x.device)


OBSTACLES: dict[str, Obstacle] = {
    "cpu scalar": by_cpu_scalar, "item": by_item, "print": by_print, "operator": by_operator
}  # fmt: skip


class Interrupted(nn.Module):
    """Layers with an obstacle in the middle: ``[1, length, width]`` to the same, and a scale on the CPU."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, WIDTH // 64) for _ in range(LAYERS))
        self.obstacle = obstacle

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number + 1 == LAYERS // 2:
                x = self.obstacle(x, scale)
        return x


def kernels_and_launches(call: Callable[[], Any]) -> tuple[int, int]:
    """Returns the kernels of a call, and how many of them the host launched by themselves."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    events = profile.key_averages()
    on_device = [each for each in events if each.device_type == torch.autograd.DeviceType.CUDA]
    kernels = sum(each.count for each in on_device if not each.key.startswith(("Memcpy", "Memset")))
    return kernels, sum(each.count for each in events if each.key.startswith(_HOST_LAUNCHES))


def least_microseconds(call: Callable[[], Any]) -> float:
    """Returns the microseconds of a call, least of some rows of calls."""
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) / CALLS * 1e6)
    return min(found)


def copied_inputs() -> list[str]:
    """Returns for what is played how many inputs are copied first, as they lie elsewhere than at its capture."""
    from ferrite_runtime.engines.cuda_graphs import GraphedProgram

    found = []
    for program in gc.get_objects():
        if type(program) is GraphedProgram:  # proxies among these may have nothing behind them any more
            for each in program.generations.values():
                moving, inputs = len(each.moving), len(program._names)
                played = sum(part.section.launches for part in each.parts if part.is_played)
                found.append(f"{played} launches are played with copies of {moving} of {inputs} inputs")
    return found


def measured(name: str, backend: str, lock: Path, processes: int, note: Callable[[str], Any]) -> dict[str, Any]:
    """Returns what is found of one program by one backend; ``note`` is told what is done now.

    Times are taken once so many ``processes`` with the lock have compiled, one after the other.

    Raises:
        ArithmeticError: the results are not eager mode's.
    """
    torch.manual_seed(0)
    model = Interrupted(OBSTACLES[name]).to("cuda", torch.bfloat16).eval()
    x, scale = torch.randn(1, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16), torch.tensor(0.1)
    compiled = compile_with(backend, model)

    def call() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(x, scale)

    with torch.no_grad(), contextlib.redirect_stdout(None):
        expected = model(x, scale)
        for number in range(WARM):
            note("compiling" if number == 0 else f"in call {number + 1}")
            result = call().clone()
        error = float((result - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise ArithmeticError(f"{name} by {backend}: off by {error:.2e} of the greatest")
        note("counting kernels")
        kernels, launches = kernels_and_launches(call)
        note("waiting for the device")
        meet(lock, processes, PATIENCE)
        turn = Turn(lock)
        turn.take()
        note("taking times")
        us = least_microseconds(call)
        turn.end()
    share = 1 - launches / kernels
    copied = copied_inputs() if backend.startswith("ferrite") else []
    found = {
        "program": name,
        "copied": copied,
        "backend": backend,
        "kernels": kernels,
        "launches": launches,
        "share": share,
        "us": us,
    }
    if backend.startswith("ferrite"):
        found["uncaptured"] = ferrite_statistics().get("uncaptured", {})
    return found


def measure_alone(plan: argparse.Namespace) -> None:
    """Measures the one program by the one backend that this process is for."""
    [name], [backend] = plan.obstacles, plan.backends
    note = plan.out.with_suffix(".doing").write_text
    note("starting")
    torch._dynamo.config.capture_scalar_outputs = True
    found = measured(name, backend, plan.lock, plan.processes, note)
    plan.out.write_text(json.dumps(found))


def started(names: Sequence[tuple[str, str]], folder: Path) -> dict[tuple[str, str], subprocess.Popen[bytes]]:
    """Starts a process for each program and backend; what it finds lies where `found_by` looks."""
    threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment = {**os.environ, **threads, **caches_in(folder)}
    processes = {}
    for number, (name, backend) in enumerate(names):
        out = folder / f"{number}.json"
        command = [sys.executable, __file__, "--obstacles", name, "--backends", backend]
        command += ["--lock", str(folder / "lock"), "--processes", str(len(names)), "--out", str(out)]
        with out.with_suffix(".log").open("wb") as log:
            processes[name, backend] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    return processes


def found_by(number: int, folder: Path) -> dict[str, Any] | str:
    """Returns what a process has found; if it has not, what it was at, and the end of what it said."""
    out = folder / f"{number}.json"
    if out.exists():
        return dict(json.loads(out.read_text()))
    doing = out.with_suffix(".doing")
    said = out.with_suffix(".log").read_text(errors="replace").strip().splitlines()
    return f"nothing: {doing.read_text() if doing.exists() else 'importing'}; {said[-1] if said else 'it said nothing'}"


def measure_all(plan: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns what is found of all programs by all backends, and prints it."""
    names = [(name, each) for name in plan.obstacles for each in (UNCOMPILED, *plan.backends)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as fresh:
        processes = started(names, Path(fresh))
        ends = time.perf_counter() + plan.limit
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.perf_counter()))
        for process in processes.values():
            process.kill()
            process.wait()
        for number, (name, backend) in enumerate(names):
            found = found_by(number, Path(fresh))
            print(f"{name:11s} {backend:16s} {found if isinstance(found, str) else told(found)}", flush=True)
            rows += [] if isinstance(found, str) else [found]
    return rows


def told(found: Mapping[str, Any]) -> str:
    """Returns the numbers of a row, and what is in no graph."""
    reasons = [*(f"in no graph: {each}" for each in found.get("uncaptured", {})), *found["copied"]]
    numbers = f"{found['kernels']:4d} {found['launches']:4d} {found['share']:6.3f} {found['us']:7.0f}"
    return "\n            ".join([numbers, *reasons])


def main() -> int:
    """Returns 0 if graphs launch as much of every program as is asked, by the first backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--obstacles", nargs="+", choices=tuple(OBSTACLES), default=list(OBSTACLES))
    parser.add_argument("--backends", nargs="+", default=["ferrite-reduce", "ferrite", "inductor-reduce"])
    parser.add_argument("--limit", type=float, default=40, help="seconds for all")
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=results_folder() / "captured_parts.json")
    plan = parser.parse_args()
    add_packages_to_path()
    if plan.lock is not None:
        measure_alone(plan)
        return 0
    print(f"{machine_name('cuda')} - of a call: kernels, launched by the host, part launched by graphs, us", flush=True)
    rows = measure_all(plan)
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(rows, indent=1))
    shares = [row["share"] for row in rows if row["backend"] == plan.backends[0]]
    least = min(shares, default=0.0) if len(shares) == len(plan.obstacles) else 0.0
    print(f"{plan.backends[0]}: {least:.3f} at least, asked {ASKED}")
    return 0 if least >= ASKED else 1


if __name__ == "__main__":
    sys.exit(main())
