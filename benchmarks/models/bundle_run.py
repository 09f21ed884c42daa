"""Runs bundles that were exported elsewhere, with the runtime alone: how soon, how right, and with which processes.

python benchmarks/models/bundle_run.py gpt2.ferrite resnet50.ferrite

Each file's name is the name of a function of `bundle_models.py`, which gives the weights and the inputs. Every process
that is started meanwhile is reported; with prebuilt binaries there must be none. The error is measured against the
model in float32 and printed beside eager's own.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path, results_folder

PROCESSES: list[str] = []


def watch(event: str, arguments: Any) -> None:
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"):
        PROCESSES.append(f"{event} {arguments[:2]}")


def measure(path: Path) -> dict[str, Any]:
    """Returns seconds to load and to the first result, microseconds per call, errors, and started processes."""
    import bundle_models
    import torch

    from ferrite_runtime import Options, load

    model, inputs = getattr(bundle_models, path.stem)()
    model = model.cuda()
    inputs = tuple(value.cuda() for value in inputs)
    torch.cuda.synchronize()
    known = len(PROCESSES)
    started = time.perf_counter()
    loaded = load(path, weights=dict(model.state_dict()), options=Options(tune="none", use_cache=False))
    load_seconds = time.perf_counter() - started
    with torch.no_grad():
        started = time.perf_counter()
        found = loaded(*inputs)
        torch.cuda.synchronize()
        first_seconds = time.perf_counter() - started
        processes = PROCESSES[known:]
        has_triton = "triton" in sys.modules
        eager = model(*inputs)
        exact_model = copy.deepcopy(model).float()
        exact = exact_model(*(value.float() if value.is_floating_point() else value for value in inputs))
        errors = {name: ((value.float() - exact).abs().max() / exact.abs().max()).item()
                  for name, value in (("ferrite", found), ("eager", eager))}  # fmt: skip
        times = {name: microseconds(call, inputs) for name, call in (("ferrite", loaded), ("eager", model))}
    return {
        "load_s": load_seconds,
        "first_call_s": first_seconds,
        "us": times,
        "relative_error": errors,
        "processes": processes,
        "triton_imported": has_triton,
        "report": loaded.report(),
    }


def microseconds(call: Any, inputs: tuple[Any, ...]) -> float:
    """Returns the median time of a call in microseconds, device included."""
    import torch

    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call(*inputs)
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - started))
    return statistics.median(times[5:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=results_folder() / "bundle_run.json")
    plan = parser.parse_args()
    sys.addaudithook(watch)
    results = {path.stem: measure(path) for path in plan.bundles}
    print(json.dumps(results, indent=1))
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1))
    bad = [name for name, row in results.items() if row["processes"] or row["first_call_s"] > 1.0
           or row["relative_error"]["ferrite"] > 2 * row["relative_error"]["eager"] + 1e-3]  # fmt: skip
    print("all as promised" if not bad else f"NOT as promised: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
