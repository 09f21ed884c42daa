"""Measures the first call of models of 12, 24 and 48 equal layers, each in a fresh process with empty caches.

    python benchmarks/models/repeated_blocks.py                       # a GPU that does nothing, on any machine
    python benchmarks/models/repeated_blocks.py --device cuda         # a GPU; times of steps, too
    python benchmarks/models/repeated_blocks.py --layers 12,48 --modes training --ways whole,blocks

A GPT of plain torch is compiled as it is (``whole``), with ``options={"repeat_blocks": True}`` (``blocks``), and with
layers that the user has marked by ``torch.compiler.nested_compile_region`` (``marked``). The first call is all from
``torch.compile`` to the first result: reading by dynamo, differentiating, lowering, compiling kernels. Without a GPU
kernels are compiled for an H200 and launched nowhere (`benchmarks/host/idle_gpu.py`). Beside the wall clock stands the
processor time of the main thread, which says more where others use the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path, caches_in, compile_bytecode, results_folder

WAYS = ("whole", "blocks", "marked")
MODES = ("training", "inference")
STEPS = 30


def build(layers: int, device: str) -> tuple[Any, Any]:
    """Returns a GPT with so many layers, and a batch of token ids: short on a CPU, where extern calls run."""
    import torch

    from benchmarks.models.gpt import GPT

    torch.manual_seed(0)
    width, rows, length = (768, 8, 512) if device == "cuda" else (256, 2, 32)
    with torch.device(device):
        model = GPT(layers, width)
        tokens = torch.randint(0, 512, (rows, length))
    return (model.bfloat16() if device == "cuda" else model), tokens


def step_of(compiled: Callable[..., Any], model: Any, tokens: Any, mode: str) -> Callable[[], None]:
    """Returns what runs one step: a forward, or a forward and a backward."""
    import torch

    def train() -> None:
        model.zero_grad()
        compiled(tokens).float().square().mean().backward()

    def infer() -> None:
        with torch.no_grad():
            compiled(tokens)

    return train if mode == "training" else infer


def measure(layers: int, mode: str, way: str, device: str) -> dict[str, Any]:
    """Returns seconds of the first call in this process, of a step after it, and how many kernels there are."""
    import torch

    from benchmarks.models import gpt

    torch.set_num_threads(1)
    model, tokens = build(layers, device)
    if way == "marked":
        gpt.Block.forward = torch.compiler.nested_compile_region(gpt.Block.forward)  # type: ignore[method-assign]
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    wait()
    began, thread = time.perf_counter(), time.thread_time()
    import ferrite_torch

    if device != "cuda":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "host"))
        import idle_gpu

        idle_gpu.install()
    options = {"fallback": False, "repeat_blocks": way == "blocks"}
    step = step_of(torch.compile(model, backend="ferrite", options=options), model, tokens, mode)
    step()
    wait()
    record = {"seconds": time.perf_counter() - began, "thread": time.thread_time() - thread}
    record["kernels"] = ferrite_torch.statistics()["kernels"]
    if device == "cuda":
        record["step"] = step_seconds(step)
        record["peak"] = torch.cuda.max_memory_allocated()
    return record


def step_seconds(step: Callable[[], None]) -> float:
    """Returns the median of the seconds of a step on the GPU."""
    import torch

    for _ in range(5):
        step()
    seconds = []
    for _ in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    return statistics.median(seconds)


def run_process(layers: int, mode: str, way: str, device: str) -> dict[str, Any]:
    """Returns the record of a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--record", str(out), "--device", device]
        command += ["--layers", str(layers), "--modes", mode, "--ways", way]
        subprocess.run(command, check=True, env={**os.environ, **caches_in(Path(folder))})
        record: dict[str, Any] = json.loads(out.read_text())
    return record


def show(mode: str, way: str, records: dict[int, dict[str, Any]]) -> None:
    """Prints a line: seconds by layers, and the last against the first."""
    first, last = records[min(records)], records[max(records)]
    cells = [f"{record['seconds']:7.2f} ({record['thread']:6.2f})" for record in records.values()]
    ratios = [f"{last[name] / first[name]:.2f}" for name in ("seconds", "thread")]
    kernels = "/".join(str(record["kernels"]) for record in records.values())
    steps = "  steps " + "/".join(f"{1000 * r['step']:.2f} ms" for r in records.values()) if "step" in first else ""
    print(f"{mode:10}{way:8}{''.join(cells)}   x {ratios[0]} ({ratios[1]})   kernels {kernels}{steps}", flush=True)


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=split, default=("12", "24", "48"))
    parser.add_argument("--modes", type=split, default=MODES, help=f"of {', '.join(MODES)}")
    parser.add_argument("--ways", type=split, default=WAYS, help=f"of {', '.join(WAYS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeat", type=int, default=1, help="processes for each figure; the fastest counts")
    parser.add_argument("--out", type=Path, default=results_folder())
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    plan = parser.parse_args()
    if plan.record:
        record = measure(int(plan.layers[0]), plan.modes[0], plan.ways[0], plan.device)
        plan.record.write_text(json.dumps(record))
        sys.stdout.flush()
        os._exit(0)  # what waits in threads for compilers has no more to do
    compile_bytecode()
    print("seconds of the first call (of its main thread's processor time), by layers:", ", ".join(plan.layers))
    found = []
    for mode in plan.modes:
        for way in plan.ways:
            records = {}
            for layers in map(int, plan.layers):
                each = [run_process(layers, mode, way, plan.device) for _ in range(plan.repeat)]
                records[layers] = min(each, key=lambda record: record["seconds"])
                found.append({"mode": mode, "way": way, "layers": layers, **records[layers]})
            show(mode, way, records)
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "repeated-blocks.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
