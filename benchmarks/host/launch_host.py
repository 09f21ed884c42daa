"""Measures what a call costs the host where launches cost nothing: static and symbolic sizes, native code or none.

python benchmarks/host/launch_host.py

Needs no GPU. Programs of many kernels run through the engine for GPUs with a driver whose launch is an empty C
function, on tensors of the host. What is left is our own work: allocations, sizes, buckets, arguments. Sizes change
from call to call within buckets that are prepared; a static program is called with the one size that it takes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "ferrite-runtime" / "tests"))

import torch

from benchmarks.host.idle_gpu import empty_function
from benchmarks.tools.tree import add_packages_to_path

SIZES = (40, 50, 60, 41, 63, 37)


def machine() -> Any:
    """Returns a machine that compiles and launches nothing."""
    from runtime_fakes import FakeDriver, fake_machine

    class IdleDriver(FakeDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.launch, self.address = empty_function()

        def entry_points(self) -> tuple[int, int]:
            return self.address, self.address

    return fake_machine(driver=IdleDriver(), tune="none")


def graph_text(kernels: int, rows: str, where: str) -> str:
    """Returns a graph of so many kernels, each with a result of a width of its own, which no fusion brings together."""
    inputs = ", ".join(f"x{k}: f32[{rows}, {61 + 3 * k}]" for k in range(kernels))
    lines = [
        f"  y{k}: f32[{rows}, {61 + 3 * k}] = loop [i < {rows}, j < {61 + 3 * k}] add(exp(x{k}[i, j]), f32(1.0))"
        for k in range(kernels)
    ]
    results = ", ".join(f"y{k}" for k in range(kernels))
    return f"graph @f({inputs}) -> ({results}) on cuda{where} {{\n" + "\n".join(lines) + "\n}"


def host_of(kernels: int, *, symbolic: bool, native: bool) -> Callable[[list[Any]], Any]:
    """Returns the host function of later calls."""
    from ferrite_ir import PIPELINE
    from ferrite_ir.text.parser import parse_graph
    from ferrite_runtime import Program
    from ferrite_runtime.engines.cuda_engine import CudaEngine
    from ferrite_runtime.launching.native_launcher import find_launcher
    from ferrite_runtime.store.interface import MemoryStore
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program
    from runtime_fakes import FakeStreams

    text = graph_text(kernels, "n", " where n: size >= 1 ~ 50") if symbolic else graph_text(kernels, str(SIZES[0]), "")
    mapping = emit_program(schedule(PIPELINE.run(parse_graph(text)))).to_mapping()
    for value in mapping["inputs"]:
        value["device"] = "cpu"
    launcher = find_launcher(MemoryStore(), may_build=True) if native else None
    idle, platform = machine(), FakeStreams().platform()
    program = Program.from_mapping({**mapping, "device": "cpu"})
    engine = CudaEngine(program, platform, lambda index: idle, lambda: launcher)
    device = torch.device("cpu", 0)
    engine.first(device)(inputs_of(kernels, SIZES[0]))
    return engine.steady(device, lambda args: ())


def inputs_of(kernels: int, rows: int) -> list[torch.Tensor]:
    return [torch.empty(rows, 61 + 3 * k) for k in range(kernels)]


def microseconds(host: Callable[[list[Any]], Any], given: Sequence[Sequence[Any]], batches: int) -> float:
    """Returns the median of the microseconds of one call."""
    for inputs in given:
        host(list(inputs))
    times = []
    for _ in range(batches):
        started = time.perf_counter()
        for inputs in given:
            host(list(inputs))
        times.append((time.perf_counter() - started) * 1e6 / len(given))
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=50)
    parser.add_argument("--batches", type=int, default=200)
    plan = parser.parse_args()
    torch.set_num_threads(1)
    changing = [inputs_of(plan.kernels, rows) for rows in SIZES]
    same = [inputs_of(plan.kernels, SIZES[0])] * len(SIZES)
    allocated = microseconds(lambda inputs: [torch.empty_like(x) for x in inputs], same, plan.batches) / plan.kernels
    print(f"{plan.kernels} kernels, microseconds per kernel; allocating a result takes {allocated:.2f}")
    for symbolic, native in ((False, True), (True, True), (False, False), (True, False)):
        host = host_of(plan.kernels, symbolic=symbolic, native=native)
        found = microseconds(host, changing if symbolic else same, plan.batches) / plan.kernels
        name = f"{'symbolic' if symbolic else 'static'} sizes, {'native sequences' if native else 'one by one'}"
        print(f"  {name:34} {found:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
