"""Measures tuning: what it gains over untuned kernels, how long it takes beside Inductor's, whether it repeats itself.

    python benchmarks/kernels/tuning.py                    # at most eight minutes on one H200
    python benchmarks/kernels/tuning.py --set bar --deadline 1500
    python benchmarks/kernels/tuning.py --device cpu --scale 256 --cases "softmax 1k" --phases tuned,second

Each phase is a process of its own:

    tuned       tunes every function, with an empty store
    second      does it again with the store of the first: nothing may be measured; times tuned and untuned in turns
    inductor    Inductor's max-autotune-no-cudagraphs on the same functions, with empty caches
    again       tunes once more with an empty store: do the choices agree with those of the first?
    pinned      an empty store, and a file of pins made of the first: the choices have to be the same
    untuned     compiles the functions with nothing measured: the part of the first call that is not tuning

A function's seconds are those from calling it to its first results being there, after a small function was compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.kernels.case_sets import CASE_SETS
from benchmarks.kernels.cases import CASES, Case, flatten, outcome
from benchmarks.kernels.errors import error_of
from benchmarks.tools.backends import compile_with
from benchmarks.tools.timing import time_launches
from benchmarks.tools.tree import add_packages_to_path, results_folder

SHORT = (
    "gelu+bias",
    "transpose+add",
    "layer norm",
    "rms norm+residual",
    "softmax 1k",
    "softmax 4k",
    "row sums",
    "column sums",
    "var_mean middle",
    "batch norm training",
    "layer norm backward",
    "cross entropy",
)
PHASES = ("tuned", "second", "inductor", "again", "pinned", "untuned")
BACKENDS = {"inductor": "inductor-max", "untuned": "ferrite-none"}
LAUNCHES, BATCHES = 20, 7
# A median of device times of one kernel moves by about this much between two measurements of the same config.
NOISE = 0.03
TIME_PART, AGREEMENT = 0.25, 0.95
# Far more than rounding makes, far less than a wrong kernel does.
ERROR_BAR = 0.05

Facts = dict[str, Any]


# --- one phase ------------------------------------------------------------------------------------------------------


class Watch:
    """Counts samples, and notes the configs that kernels are launched with, by what the choice depends on."""

    def __init__(self) -> None:
        self.samples = 0
        self.choices: dict[str, list[str]] = {}

    def start(self) -> None:
        """Begins to watch the runtime of this process."""
        from ferrite_runtime.engines.cuda_kernels import DeviceKernel
        from ferrite_runtime.tuning.timing import EventMeter

        launch_first, sample = DeviceKernel.launch_first, EventMeter.sample

        def launch(kernel: Any, *arguments: Any) -> None:
            launch_first(kernel, *arguments)
            if kernel.config is not None:
                self.choices[kernel.situation().key] = [kernel.spec.name, str(kernel.config)]

        def count(meter: Any, run: Any, number: int, before: Any = None) -> list[float]:
            self.samples += number
            return sample(meter, run, number, before)

        DeviceKernel.launch_first, EventMeter.sample = launch, count


def run_phase(plan: argparse.Namespace) -> Facts:
    """Returns what one phase measured, a row per function, until its time is up."""
    torch.set_default_device(plan.device)
    backend = BACKENDS.get(plan.child, "ferrite-max")
    watch = Watch()
    if backend.startswith("ferrite"):
        watch.start()
    warm_up(backend)
    rows: dict[str, Facts] = {}
    for dtype in (getattr(torch, name) for name in plan.dtypes.split(",")):
        for case in plan.chosen:
            if time.time() > plan.until:
                break
            name = f"{case.name} {str(dtype).removeprefix('torch.')}"
            try:
                rows[name] = run_case(case, dtype, backend, plan)
            except Exception as error:  # noqa: BLE001 - one function does not stop the rest
                lines = str(error).strip().splitlines()
                rows[name] = {"failed": f"{type(error).__name__}: {lines[0][:150] if lines else ''}"}
    return {"phase": plan.child, "rows": rows, "samples": watch.samples, "choices": watch.choices}


def warm_up(backend: str) -> None:
    """Compiles something small, so that imports, compile workers and the CUDA context are there."""
    compile_with(backend, lambda x: x + 1.0)(torch.ones(64))


def run_case(case: Case, dtype: torch.dtype, backend: str, plan: argparse.Namespace) -> Facts:
    """Returns the seconds to the first results of one function, and milliseconds per call of the compiled one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = case.make(dtype, plan.scale)
    expected = flatten(outcome(case, case.function, inputs))
    wait(plan.device)
    started = time.perf_counter()
    compiled = compile_with(backend, case.function, fullgraph=True, dynamic=False)
    outputs = outcome(case, compiled, inputs)
    wait(plan.device)
    seconds = time.perf_counter() - started
    error = error_of(outputs, expected)
    if not error <= ERROR_BAR:
        raise ArithmeticError(f"wrong results: {error:.2e} from eager's")
    del outputs, expected
    calls: dict[str, Callable[[], Any]] = {"ms": lambda: outcome(case, compiled, inputs)}
    if plan.child == "second":
        plain = compile_with("ferrite-none", case.function, fullgraph=True, dynamic=False)
        outcome(case, plain, inputs)
        calls["untuned_ms"] = lambda: outcome(case, plain, inputs)
    return {"seconds": seconds, **time_in_turns(calls, plan.device)}


def time_in_turns(calls: Mapping[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Returns the median milliseconds of each call, and the larger of their spreads."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        time_launches(call, 2, device)
    for _ in range(BATCHES):
        for name, call in calls.items():
            times[name].append(time_launches(call, LAUNCHES, device))
    medians = {name: statistics.median(found) for name, found in times.items()}
    spreads = [statistics.pstdev(found) / medians[name] for name, found in times.items()]
    return {**medians, "spread": max(spreads)}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# --- all phases -----------------------------------------------------------------------------------------------------


def run_all(plan: argparse.Namespace) -> int:
    """Runs the phases one after the other, prints what they gave; returns the exit status."""
    ends = time.time() + plan.deadline
    found: dict[str, Facts] = {}
    with tempfile.TemporaryDirectory(prefix="ferrite-tuning-") as folder:
        for position, phase in enumerate(plan.phases):
            left = ends - time.time()
            if left < 20:
                print(f"{phase}: no time left", flush=True)
                continue
            # Inductor takes longest; each of the others gets its share of what is left.
            share = left * (0.6 if phase == "inductor" else max(0.3, 1.0 / (len(plan.phases) - position)))
            started = time.time()
            facts = start_phase(plan, phase, Path(folder), started + share, left)
            if facts is not None:
                found[phase] = facts
                print(f"{phase}: {len(facts['rows'])} functions in {time.time() - started:.0f} s", flush=True)
            if phase == "tuned" and facts is not None:
                write_pins(Path(folder))
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(found, indent=1))
    return print_verdict(found)


def start_phase(plan: argparse.Namespace, phase: str, folder: Path, until: float, left: float) -> Facts | None:
    """Returns what a phase measured in a process of its own, with caches of its own; None if it came to nothing."""
    own = folder / ("tuned" if phase == "second" else phase)
    out = folder / f"{phase}.json"
    environment = {
        **os.environ,
        "FERRITE_CACHE_DIR": str(own / "ferrite"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        "TRITON_CACHE_DIR": str(own / "triton"),
    }
    if phase == "pinned":
        environment["FERRITE_PINS"] = str(folder / "pins.json")
    command = [sys.executable, __file__, "--child", phase, "--until", str(until), "--out", str(out)]
    command += ["--set", plan.set, "--cases", plan.cases, "--dtypes", plan.dtypes]
    command += ["--scale", str(plan.scale), "--device", plan.device]
    try:
        done = subprocess.run(
            command, env=environment, timeout=max(30.0, left), check=False, stderr=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        print(f"{phase}: not done in time", flush=True)
        return None
    if done.returncode != 0 or not out.exists():
        print(f"{phase}: FAILED\n{done.stderr[-2000:]}", flush=True)
        return None
    facts: Facts = json.loads(out.read_text())
    return facts


def write_pins(folder: Path) -> None:
    """Writes the choices in the first phase's store as pins."""
    from ferrite_runtime import Options, choose_store
    from ferrite_runtime.store.measurement_entries import scan_measurements
    from ferrite_runtime.tuning.pins import pin_choices
    from ferrite_runtime.tuning.pins import write_pins as format_pins

    os.environ["FERRITE_CACHE_DIR"] = str(folder / "tuned" / "ferrite")
    pins = pin_choices(scan_measurements(choose_store(Options())))
    (folder / "pins.json").write_text(format_pins(pins))


# --- what it comes to -----------------------------------------------------------------------------------------------


def print_verdict(found: Mapping[str, Facts]) -> int:
    """Prints a row for each function and a line for each claim; returns 0 if all that were measured hold."""
    print_rows(found)
    passed = [check(*claim) for claim in claims(found)]
    return 0 if all(passed) else 1


def print_rows(found: Mapping[str, Facts]) -> None:
    names = list(dict.fromkeys(name for facts in found.values() for name in facts["rows"]))
    heads = (("untuned us", 10), ("tuned us", 9), ("faster", 7), ("tuning s", 9), ("inductor us, s", 17))
    print(f"\n{'function':32s} " + " ".join(f"{text:>{width}s}" for text, width in heads))
    for name in names:
        second, first, other = (value_of(found, phase, name) for phase in ("second", "tuned", "inductor"))
        failures = {phase: value_of(found, phase, name).get("failed") for phase in found}
        problems = [f"{phase}: {reason}" for phase, reason in failures.items() if reason]
        cells = (
            f"{micro(second.get('untuned_ms')):>10s} {micro(second.get('ms')):>9s} {ratio_text(second):>7s} "
            f"{number(first.get('seconds')):>9s} {micro(other.get('ms')):>9s} {number(other.get('seconds')):>7s}"
        )
        print(f"{name:32s} {cells}" + "".join(f"\n    FAILED {problem}" for problem in problems))


def value_of(found: Mapping[str, Facts], phase: str, name: str) -> Facts:
    return dict(found.get(phase, {"rows": {}})["rows"].get(name, {}))


def micro(ms: float | None) -> str:
    return "-" if ms is None else f"{ms * 1e3:.1f}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def ratio_text(row: Mapping[str, Any]) -> str:
    return f"{row['untuned_ms'] / row['ms']:.2f}x" if "untuned_ms" in row else "-"


Claim = tuple[str, "bool | None", str]


def claims(found: Mapping[str, Facts]) -> Iterable[Claim]:
    """Yields what is claimed, whether it holds (None: not measured), and the figures."""
    second, tuned, again, pinned = (found.get(phase) for phase in ("second", "tuned", "again", "pinned"))
    rows = [(name, row) for name, row in (second or {"rows": {}})["rows"].items() if "untuned_ms" in row]
    least = min(((row["untuned_ms"] / row["ms"], name) for name, row in rows), default=None)
    losing = [name for name, row in rows if row["untuned_ms"] / row["ms"] < 1 - max(NOISE, 2 * row["spread"])]
    mean = math.exp(statistics.fmean(math.log(row["untuned_ms"] / row["ms"]) for _, row in rows)) if rows else math.nan
    figures = f"geomean {mean:.3f}x, least {least[0]:.3f}x ({least[1]})" if least else ""
    yield f"tuned at least as fast as untuned everywhere, but for {NOISE:.0%}", not losing if rows else None, figures
    yield time_claim(found)
    none = None if second is None or tuned is None or tuned["samples"] == 0 else second["samples"] == 0
    counts = "" if second is None or tuned is None else f"{tuned['samples']} samples, then {second['samples']}"
    yield "the second process measures nothing", none, counts
    yield agreement(f"two tuning runs agree in {AGREEMENT:.0%} of choices", tuned, again, AGREEMENT)
    yield agreement("with pins all choices agree", tuned, pinned, 1.0)
    without = None if pinned is None or not pinned["choices"] else pinned["samples"] == 0
    yield "with pins nothing is measured", without, "" if pinned is None else f"{pinned['samples']} samples"


def time_claim(found: Mapping[str, Facts]) -> Claim:
    """Returns the claim about the time that tuning takes, on the functions that both backends compiled."""
    mine, other, plain = (
        {name: row["seconds"] for name, row in found.get(phase, {"rows": {}})["rows"].items() if "seconds" in row}
        for phase in ("tuned", "inductor", "untuned")
    )
    common = [name for name in mine if name in other]
    text = f"tuning takes at most {TIME_PART:.0%} of Inductor max-autotune's time"
    if not common:
        return text, None, ""
    total, theirs = sum(mine[name] for name in common), sum(other[name] for name in common)
    both = [name for name in common if name in plain]
    base = f"; untuned {sum(plain[name] for name in both):.1f} s on {len(both)}" if both else ""
    figures = f"{total:.1f} s against {theirs:.1f} s on {len(common)} functions, {total / theirs:.2f}{base}"
    return text, total <= TIME_PART * theirs, figures


def agreement(text: str, first: Facts | None, other: Facts | None, needed: float) -> Claim:
    """Returns a claim about how many choices two phases share."""
    if first is None or other is None:
        return text, None, ""
    keys = [key for key in first["choices"] if key in other["choices"]]
    same = sum(first["choices"][key] == other["choices"][key] for key in keys)
    differing = [
        f"{first['choices'][key][0]}: {first['choices'][key][1]} / {other['choices'][key][1]}"
        for key in keys
        if first["choices"][key] != other["choices"][key]
    ]
    figures = f"{same} of {len(keys)}" + "".join(f"\n        {line}" for line in differing)
    return text, same >= needed * len(keys) if keys else None, figures


def check(text: str, holds: bool | None, figures: str) -> bool:  # noqa: FBT001 - three-valued
    """Prints a claim; returns False if it does not hold."""
    word = {None: "-   ", True: "PASS", False: "FAIL"}[holds]
    print(f"{word}  {text}{f': {figures}' if figures else ' (not measured)'}")
    return holds is not False


def read_plan(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("short", "bar", "limits", "all"), default="short", help="which functions")
    parser.add_argument("--cases", default="", help="comma separated parts of names, of all functions")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--deadline", type=float, default=460.0, help="seconds for all of it")
    parser.add_argument("--scale", type=int, default=1, help="divides sizes; for trying the script out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=results_folder() / "tuning.json")
    parser.add_argument("--child", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)
    plan = parser.parse_args(arguments)
    plan.phases = [name for name in plan.phases.split(",") if name]
    wanted = [part for part in plan.cases.split(",") if part]
    chosen = [case for case in CASE_SETS["all"] if any(part in case.name for part in wanted)]
    short = [case for case in CASES if case.name in SHORT]
    plan.chosen = chosen or (short if plan.set == "short" else list(CASE_SETS[plan.set]))
    return plan


def main() -> int:
    add_packages_to_path()
    plan = read_plan()
    if plan.child is None:
        return run_all(plan)
    plan.out.write_text(json.dumps(run_phase(plan)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
