"""Measures memory-bound kernels of each backend against the bound: bytes over the copy bandwidth of the same run.

    python benchmarks/kernels/run.py                                  # about four minutes on one H200
    python benchmarks/kernels/run.py --table kernels.md --plot kernels.png
    python benchmarks/kernels/run.py --cases softmax --dtypes bfloat16 --dump kernels/
    python benchmarks/kernels/run.py --backends eager,inductor,inductor-max,ferrite,ferrite-max --prepare 16 --gpus 2

Each function is checked against float64 first. Times are device times of launches that wait in the queue behind a
spinning kernel, so that no host time is in them. Sets of inputs take turns: between two calls with one set, those with
others move several times what the L2 cache holds, so that no call finds there what one before has left; programs of
less than a few megabytes do find it there, on every backend.

``--prepare`` has the backends that do not tune compile everything first, with empty caches, so many processes at once
with as many cores each; nothing is timed meanwhile, and the seconds of compiling are those of then. What backends
measure meanwhile, to choose between builds, is forgotten. Those that tune do so when their turn has come, as they have
to be alone; ``--prepare-tuned`` has them compile first, too, and tune again when their turn has come, so that they are
not timed while they compile, nor are their seconds of compiling told. ``--gpus`` shares the rows out: all backends of a
row are timed on one GPU, in turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.figures.random_figures import random_figures
from benchmarks.kernels.case_sets import CASE_SETS, cases_of
from benchmarks.kernels.cases import Case, outcome, unavoidable_bytes
from benchmarks.kernels.errors import error_in_tf32, exact_outputs, judged_error, smallest_step
from benchmarks.kernels.first_configs import gain_lines, measured_kernels
from benchmarks.kernels.plot import plot_kernels
from benchmarks.kernels.preparation import Prepared, is_tuned, prepare_all
from benchmarks.kernels.random_cases import FORMS
from benchmarks.kernels.report import markdown_table
from benchmarks.kernels.results import Result, as_json, bandwidths_of, print_case, print_verdict, read_runs, results_of
from benchmarks.kernels.verdict import figures
from benchmarks.tools.backends import compile_with
from benchmarks.tools.forgetting import forget_choices
from benchmarks.tools.profiling import profile_step
from benchmarks.tools.timing import copy_bandwidth, machine_name, product_rate, time_launches, visible_gpus
from benchmarks.tools.tree import add_packages_to_path, caches_in, results_folder

COPY_BYTES = 1 << 30
LAUNCHES = 20
CACHE_TIMES = 4  # what other sets of inputs move between two calls with one, over what the cache holds
MOST_SETS = 64  # of inputs: programs so small that it takes more find theirs in the cache, on every backend
QUICK_CALLS = ("ferrite.", "aten.zeros.", "aten.empty_strided.")  # next to no device time
FIRST_CONFIG = 1.02  # times the fastest config that a kernel's first may take without being named
SLOWEST = 6  # cells named of those that took longest to compile
ERROR_BAR = 2.0  # times eager's own error


@dataclass(frozen=True, slots=True)
class Device:
    """What the bandwidth bound is reckoned with.

    Attributes:
        bandwidth: bytes per second of a copy.
        rates: operations per second of a matrix product, by type, where a case asks for them.
    """

    bandwidth: float
    rates: dict[torch.dtype, float]

    def bound_ms(self, moved: int, flops: int, dtype: torch.dtype) -> float:
        """Returns the milliseconds that the longer one of moving bytes and computing takes at least."""
        return max(moved / self.bandwidth, flops / self.rates[dtype] if flops else 0.0) * 1e3


def measure_device(plan: argparse.Namespace) -> Device:
    """Measures what this run's bounds are computed with."""
    rates = {}
    if any(case.flops for case in plan.chosen):
        rates = {dtype: product_rate(plan.device, dtype, plan.scale) for dtype in map(type_of, plan.dtypes)}
    return Device(copy_bandwidth(plan.device, COPY_BYTES // plan.scale**2), rates)


def type_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def measure_case(case: Case, dtype: torch.dtype, plan: argparse.Namespace, device: Device) -> list[Result]:
    """Checks, then times, one case on every backend, batches of the backends in turn."""
    # Once for all backends: a function that is called after dynamo was reset is compiled again, with the caches, and by
    # what was measured, of the backend that compiled last.
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = case.make(dtype, plan.scale)
    reference = exact_outputs(case, inputs)
    eager = outcome(case, case.function, inputs)
    own_error = judged_error(case, inputs, eager, reference)
    if case.convolves and dtype is torch.float32 and torch.backends.cudnn.allow_tf32:
        own_error = max(own_error, error_in_tf32(case, inputs, reference))
    moved = unavoidable_bytes(case, inputs, eager)
    bound_ms = device.bound_ms(moved, case.flops(*inputs) if case.flops else 0, dtype)
    del eager
    sets = [inputs, *(case.make(dtype, plan.scale) for _ in range(others_between(moved, plan.device)))]
    calls: dict[str, Callable[[], Any]] = {}
    facts: dict[str, dict[str, Any]] = {}
    empty = Result(case.name, str(dtype).removeprefix("torch."), "", case.bar, moved, case.limit)
    failures: list[Result] = []
    for backend in plan.backends:
        try:
            compiled, facts[backend] = compile_checked(case, backend, inputs, reference, own_error, dtype, plan)
            calls[backend] = in_turn(case, compiled, sets)
        except Exception as error:  # noqa: BLE001 - reported in the backend's cell
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150] if str(error) else ''}"
            failures.append(replace(empty, backend=backend, failed=reason))
    del reference
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for call in calls.values():
        for _ in range(-(-len(sets) // LAUNCHES)):
            time_launches(call, LAUNCHES, plan.device)
    for _ in range(plan.reps):
        for backend, call in calls.items():
            times[backend].append(time_launches(call, LAUNCHES, plan.device))
    if plan.launches:
        for backend, call in calls.items():
            print_launches(f"{case.name}, {backend}", call, plan.device)
    results = []
    for backend, measured in times.items():
        ms = statistics.median(measured)
        spread = (max(measured) - min(measured)) / ms
        results.append(replace(empty, backend=backend, ms=ms, spread=spread, share=bound_ms / ms, **facts[backend]))
    return results + failures


def others_between(moved: int, device: str) -> int:
    """Returns how many other sets of inputs a call that moves so many bytes needs for its own to leave the cache.

    Tiny programs would need thousands of sets, and more launches than the device's queue holds: they get some.
    """
    if device != "cuda":
        return 0
    return min(MOST_SETS, math.ceil(CACHE_TIMES * torch.cuda.get_device_properties(device).L2_cache_size / moved))


def in_turn(case: Case, compiled: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> Callable[[], Any]:
    """Returns a call that takes the next set of inputs each time."""
    turns = itertools.cycle(sets)
    return lambda: outcome(case, compiled, next(turns))


def print_launches(title: str, call: Callable[[], Any], device: str) -> None:
    """Prints what a call launches, with the time of each kernel: with its operands in the cache, where they fit."""
    print(title)
    for kernel in profile_step(call, device).get("longest", ()):
        print(f"    {kernel['ms'] * 1e3:9.1f} us  {kernel['calls']:3} x {kernel['name'][:80]}")


def compile_checked(
    case: Case,
    backend: str,
    inputs: tuple[Any, ...],
    reference: Sequence[Tensor],
    own_error: float,
    dtype: torch.dtype,
    plan: argparse.Namespace,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Compiles and checks; returns the function, its error over eager's, and the time that ferrite predicts.

    Raises:
        ArithmeticError: the results are further from float64 than twice eager's.
    """
    os.environ.update(caches_in(plan.caches / backend))
    before = compiled_count(backend)
    started = time.perf_counter()
    compiled = compile_with(backend, case.function, policy=plan.policy, fullgraph=True, dynamic=False)
    outputs = outcome(case, compiled, inputs)
    seconds = time.perf_counter() - started
    error = judged_error(case, inputs, outputs, reference)
    if not error <= max(ERROR_BAR * own_error, smallest_step(dtype)):
        raise ArithmeticError(f"wrong results: error {error:.2e}, eager's own {own_error:.2e}")
    facts = {"error": error / own_error if own_error else 0.0, "compile_s": seconds, "ready_s": seconds}
    facts["predicted_ms"] = predicted_ms(before, plan.device) if backend == "ferrite" else None
    if backend.startswith("ferrite"):
        facts["kernels"] = measured_kernels(programs_since(before), device_of(plan.device))
    return compiled, facts


def compiled_count(backend: str) -> int:
    return len(programs_since(0)) if backend.startswith("ferrite") else 0


def programs_since(count: int) -> Sequence[Any]:
    """Returns the programs that ferrite compiled in this process, but for the first ``count``."""
    import ferrite_torch

    return ferrite_torch.compiled_programs()[count:]


def device_of(device: str) -> Any:
    """Returns ferrite's facts of the device that is measured: those of an H200 where it is no GPU."""
    from ferrite_runtime.devices.descriptors import device_facts, known_devices

    return device_facts(torch.cuda.current_device()) if device == "cuda" else known_devices()["h200"]


def predicted_ms(before: int, device: str) -> float | None:
    """Returns what the launches of the programs compiled since then should take; None if they call libraries."""
    from ferrite_runtime import KernelSpec
    from ferrite_runtime.policies.prediction import predict

    facts, seconds = device_of(device), 0.0
    for program in programs_since(before):
        specs = {kernel["id"]: KernelSpec.from_mapping(kernel) for kernel in program["kernels"]}
        for step in program["steps"]:
            if step["do"] == "launch":
                seconds += predict(specs[step["kernel"]], facts).seconds
            elif step["do"] == "extern" and not step["target"].startswith(QUICK_CALLS):
                return None
    return seconds * 1e3 or None


def dump_sources(folder: Path) -> int:
    """Writes the sources of all kernels that ferrite compiled in this process; returns their number."""
    import ferrite_torch

    read = getattr(ferrite_torch, "compiled_programs", None)
    programs = read() if callable(read) else ()
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {kernel["id"]: kernel for program in programs for kernel in program["kernels"]}
    for identity, kernel in kernels.items():
        origin = "".join(f"# {line}\n" for line in kernel.get("origin", ()))
        (folder / f"{kernel['name']}-{identity[:10]}.py").write_text(origin + kernel["source"])
    return len(kernels)


def read_plan() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="comma separated parts of case names")
    parser.add_argument(
        "--set",
        choices=(*CASE_SETS, *FORMS),
        default="all",
        help="cases of the first list, of the second, or both; those that have figures of their own, or the rest; "
        "many shapes; programs drawn from a seed, of all forms or convolutions alone",
    )
    parser.add_argument("--seed", type=int, default=0, help="of programs that are drawn")
    parser.add_argument("--count", type=int, default=100, help="of programs that are drawn")
    parser.add_argument("--dtypes", type=listed, default=["bfloat16", "float32"])
    parser.add_argument(
        "--backends",
        type=listed,
        default=["eager", "inductor", "ferrite"],
        help="also inductor-max, ferrite-max, ferrite-apart and ferrite-unchecked",
    )
    parser.add_argument("--reps", type=int, default=7, help=f"batches of {LAUNCHES} launches")
    parser.add_argument("--scale", type=int, default=1, help="divides sizes; for trying the script out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--policy", type=json.loads, default={}, help="scheduler thresholds for ferrite, as JSON")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which no new case begins")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile everything first")
    parser.add_argument("--prepare-tuned", action="store_true", help="so do backends that tune")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that share the rows")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th row, from the k-th")
    parser.add_argument("--caches", type=Path, help="folder for the backends' caches; without it they are empty")
    parser.add_argument("--no-tf32", dest="tf32", action="store_false", help="convolutions of float32 round nothing")
    parser.add_argument("--launches", action="store_true", help="print what each backend launches, too")
    parser.add_argument("--dump", type=Path, help="folder for ferrite's kernel sources")
    parser.add_argument("--table", type=Path, help="file for a Markdown table")
    parser.add_argument(
        "--plot", type=Path, help="file for a plot (PNG): the roofline and shares of the bandwidth bound"
    )
    parser.add_argument("--out", type=Path, default=results_folder() / "kernels.json")
    plan = parser.parse_args()
    wanted = listed(plan.cases)
    cases = cases_of(plan.set, plan.seed, plan.count)
    plan.chosen = [case for case in cases if not wanted or any(part in case.name for part in wanted)]
    return plan


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def run(plan: argparse.Namespace) -> int:
    """Runs the plan, compiling everything first if it says so; returns the exit status."""
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ferrite-caches-", ignore_cleanup_errors=True) as fresh:
        plan.caches = plan.caches or Path(fresh)
        if not plan.prepare:
            return report(plan, *measure(plan))
        prepared = prepare_all(plan, visible_gpus() if plan.device == "cuda" else [])
        print(f"compiled in {prepared.wall_s:.0f} s, {prepared.processes} processes at once", flush=True)
        slowest = ", ".join(f"{' '.join(key)} {prepared.compile_s[key]:.0f} s" for key in prepared.slowest(SLOWEST))
        print(f"the slowest: {slowest}", flush=True)
        for backend in set(plan.backends) - {"eager"}:
            forget_choices(caches_in(plan.caches / backend), with_graphs=plan.prepare_tuned and is_tuned(backend))
        plan.deadline -= prepared.wall_s
        bandwidths, results = measure(plan)
    cold = [cold_seconds(r, prepared, plan) for r in results]
    return report(plan, bandwidths, [replace(r, compile_s=s) for r, s in zip(results, cold, strict=True)], prepared)


def cold_seconds(result: Result, prepared: Prepared, plan: argparse.Namespace) -> float | None:
    """Returns the seconds of compiling a cell with empty caches, None where they are not known."""
    if is_tuned(result.backend):
        return None if plan.prepare_tuned else result.compile_s
    return prepared.compile_s.get((*result.row, result.backend))


def measure(plan: argparse.Namespace) -> tuple[list[float], list[Result]]:
    """Returns copy bandwidths and the results of the plan's rows, from this process or one on each GPU."""
    gpus = visible_gpus()[: plan.gpus] if plan.gpus > 1 else []
    return measure_on_gpus(plan, gpus) if len(gpus) > 1 else measure_here(plan)


def measure_on_gpus(plan: argparse.Namespace, gpus: Sequence[str]) -> tuple[list[float], list[Result]]:
    """Returns what processes measure, one on each GPU with every n-th row."""
    outs = [plan.out.with_suffix(f".{number}.json") for number in range(len(gpus))]
    workers = []
    for number, (gpu, out) in enumerate(zip(gpus, outs, strict=True)):
        out.unlink(missing_ok=True)
        own = ["--prepare", "0", "--gpus", "1", "--part", f"{number}/{len(gpus)}", "--out", str(out)]
        own += ["--deadline", str(plan.deadline), "--caches", str(plan.caches)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        workers.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], *own], env=environment))
    for worker in workers:
        worker.wait()
    runs = read_runs(out for out in outs if out.exists())
    return bandwidths_of(runs), results_of(runs)


def measure_here(plan: argparse.Namespace) -> tuple[list[float], list[Result]]:
    """Returns what this process measures of its part of the rows, written down as it comes."""
    torch.set_default_device(plan.device)
    torch.backends.cudnn.allow_tf32 = plan.tf32
    device = measure_device(plan)
    bandwidths = [device.bandwidth]
    rates = "".join(f", products of {str(dtype)[6:]} {rate / 1e12:.0f} TFLOP/s" for dtype, rate in device.rates.items())
    print(f"copy bandwidth {device.bandwidth / 1e12:.3f} TB/s{rates}", flush=True)
    results: list[Result] = []
    started, left_out = time.monotonic(), []
    number, parts = map(int, plan.part.split("/"))
    for name, case in [(name, case) for name in plan.dtypes for case in plan.chosen][number::parts]:
        if time.monotonic() - started > plan.deadline:
            left_out.append(f"{case.name} {name}")
            continue
        try:
            found = measure_case(case, type_of(name), plan, device)
        except Exception as error:  # noqa: BLE001 - one case does not stop the rest
            found = [Result(case.name, name, "eager", failed=f"{type(error).__name__}: {error}")]
        results += found
        print_case(found, plan.backends)
        write_results(plan, bandwidths, results)
    bandwidths.append(copy_bandwidth(plan.device, COPY_BYTES // plan.scale**2))
    print(f"copy bandwidth at the end {bandwidths[-1] / 1e12:.3f} TB/s")
    for backend in plan.backends:
        waited = sum(r.ready_s or 0.0 for r in results if r.backend == backend)
        print(f"until {backend} was ready: {waited:.0f} s of {time.monotonic() - started:.0f}")
        measured = [(f"{r.case} {r.dtype}, {backend}", r.kernels) for r in results if r.backend == backend]
        for line in gain_lines(measured, FIRST_CONFIG):
            print(line)
    write_results(plan, bandwidths, results)
    if left_out:
        print(f"not measured, as the time was over: {', '.join(left_out)}")
    if plan.dump and "ferrite" in plan.backends:
        print(f"{dump_sources(plan.dump)} kernel sources in {plan.dump}")
    return bandwidths, results


def write_results(
    plan: argparse.Namespace, bandwidths: Sequence[float], results: Sequence[Result], **facts: Any
) -> None:
    """Writes down what was found so far, and on what."""
    plan.out.write_text(as_json(bandwidths, results, machine=machine_name(plan.device), **facts))


def report(
    plan: argparse.Namespace, bandwidths: Sequence[float], results: Sequence[Result], prepared: Prepared | None = None
) -> int:
    """Writes and prints what was found, all rows together; returns the exit status."""
    if plan.part != "0/1":
        return 0  # whoever asked for parts puts them together
    facts = {"prepared": prepared.facts()} if prepared else {}
    write_results(plan, bandwidths, results, **facts)
    if plan.table:
        plan.table.write_text(markdown_table(results, plan.backends))
    if plan.plot and not plot_kernels(results, plan.backends, bandwidths[0], machine_name(plan.device), plan.plot):
        print("no plot: matplotlib is not installed")
    if plan.set in FORMS:
        print(*random_figures(results, plan.backends), sep="\n")
        return 0
    status = print_verdict(results, plan.backends)
    if plan.chosen and not plan.cases:
        print("", *figures(results), sep="\n")
    for backend, seconds in (prepared.start_s if prepared else {}).items():
        print(f"starting {backend} takes {seconds:.1f} s of a process, which the seconds above do not hold")
    for key, reason in (prepared.failed if prepared else {}).items():
        print(f"not compiled before: {' '.join(key)}: {reason[:200]}")
    return status


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(run(read_plan()))
