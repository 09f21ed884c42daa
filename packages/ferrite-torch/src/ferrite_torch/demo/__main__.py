"""Shows Ferrite at work on any machine: `python -m ferrite_torch.demo`.

A small GPT and a small ResNet run inference and one training step through the kernels that Ferrite writes for them: on
a GPU where there is one, else in Triton's interpreter. Every result is compared with eager. Then all these kernels are
compiled for three GPU architectures, which needs no GPU. On a GPU the demo also measures speed against eager. The exit
status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics as stats
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import ferrite_runtime
import ferrite_torch
from ferrite_torch.demo.models import LARGE, SMALL, DemoModel, Loss, demo_models
from ferrite_torch.demo.progress import Progress

TARGETS = ("sm_80", "sm_90", "gfx942")
ERROR_FACTOR = 2.0  # times eager's own distance from float64
ROUNDINGS = 32.0  # of float32, that are always allowed, relative to the largest number


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one model in one mode; errors are relative to the largest number of each tensor."""

    model: str
    mode: str
    graphs: int
    kernels: int
    extern_calls: int
    error: float
    allowed: float
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether kernels ran and their results are as good as eager's."""
        return self.kernels > 0 and self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class Built:
    """How many kernels compiled for a target, and what was wrong with the others."""

    target: str
    compiled: int
    failures: tuple[str, ...]
    seconds: float


def compiled_by_ferrite(module: nn.Module) -> Callable[..., Tensor]:
    """Returns the module compiled; a failure is an error here, not a fallback."""
    called: Callable[..., Tensor] = torch.compile(
        module, backend="ferrite", fullgraph=True, options={"fallback": False}
    )
    return called


def infer(module: nn.Module, called: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Returns the results of one inference by name."""
    with torch.no_grad():
        return {"logits": called(inputs[0])}


def train(module: nn.Module, called: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Returns the loss, all gradients and all parameters and buffers after one step of AdamW."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-2)
    loss = called(*inputs)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    results = {"loss": loss.detach()}
    results |= {f"gradient of {name}": x.grad for name, x in module.named_parameters() if x.grad is not None}
    results = {name: x.clone() for name, x in results.items()}
    optimizer.step()
    return results | {name: x.detach() for name, x in module.state_dict().items()}


MODES: Mapping[str, Callable[[nn.Module, Callable[..., Tensor], tuple[Tensor, ...]], dict[str, Tensor]]] = {
    "inference": infer,
    "training step": train,
}


def distance(results: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Returns the largest difference, relative to the largest number of its tensor or of all gradients."""
    tops = {name: x.double().abs().max().item() for name, x in reference.items()}
    top_gradient = max((top for name, top in tops.items() if name.startswith("gradient")), default=0.0)
    worst = 0.0
    for name, exact in reference.items():
        top = max(tops[name], top_gradient if name.startswith("gradient") else 0.0, 1e-30)
        difference = (results[name].double() - exact.double()).abs().max().item()
        worst = max(worst, difference / top if math.isfinite(difference) else math.inf)
    return worst


def widened(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns the inputs with floating ones in float64."""
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def run_model(model: DemoModel, mode: str, device: str) -> Run:
    """Runs one model in one mode by Ferrite, by eager and in float64, from the same weights."""
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch.device(device):
        module: nn.Module = model.build()
        inputs = model.feed()
    module = Loss(module).train() if mode != "inference" else module.eval()
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    before = ferrite_torch.statistics()
    started = time.perf_counter()
    mine = MODES[mode](module, compiled_by_ferrite(module), inputs)
    seconds = time.perf_counter() - started
    after = ferrite_torch.statistics()
    theirs = MODES[mode](eager, eager, inputs)
    right = MODES[mode](exact, exact, widened(inputs))
    allowed = ERROR_FACTOR * distance(theirs, right) + ROUNDINGS * torch.finfo(torch.float32).eps
    counts = {name: after[name] - before[name] for name in ("graphs", "kernels", "extern_calls")}
    return Run(model.title, mode, **counts, error=distance(mine, theirs), allowed=allowed, seconds=seconds)


def run_models(device: str, progress: Progress) -> Iterator[Run]:
    """Yields the runs of all models and modes."""
    for model in demo_models(*SMALL):
        for mode in MODES:
            progress.show(f"{model.title}, {mode} …")
            yield run_model(model, mode, device)


def print_runs(runs: Sequence[Run], device: str) -> None:
    """Prints the table of models × kernels × extern calls × error."""
    where = "on the GPU" if device == "cuda" else "in Triton's interpreter"
    print(f"\nFerrite's kernels {where}, against eager in float32:\n")
    print(f"  {'model':18s} {'mode':14s} graphs  kernels  extern calls  max error      s")
    for run in runs:
        verdict = "ok" if run.is_right else f"WRONG (allowed {run.allowed:.1e})"
        print(
            f"  {run.model:18s} {run.mode:14s} {run.graphs:6d} {run.kernels:8d} {run.extern_calls:13d} "
            f"{run.error:10.1e} {run.seconds:6.1f}  {verdict}"
        )


def cross_compile_all(programs: Sequence[Mapping[str, Any]], target: str, progress: Progress) -> Built:
    """Compiles the kernels of all programs, each once, for a target that need not be present."""
    started = time.perf_counter()
    compiled: set[str] = set()
    failures: dict[str, str] = {}
    for number, program in enumerate(programs, 1):
        progress.show(f"{len(program['kernels'])} kernels of program {number} of {len(programs)} for {target} …")
        report = ferrite_runtime.cross_compile(program, target)
        failures |= {row.id: f"{row.kernel}: {row.error}" for row in report.failures}
        compiled |= {row.id for row in report.rows}
    return Built(target, len(compiled - failures.keys()), tuple(failures.values()), time.perf_counter() - started)


def print_built(built: Sequence[Built], count: int) -> None:
    """Prints how many kernels compiled for each target."""
    print(f"\n{count} distinct kernels, compiled without a GPU for:\n")
    for each in built:
        print(f"  {each.target:8s} {each.compiled:4d} of {count}  {each.seconds:6.1f} s")
        for failure in each.failures[:3]:
            print(f"           {failure.splitlines()[0][:150]}")


def milliseconds(step: Callable[[], object], repetitions: int = 20) -> float:
    """Returns the median time of a step between two device events."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]  # type: ignore[no-untyped-call]
    for _ in range(3):
        step()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return float(stats.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)))


def measure_speed(progress: Progress) -> None:
    """Prints the time of larger models beside eager's, in bfloat16, on the GPU."""
    print("\nSpeed against eager, larger sizes, bfloat16:\n")
    for model in demo_models(*LARGE):
        for mode in MODES:
            progress.show(f"measuring {model.title}, {mode} …")
            eager, ferrite = time_model(model, mode)
            progress.clear()
            times = f"eager {eager:8.3f} ms  ferrite {ferrite:8.3f} ms  {eager / ferrite:5.2f}x"
            print(f"  {model.title:18s} {mode:14s} {times}")


def time_model(model: DemoModel, mode: str) -> tuple[float, float]:
    """Returns the milliseconds of eager and of Ferrite; a training step is forward and backward here."""
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch.device("cuda"):
        module: nn.Module = model.build().bfloat16()
        batch, labels = model.feed()
    batch = batch.bfloat16() if batch.is_floating_point() else batch
    module = Loss(module).train() if mode != "inference" else module.eval()
    inputs = (batch,) if mode == "inference" else (batch, labels)

    def step(called: Callable[..., Tensor]) -> Callable[[], object]:
        def trained() -> None:
            called(*inputs).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            module.zero_grad(set_to_none=True)

        return trained if mode != "inference" else torch.no_grad()(lambda: called(*inputs))

    return milliseconds(step(module)), milliseconds(step(compiled_by_ferrite(module)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--targets", default=",".join(TARGETS), help="architectures to compile for, comma separated")
    chosen = parser.parse_args(arguments)
    progress = Progress(sys.stderr)
    runs = list(run_models(chosen.device, progress))
    progress.clear()
    print_runs(runs, chosen.device)
    programs = ferrite_torch.compiled_programs()
    count = len({kernel["id"] for program in programs for kernel in program["kernels"]})
    targets = [target for target in chosen.targets.split(",") if target]
    built = [cross_compile_all(programs, target, progress) for target in targets]
    progress.clear()
    print_built(built, count)
    if chosen.device == "cuda":
        measure_speed(progress)
    passed = all(run.is_right for run in runs) and all(each.compiled == count for each in built)
    print(f"\n{'All is well' if passed else 'Something is wrong'}; {time.monotonic() - progress.started:.0f} s.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
