"""Measures the first call of models of 12, 24 and 48 equal layers, each in a fresh process with empty caches.

    python benchmarks/models/repeated_blocks.py                       # a GPU that does nothing, on any machine
    python benchmarks/models/repeated_blocks.py --device cuda         # a GPU; times of steps, too
    python benchmarks/models/repeated_blocks.py --layers 12,48 --modes training --ways whole,blocks
    python benchmarks/models/repeated_blocks.py --device cuda --ways blocks,whole --whole-layers 12 --jobs 8
    python benchmarks/models/repeated_blocks.py --device cuda --together --layers 12

A GPT of plain torch is compiled as it is (``whole``), with ``options={"repeat_blocks": True}`` (``blocks``), and with
layers that the user has marked by ``torch.compiler.nested_compile_region`` (``marked``). The first call is all from
``torch.compile`` to the first result: reading by dynamo, differentiating, lowering, compiling kernels. Without a GPU
kernels are compiled for an H200 and launched nowhere (`benchmarks/host/idle_gpu.py`). Beside the wall clock stands the
processor time of the main thread, which says more where others use the same cores. On a GPU the loss and gradients of
the first step are compared with eager mode's before steps are timed. With ``--jobs`` several processes compile side by
side, each with its share of the cores. Where all do, steps are timed once all have compiled, in rounds that take turns:
a host that is slower for a while is slower for all. Otherwise steps are timed one after the other while others compile,
and say little of what the host needs for them.

With ``--together`` the model as it is and with repeated blocks are compiled in one process, and their steps take turns
there, so that nothing but what is compiled differs: neither the process, nor its cores, nor the minute.

What is asked: the first call of 48 layers takes at most 1.5 times that of 12 with repeated blocks, with the kernels of
12, and their steps at most 1.02 times those of the model as it is.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path, caches_in, compile_bytecode, results_folder
from benchmarks.tools.turns import Turn, meet

WAYS = ("whole", "blocks", "marked")
MODES = ("training", "inference")
STEPS, ROUNDS, TURNS = 15, 8, 48
PATIENCE = 240.0
"""Seconds for which a process waits for others to compile."""
MOST_CALL, MOST_STEP = 1.5, 1.02
"""Largest first call of the most layers beside that of the fewest, and largest step beside that of the whole model."""
TOLERANCE = 1e-1
"""Largest relative error (l2) of results and gradients of 48 layers in bfloat16 beside eager mode's.

The weights of another layer would make it about one.
"""


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


def step_of(compiled: Callable[..., Any], model: Any, tokens: Any, mode: str, found: list[Any]) -> Callable[[], None]:
    """Returns what runs one step: a forward, or a forward and a backward; the only item of ``found`` is its result."""
    import torch

    def train() -> None:
        model.zero_grad()
        found[:] = [compiled(tokens).float().square().mean()]
        found[0].backward()

    def infer() -> None:
        with torch.no_grad():
            found[:] = [compiled(tokens)]

    return train if mode == "training" else infer


def check(step: Callable[[], None], eager: Callable[[], None], model: Any, found: list[Any]) -> None:
    """Fails unless the last step's result and gradients, in ``found`` and the model, are eager mode's.

    Raises:
        SystemExit: one is not.
    """

    def told() -> list[Any]:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return [each.detach().double() for each in (found[-1], *gradients)]

    step()
    mine = told()
    eager()
    worst = max(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(mine, told(), strict=True))
    if worst > TOLERANCE:
        raise SystemExit(f"a result or a gradient is off by {worst:.1e}, {TOLERANCE:.0e} is allowed")


def measure(layers: int, mode: str, way: str, device: str, lock: Path | None, count: int) -> dict[str, Any]:
    """Returns seconds of the first call in this process, of a step after it, and how many kernels there are.

    Steps are timed once ``count`` processes have said beside the lock that they have compiled.
    """
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
    found: list[Any] = []
    step = step_of(torch.compile(model, backend="ferrite", options=options), model, tokens, mode, found)
    step()
    wait()
    record = {"seconds": time.perf_counter() - began, "thread": time.thread_time() - thread}
    record["kernels"] = ferrite_torch.statistics()["kernels"]
    if device == "cuda":
        check(step, step_of(model, model, tokens, mode, found), model, found)
        meet(lock, count, PATIENCE)
        record["step"] = statistics.median(seconds for _ in range(ROUNDS) for seconds in round_of(step, lock))
        record["peak"] = torch.cuda.max_memory_allocated()
    return record


def compare(layers: int, mode: str) -> dict[str, list[float]]:
    """Returns the seconds of a step of the model as it is and with repeated blocks, turn by turn, in this process.

    Each turn's are the median of its steps. The host's speed changes from one second to the next, so only turns that
    follow each other are compared.
    """
    import torch

    import ferrite_torch  # noqa: F401 - its import gives torch.compile the backend's name

    steps: dict[str, Callable[[], None]] = {}
    for way in ("whole", "blocks"):
        model, tokens = build(layers, "cuda")
        options = {"fallback": False, "repeat_blocks": way == "blocks"}
        found: list[Any] = []
        steps[way] = step_of(torch.compile(model, backend="ferrite", options=options), model, tokens, mode, found)
        check(steps[way], step_of(model, model, tokens, mode, found), model, found)
    taken: dict[str, list[float]] = {way: [] for way in steps}
    for turn in range(TURNS):
        for way in sorted(steps, reverse=turn % 2 == 0):  # each is the first of every other pair
            taken[way].append(statistics.median(round_of(steps[way], None)))
    return taken


def show_together(plan: argparse.Namespace) -> int:
    """Prints what `compare` finds, and what steps with repeated blocks take of the others' time, pair by pair."""
    for layers in map(int, plan.layers):
        for mode in plan.modes:
            found = compare(layers, mode)
            words = ", ".join(f"{way} {1000 * statistics.median(seconds):.2f} ms" for way, seconds in found.items())
            shares = [blocks / whole for blocks, whole in zip(found["blocks"], found["whole"], strict=True)]
            low, share, high = statistics.quantiles(shares, n=4)
            quartiles = f"quartiles {low:.3f} to {high:.3f} of {len(shares)} pairs"
            print(
                f"{layers} layers, {mode}: {words}: {share:.3f} of without (at most {MOST_STEP}), {quartiles}",
                flush=True,
            )
    return 0


def round_of(step: Callable[[], None], lock: Path | None) -> list[float]:
    """Returns the seconds of some steps on the GPU, while no other process has the lock."""
    import torch

    turn = Turn(lock)
    turn.take()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    turn.end()
    time.sleep(0.01)  # the next one's turn
    return seconds


def run_process(layers: int, mode: str, way: str, plan: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--record", str(out), "--device", plan.device]
        command += ["--layers", str(layers), "--modes", mode, "--ways", way]
        command += ["--lock", str(plan.lock)] if plan.lock else []
        command += ["--jobs", str(plan.count)]
        subprocess.run(command, check=True, env={**os.environ, **caches_in(Path(folder))})
        record: dict[str, Any] = json.loads(out.read_text())
    return record


def fastest(mode: str, way: str, layers: int, plan: argparse.Namespace) -> dict[str, Any]:
    """Returns the record of the process whose first call was the shortest."""
    each = [run_process(layers, mode, way, plan) for _ in range(plan.repeat)]
    return min(each, key=lambda record: float(record["seconds"]))


def show(mode: str, way: str, records: dict[int, dict[str, Any]]) -> None:
    """Prints a line: seconds by layers, and the last against the first."""
    first, last = records[min(records)], records[max(records)]
    cells = [f"{record['seconds']:7.2f} ({record['thread']:6.2f})" for record in records.values()]
    ratios = [f"{last[name] / first[name]:.2f}" for name in ("seconds", "thread")]
    kernels = "/".join(str(record["kernels"]) for record in records.values())
    steps = "  steps " + "/".join(f"{1000 * r['step']:.2f} ms" for r in records.values()) if "step" in first else ""
    print(f"{mode:10}{way:8}{''.join(cells)}   x {ratios[0]} ({ratios[1]})   kernels {kernels}{steps}", flush=True)


def figures(found: list[dict[str, Any]], mode: str) -> str:
    """Returns what is asked of a mode."""
    rows = {way: {each["layers"]: each for each in found if (each["mode"], each["way"]) == (mode, way)} for way in WAYS}
    blocks = rows["blocks"]
    least, most = min(blocks), max(blocks)
    ratio = blocks[most]["seconds"] / blocks[least]["seconds"]
    same = "the same" if len({row["kernels"] for row in blocks.values()}) == 1 else "NOT the same"
    line = f"{mode}: first call of {most} layers {ratio:.2f} of that of {least} (at most {MOST_CALL}), kernels {same}"
    steps = [blocks[n]["step"] / rows["whole"][n]["step"] for n in blocks if n in rows["whole"] and "step" in blocks[n]]
    return line + "".join(f", step {each:.3f} of without (at most {MOST_STEP})" for each in steps)


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=split, default=("12", "24", "48"))
    parser.add_argument("--modes", type=split, default=MODES, help=f"of {', '.join(MODES)}")
    parser.add_argument("--ways", type=split, default=WAYS, help=f"of {', '.join(WAYS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--whole-layers", type=split, help="layers of the model as it is; --layers if not given")
    parser.add_argument("--together", action="store_true", help="steps only, in this process")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--lock", type=Path, help="a file; processes that name it time one after the other")
    parser.add_argument("--repeat", type=int, default=1, help="processes for each figure; the fastest counts")
    parser.add_argument("--out", type=Path, default=results_folder())
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    plan = parser.parse_args()
    if plan.record:
        record = measure(int(plan.layers[0]), plan.modes[0], plan.ways[0], plan.device, plan.lock, plan.jobs)
        plan.record.write_text(json.dumps(record))
        sys.stdout.flush()
        os._exit(0)  # what waits in threads for compilers has no more to do
    if plan.together:
        return show_together(plan)
    compile_bytecode()
    print("seconds of the first call (of its main thread's processor time), by layers:", ", ".join(plan.layers))
    cells = [
        (mode, way, int(layers))
        for mode in plan.modes
        for way in plan.ways
        for layers in (plan.whole_layers or plan.layers if way == "whole" else plan.layers)
    ]
    with ThreadPoolExecutor(plan.jobs) as pool, tempfile.TemporaryDirectory() as folder:
        plan.lock = plan.lock or Path(folder) / "lock"
        plan.count = len(cells) if plan.jobs >= len(cells) and plan.repeat == 1 else 1
        found = [
            {"mode": mode, "way": way, "layers": layers, **record}
            for (mode, way, layers), record in zip(
                cells, pool.map(lambda cell: fastest(*cell, plan), cells), strict=True
            )
        ]
    for mode in plan.modes:
        for way in plan.ways:
            show(mode, way, {row["layers"]: row for row in found if (row["mode"], row["way"]) == (mode, way)})
    if "blocks" in plan.ways:
        print("repeated blocks:", "; ".join(figures(found, mode) for mode in plan.modes))
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "repeated-blocks.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
