"""Measures memory-bound kernels of each backend against the floor: bytes over the copy bandwidth of the same run.

    python benchmarks/kernels.py                                  # about four minutes on one H200
    python benchmarks/kernels.py --table kernels.md --plot kernels.png
    python benchmarks/kernels.py --cases softmax --dtypes bfloat16 --dump kernels/

Each function is checked against float64 first. Times are device times of launches that wait in the queue behind a
spinning kernel, so that no host time is in them, on data several times larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch import Tensor

from backends import compile_with
from kernel_cases import CASES, Case, flatten, outcome, unavoidable_bytes
from kernel_report import markdown_table, plot_roofline
from kernel_verdict import figures
from limit_cases import LIMIT_CASES
from profiling import profile_step
from tree import add_packages_to_path, results_folder

BAR = 0.80  # of the floor
COPY_BYTES = 1 << 30
LAUNCHES = 20
QUICK_CALLS = ("ferrite.", "aten.zeros.", "aten.empty_strided.")  # next to no device time
ERROR_BAR = 2.0  # times eager's own error


@dataclass(frozen=True, slots=True)
class Result:
    """What one backend did on one case: milliseconds, share of the floor, error over eager's, or what went wrong."""

    case: str
    dtype: str
    backend: str
    bar: bool
    bytes: int
    memory_bound: bool = True
    ms: float | None = None
    spread: float | None = None
    share: float | None = None
    error: float | None = None
    compile_s: float | None = None
    predicted_ms: float | None = None
    failed: str | None = None


SPIN_HERTZ = 1.8e9
"""Steps of the spinning kernel in a second: about the clock of the device."""
HOST_SECONDS = (0.4e-3, 1.6e-3, 6.4e-3)
"""What the host gets for a call to fill the queue; the next where it was not enough, as its time would be measured."""


def time_launches(call: Callable[[], Any], launches: int, device: str) -> float:
    """Returns milliseconds per call of `launches` queued calls."""
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(launches):
            call()
        return (time.perf_counter() - started) * 1e3 / launches
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for host_seconds in HOST_SECONDS:
        if host_seconds == HOST_SECONDS[-1]:
            launches = max(1, launches // 4)  # the queue itself may have been too short
        torch.cuda.synchronize()
        torch.cuda._sleep(int(launches * host_seconds * SPIN_HERTZ))
        begin.record()
        for _ in range(launches):
            call()
        end.record()
        in_time = not begin.query()
        torch.cuda.synchronize()
        if in_time:
            return begin.elapsed_time(end) / launches
    raise RuntimeError(f"a call takes the host over {HOST_SECONDS[-1] * 1e3:.1f} ms; its device time is not known")


def copy_bandwidth(device: str, count: int) -> float:
    """Returns bytes per second, read and written, of copying a buffer of 1 GiB."""
    source = torch.randn(count // 4)
    target = torch.empty_like(source)
    times = [time_launches(lambda: target.copy_(source), 8, device) for _ in range(5)]
    return 2 * count / (statistics.median(times) * 1e-3)


def error_of(outputs: Any, reference: Sequence[Tensor]) -> float:
    """Returns the l2 error of all outputs together, relative to the reference."""
    actual = flatten(outputs)
    if len(actual) != len(reference):
        return math.inf
    total = size = 0.0
    for mine, exact in zip(actual, reference, strict=True):
        if mine.shape != exact.shape:
            return math.inf
        wide = exact.double()  # a result that is rounded to eight bits is so in the reference, too
        total += (mine.double() - wide).square().sum().item() / max(wide.square().sum().item(), 1e-300)
        size += 1.0
    error = math.sqrt(total / max(size, 1.0))
    return error if math.isfinite(error) else math.inf


def judged_error(case: Case, inputs: tuple[Any, ...], outputs: Any, reference: Sequence[Tensor]) -> float:
    """Returns the error of a case's results: against the reference, or by its own judgement where there is none."""
    return error_of(outputs, reference) if case.error is None else case.error(outputs, *inputs)


def exact_outputs(case: Case, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Returns the case's results on float64 inputs; none for a case that judges its results itself."""
    if case.error is not None:
        return ()
    return flatten(outcome(case, case.function, tuple(map(widened, inputs))))


def widened(x: Any) -> Any:
    """Returns a floating-point tensor as float64, to be trained if it was."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def smallest_step(dtype: torch.dtype) -> float:
    """Returns an error that rounding alone explains."""
    return torch.finfo(dtype).eps * 0.5


def measure_case(case: Case, dtype: torch.dtype, plan: argparse.Namespace, bandwidth: float) -> list[Result]:
    """Checks, then times, one case on every backend, batches of the backends in turn."""
    torch.manual_seed(0)
    inputs = case.make(dtype, plan.scale)
    reference = exact_outputs(case, inputs)
    eager = outcome(case, case.function, inputs)
    own_error = judged_error(case, inputs, eager, reference)
    moved = unavoidable_bytes(case, inputs, eager)
    del eager
    calls: dict[str, Callable[[], Any]] = {}
    facts: dict[str, dict[str, Any]] = {}
    short = str(dtype).removeprefix("torch.")
    failures: list[Result] = []
    for backend in plan.backends:
        try:
            calls[backend], facts[backend] = prepare(case, backend, inputs, reference, own_error, dtype, plan)
        except Exception as error:  # noqa: BLE001 - reported in the backend's cell
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150] if str(error) else ''}"
            failures.append(Result(case.name, short, backend, case.bar, moved, case.memory_bound, failed=reason))
    del reference
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for call in calls.values():
        time_launches(call, 2, plan.device)
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
        share = moved / bandwidth / (ms * 1e-3)
        cell = Result(case.name, short, backend, case.bar, moved, case.memory_bound, ms, spread, share)
        results.append(replace(cell, **facts[backend]))
    return results + failures


def print_launches(title: str, call: Callable[[], Any], device: str) -> None:
    """Prints what a call launches, with the time of each kernel: with its operands in the cache, where they fit."""
    print(title)
    for kernel in profile_step(call, device).get("longest", ()):
        print(f"    {kernel['ms'] * 1e3:9.1f} us  {kernel['calls']:3} x {kernel['name'][:80]}")


def prepare(
    case: Case,
    backend: str,
    inputs: tuple[Any, ...],
    reference: Sequence[Tensor],
    own_error: float,
    dtype: torch.dtype,
    plan: argparse.Namespace,
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Compiles and checks; returns the call, its error over eager's, and the time that ferrite predicts.

    Raises:
        ArithmeticError: the results are further from float64 than twice eager's.
    """
    torch._dynamo.reset()
    before = compiled_count(backend)
    started = time.perf_counter()
    compiled = compile_with(backend, case.function, policy=plan.policy, fullgraph=True, dynamic=False)
    outputs = outcome(case, compiled, inputs)
    seconds = time.perf_counter() - started
    error = judged_error(case, inputs, outputs, reference)
    if not error <= max(ERROR_BAR * own_error, smallest_step(dtype)):
        raise ArithmeticError(f"wrong results: error {error:.2e}, eager's own {own_error:.2e}")
    facts = {"error": error / own_error if own_error else 0.0, "compile_s": seconds}
    facts["predicted_ms"] = predicted_ms(before, plan.device) if backend == "ferrite" else None
    return (lambda: outcome(case, compiled, inputs)), facts


def compiled_count(backend: str) -> int:
    if not backend.startswith("ferrite"):
        return 0
    import ferrite_torch

    return len(ferrite_torch.compiled_programs())


def predicted_ms(before: int, device: str) -> float | None:
    """Returns what the launches of the programs compiled since then should take; None if they call libraries."""
    import ferrite_torch
    from ferrite_runtime import KernelSpec
    from ferrite_runtime.devices import device_facts, known_devices
    from ferrite_runtime.prediction import predict

    facts = device_facts(torch.cuda.current_device()) if device == "cuda" else known_devices()["h200"]
    seconds = 0.0
    for program in ferrite_torch.compiled_programs()[before:]:
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
        "--set", choices=("bar", "limits", "all"), default="all", help="barred cases, the others, or both"
    )
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--backends", default="eager,inductor,ferrite", help="also inductor-max and ferrite-max")
    parser.add_argument("--reps", type=int, default=7, help=f"batches of {LAUNCHES} launches")
    parser.add_argument("--scale", type=int, default=1, help="divides sizes; for trying the script out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--policy", type=json.loads, default={}, help="scheduler thresholds for ferrite, as JSON")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which no new case begins")
    parser.add_argument("--launches", action="store_true", help="print what each backend launches, too")
    parser.add_argument("--dump", type=Path, help="folder for ferrite's kernel sources")
    parser.add_argument("--table", type=Path, help="file for a Markdown table")
    parser.add_argument("--plot", type=Path, help="file for a roofline plot (PNG)")
    parser.add_argument("--out", type=Path, default=results_folder() / "kernels.json")
    plan = parser.parse_args()
    plan.backends = [name for name in plan.backends.split(",") if name]
    wanted = [part for part in plan.cases.split(",") if part]
    cases = {"bar": CASES, "limits": LIMIT_CASES, "all": CASES + LIMIT_CASES}[plan.set]
    plan.chosen = [case for case in cases if not wanted or any(part in case.name for part in wanted)]
    return plan


def run(plan: argparse.Namespace) -> int:
    """Measures the chosen cases, writing results as they come; returns the exit status."""
    torch.set_default_device(plan.device)
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    bandwidths = [copy_bandwidth(plan.device, COPY_BYTES // plan.scale**2)]
    print(f"copy bandwidth {bandwidths[0] / 1e12:.3f} TB/s", flush=True)
    results: list[Result] = []
    started, left_out = time.monotonic(), []
    for dtype in (getattr(torch, name) for name in plan.dtypes.split(",")):
        for case in plan.chosen:
            if time.monotonic() - started > plan.deadline:
                left_out.append(f"{case.name} {dtype}")
                continue
            try:
                found = measure_case(case, dtype, plan, bandwidths[0])
            except Exception as error:  # noqa: BLE001 - one case does not stop the rest
                found = [Result(case.name, str(dtype), "eager", False, 0, failed=f"{type(error).__name__}: {error}")]
            results += found
            print_case(found, plan.backends)
            plan.out.write_text(as_json(bandwidths, results))
    bandwidths.append(copy_bandwidth(plan.device, COPY_BYTES // plan.scale**2))
    print(f"copy bandwidth at the end {bandwidths[-1] / 1e12:.3f} TB/s")
    plan.out.write_text(as_json(bandwidths, results))
    if left_out:
        print(f"not measured, as the time was over: {', '.join(left_out)}")
    if plan.dump and "ferrite" in plan.backends:
        print(f"{dump_sources(plan.dump)} kernel sources in {plan.dump}")
    if plan.table:
        plan.table.write_text(markdown_table(results, plan.backends))
    if plan.plot and not plot_roofline(results, plan.backends, bandwidths[0], plan.plot):
        print("no plot: matplotlib is not installed")
    status = print_verdict(results, plan.backends)
    if plan.chosen and not plan.cases:
        print("", *figures(results), sep="\n")
    return status


def as_json(bandwidths: Sequence[float], results: Sequence[Result]) -> str:
    return json.dumps({"bandwidth": list(bandwidths), "results": [asdict(r) for r in results]}, indent=1)


def print_case(results: Sequence[Result], backends: Sequence[str]) -> None:
    """Prints one line: per backend microseconds and per cent of the floor."""
    cells = {result.backend: result for result in results}
    head = f"{results[0].case:20s} {results[0].dtype:9s} {results[0].bytes / 2**20:6.0f} MiB"
    print(head + "".join(f" | {name} {cell_text(cells.get(name))}" for name in backends), flush=True)


def cell_text(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.failed or result.ms is None or result.share is None:
        return f"FAILED {result.failed}"
    expected = f" (predicted {result.predicted_ms * 1e3:.1f})" if result.predicted_ms else ""
    return f"{result.ms * 1e3:8.1f} us {result.share * 100:5.1f} %{expected}"


def print_verdict(results: Sequence[Result], backends: Sequence[str]) -> int:
    """Prints geomeans and the losing cases; returns 0 if ferrite meets the bar everywhere, or was not measured."""
    print(f"\ngeomean share of the floor ({sum(r.bar and r.backend == backends[0] for r in results)} barred cases):")
    for backend in backends:
        shares = [r.share for r in results if r.backend == backend and r.bar and r.share]
        mean = math.exp(statistics.fmean(map(math.log, shares))) if shares else math.nan
        print(f"  {backend:12s} {mean * 100:5.1f} %  (at or over {BAR * 100:.0f} %: {sum(s >= BAR for s in shares)})")
    print("geomean share of the floor, all cases:")
    for backend in backends:
        shares = [r.share for r in results if r.backend == backend and r.share]
        mean = math.exp(statistics.fmean(map(math.log, shares))) if shares else math.nan
        least = min(shares, default=math.nan)
        print(f"  {backend:12s} {mean * 100:5.1f} %  (least {least * 100:.1f} %, {len(shares)} cases)")
    own = [r for r in results if r.backend == "ferrite"]
    if not own:
        return 0
    opponent = {(r.case, r.dtype): r.share for r in results if r.backend == "inductor"}
    losing = [r for r in own if r.failed or (r.share or 0.0) < BAR]
    for result in sorted(losing, key=lambda r: r.share or 0.0):
        other = opponent.get((result.case, result.dtype))
        beside = f", inductor {other * 100:.1f} %" if other else ""
        barred = "" if result.bar else " (no bar)"
        print(f"  losing: {result.case} {result.dtype}: {cell_text(result).strip()}{beside}{barred}")
    passed = not any(result.bar for result in losing)
    print(f"{'PASS' if passed else 'FAIL'}  every barred kernel at or over {BAR * 100:.0f} % of the floor")
    return 0 if passed else 1


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(run(read_plan()))
