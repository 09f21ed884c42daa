"""Measures products of matrices in kernels of ours beside the library, with what reads their results.

    python benchmarks/kernels/products.py [--set models|decode|random] [--seed 0] [--count 40] [--dtypes bfloat16]
    python benchmarks/kernels/products.py --backends library,ferrite,ferrite-own,inductor-max --cases llama-3-8b

``library`` is the library's product alone, without what reads it; ``ferrite`` the same with what reads it in kernels of
their own; ``ferrite-own`` one kernel for all of it in the fastest of its configs, ``ferrite-own-first`` in the one that
it has without measuring, ``ferrite-own-whole`` without cutting its sums. Each result is checked against float64 first,
with eager's own error beside it. Prints microseconds, how many times as fast ``ferrite-own`` is as the library's
product alone and as the product with separate kernels, geometric means, the worst rows, and with ``--configs`` which
configs won.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.errors import error_of, smallest_step, widened
from benchmarks.kernels.first_configs import measured_kernels
from benchmarks.kernels.product_shapes import Shape, decode_shapes, model_shapes, random_shapes
from benchmarks.kernels.results import geomean
from benchmarks.tools.backends import compile_with
from benchmarks.tools.timing import machine_name, time_launches
from benchmarks.tools.tree import add_packages_to_path, caches_in, results_folder

LAUNCHES, WORST = 8, 12
ERROR_BAR = 2.0  # times eager's own error
LIBRARY, APART, OWN = "library", "ferrite", "ferrite-own"


def plain(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return F.linear(x, w)


def gelu(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias), approximate="tanh")


def residual(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return y + F.linear(x, w, bias)


def gate(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def both(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, w), F.linear(x, v)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"plain": plain, "gelu": gelu, "residual": residual, "gate": gate}


@dataclass(slots=True)
class Row:
    """One shape: microseconds and errors over eager's by backend, why backends failed, and configs of our kernels."""

    shape: str
    kind: str
    dtype: str
    flops: int
    us: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)

    def times(self, backend: str, other: str) -> float | None:
        """Returns how many times as fast one backend is as another, None where either has no time."""
        return self.us[other] / self.us[backend] if backend in self.us and other in self.us else None


def inputs_of(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Returns rows, weights, a bias, a residual and other weights; results are about as large as operands."""
    scale = shape.depth**-0.5
    x, y = torch.randn(shape.rows, shape.depth), torch.randn(shape.rows, shape.columns)
    w, v = (torch.randn(shape.columns, shape.depth) * scale for _ in range(2))
    return tuple(each.to(dtype) for each in (x, w, torch.randn(shape.columns), y, v))


def measure(shape: Shape, dtype: torch.dtype, plan: argparse.Namespace) -> Row:
    """Checks, then times, one shape on every backend, batches of the backends in turn."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    function, inputs = FUNCTIONS[shape.kind], inputs_of(shape, dtype)
    row = Row(str(shape), shape.kind, str(dtype).removeprefix("torch."), shape.flops)
    reference = (function(*map(widened, inputs)),)
    own_error = error_of(function(*inputs), reference)
    calls: dict[str, Callable[[], Any]] = {}
    for backend in plan.backends:
        if backend == LIBRARY:
            library = both if shape.kind == "gate" else plain
            calls[backend] = lambda: library(*inputs)  # noqa: B023 - called before the next shape
            continue
        try:
            calls[backend] = checked(row, function, backend, inputs, reference, own_error, plan)
        except Exception as error:  # noqa: BLE001 - reported in the backend's cell
            row.failed[backend] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    del reference
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for _ in range(plan.reps):
        for backend, call in calls.items():
            times[backend].append(time_launches(call, LAUNCHES, plan.device))
    row.us = {backend: 1e3 * statistics.median(measured) for backend, measured in times.items()}
    return row


def checked(
    row: Row,
    function: Callable[..., Tensor],
    backend: str,
    inputs: tuple[Tensor, ...],
    reference: Sequence[Tensor],
    own_error: float,
    plan: argparse.Namespace,
) -> Callable[[], Any]:
    """Returns a call of a function compiled by a backend, after checking its result.

    Raises:
        ArithmeticError: the result is further from float64 than twice eager's.
    """
    os.environ.update(caches_in(plan.caches / backend))
    started = time.perf_counter()
    compiled = compile_with(backend, function, fullgraph=True, dynamic=False)
    outputs = compiled(*inputs)
    row.seconds[backend] = time.perf_counter() - started
    error = error_of(outputs, reference)
    if not error <= max(ERROR_BAR * own_error, smallest_step(inputs[0].dtype)):
        raise ArithmeticError(f"wrong results: error {error:.2e}, eager's own {own_error:.2e}")
    row.errors[backend] = error / own_error if own_error else 0.0
    if backend == OWN:
        row.kernels = kernels_of_last(plan.device)
    return lambda: compiled(*inputs)


def kernels_of_last(device: str) -> list[dict[str, Any]]:
    """Returns the kernels of what was compiled last, with the times of their configs."""
    import ferrite_torch
    from ferrite_runtime.devices.descriptors import device_facts, known_devices

    facts = device_facts(torch.cuda.current_device()) if device == "cuda" else known_devices()["h200"]
    return measured_kernels(ferrite_torch.compiled_programs()[-1:], facts)


def lines(rows: Sequence[Row], plan: argparse.Namespace) -> Iterator[str]:
    """Yields geometric means, the worst rows, and what failed."""
    yield from means(rows, plan.backends)
    for other in (LIBRARY, APART):
        ratios = sorted((ratio, row.shape) for row in rows if (ratio := row.times(OWN, other)) is not None)
        yield f"worst of {OWN} beside {other}: " + ", ".join(f"{ratio:.2f} {name}" for ratio, name in ratios[:WORST])
    for row in rows:
        yield from (f"FAILED {row.shape} {row.dtype} {name}: {reason}" for name, reason in row.failed.items())
    if plan.configs:
        yield from config_lines(rows)


def head(backends: Sequence[str]) -> str:
    names = " ".join(f"{name.removeprefix('ferrite-'):>9}" for name in backends)
    return f"{'microseconds':46} {'dtype':8} {names}  TF/s  /lib /apart"


def line(row: Row, backends: Sequence[str]) -> str:
    cells = " ".join(f"{row.us[name]:9.1f}" if name in row.us else f"{'-':>9}" for name in backends)
    rate = f"{row.flops / row.us[OWN] * 1e-6:5.0f}" if OWN in row.us else "    -"
    ratios = [row.times(OWN, other) for other in (LIBRARY, APART)]
    return f"{row.shape:46} {row.dtype:8} {cells} {rate} " + " ".join(f"{r:5.2f}" if r else "    -" for r in ratios)


def means(rows: Sequence[Row], backends: Sequence[str]) -> Iterator[str]:
    """Yields geometric means of how many times as fast our kernels are, over all rows and by what reads the product."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for own in (name for name in backends if name.startswith(OWN)):
        for other in (name for name in backends if name != own):
            groups = {"all": rows, **{kind: [row for row in rows if row.kind == kind] for kind in kinds}}
            found = {
                name: [ratio for row in group if (ratio := row.times(own, other))] for name, group in groups.items()
            }
            texts = (f"{name} {geomean(ratios):.3f} ({len(ratios)})" for name, ratios in found.items() if ratios)
            yield f"{own} / {other}: " + ", ".join(texts)


def config_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the fastest configs of each row's kernels beside the first one, in microseconds."""
    for row in rows:
        for kernel in row.kernels:
            ordered = sorted(kernel["ms"].items(), key=lambda pair: pair[1])
            first = kernel["ms"].get(kernel["first"], math.nan)
            best = "; ".join(f"{config} {1e3 * ms:.1f}" for config, ms in ordered[:3])
            yield f"{row.shape}: first {kernel['first']} {1e3 * first:.1f}; best {best}"


def plan_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("models", "decode", "random"), default="models", dest="shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40, help="shapes drawn, or most of the models'")
    parser.add_argument("--cases", default="", help="only shapes whose line holds one of these words, comma-separated")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--backends", default="library,ferrite,ferrite-own,ferrite-own-first")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--scale", type=int, default=1, help="divides all extents, to try it without a GPU")
    parser.add_argument("--deadline", type=float, default=540.0, help="seconds after which no new shape begins")
    parser.add_argument("--configs", action="store_true", help="which configs of our kernels won")
    parser.add_argument("--caches", type=Path, default=results_folder() / "products-caches")
    parser.add_argument("--out", type=Path, default=results_folder() / "products.json")
    plan = parser.parse_args(arguments)
    plan.backends, plan.dtypes = plan.backends.split(","), plan.dtypes.split(",")
    plan.device = "cuda" if torch.cuda.is_available() else "cpu"
    return plan


def shapes_of(plan: argparse.Namespace) -> list[Shape]:
    """Returns the shapes that a plan asks for."""
    sets = {"models": model_shapes, "decode": decode_shapes, "random": lambda: random_shapes(plan.seed, plan.count)}
    found = list(sets[plan.shapes]())
    words = [word for word in plan.cases.split(",") if word]
    chosen = [shape for shape in found if not words or any(word in str(shape) for word in words)]
    small = [
        Shape(s.name, *(max(32, size // plan.scale) for size in (s.rows, s.depth, s.columns)), s.kind) for s in chosen
    ]
    return small if plan.scale > 1 else chosen


def main() -> int:
    plan = plan_of()
    add_packages_to_path()
    torch.set_default_device(plan.device)
    started, rows = time.monotonic(), []
    print(head(plan.backends))
    for shape in shapes_of(plan):
        for name in plan.dtypes:
            if time.monotonic() - started > plan.deadline:
                print(f"not measured for want of time: {shape} {name}")
                continue
            rows.append(measure(shape, getattr(torch, name), plan))
            print(line(rows[-1], plan.backends), flush=True)
    print(f"\n{machine_name(plan.device)}")
    print("\n".join(lines(rows, plan)))
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
