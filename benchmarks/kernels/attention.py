"""Measures `flex_attention` in kernels of ours beside Inductor's, and the library's attention where that has a form.

    python benchmarks/kernels/attention.py [--variants causal,alibi] [--lengths 1024,4096] [--timed 4096] [--head 128]
    python benchmarks/kernels/attention.py --backends ferrite-max,inductor-max --forward
    python benchmarks/kernels/attention.py --queries 1 --heads 32 --batch 1 --lengths 8192,65536 --timed 8192,65536

With ``--queries`` these are the last ones of a sequence of keys, as in decoding, and there are no gradients.
Several processes compile the variants (`attention_variants.py`), and measure one after the other: calls are queued
while the device waits, so that the host's time does not count. What another process checks may fall into a sample, of
which the median counts. Results and gradients at each length are checked against torch's unfused attention in float32,
mostly for the first of the batch, with the error of that in the type that is measured beside it.
Prints milliseconds of the forward and of the backward alone, operations per second of blocks that are not masked
altogether, and how many times as fast we are as Inductor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.kernels.attention_variants import NAMES, Sizes, Variant, variants
from benchmarks.kernels.results import geomean
from benchmarks.tools.backends import compile_with
from benchmarks.tools.timing import machine_name, time_launches
from benchmarks.tools.tree import add_packages_to_path, caches_in, results_folder

LAUNCHES = 8
ERROR_BAR, FLOOR = 2.0, 4e-3  # times the unfused error; of the largest element, in bf16 a rounding
LIBRARY, OTHER = "library", "inductor"
PATIENCE = 5.0
"""Seconds beyond the deadline for what is timed then."""


@dataclass(slots=True)
class Row:
    """One variant at one length: milliseconds by backend and direction, errors over unfused ones, what failed."""

    variant: str
    length: int
    flops: float = 0.0
    ms: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def times(self, backend: str, other: str, way: str) -> float | None:
        """Returns how many times as fast one backend is as another, None where either has no time."""
        mine, others = (self.ms.get(name, {}).get(way) for name in (backend, other))
        return others / mine if mine and others else None


def inputs_of(plan: argparse.Namespace, length: int, variant: Variant) -> tuple[list[Tensor], Tensor]:
    """Returns queries, keys, values and what is learned, and a gradient of the result."""
    generator = torch.Generator(plan.device).manual_seed(0)
    dtype = getattr(torch, plan.dtype)
    queries, key_heads = plan.queries or length, plan.heads // variant.group
    head = variant.head or plan.head
    width = variant.width or head

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=plan.device, dtype=dtype)

    shapes = [(plan.heads, queries, head), (key_heads, length, head), (key_heads, length, width)]
    tensors = [*(drawn(plan.batch, *shape) for shape in shapes), *(drawn(*shape) for shape in variant.learned)]
    return [tensor.requires_grad_(not plan.forward) for tensor in tensors], drawn(
        plan.batch, plan.heads, queries, width
    )


def results_of(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor, *, forward: bool
) -> list[Tensor]:
    """Returns a result, and the gradients of what it is made of."""
    out = call(*inputs)
    return [out.detach()] if forward else [out.detach(), *torch.autograd.grad(out, inputs, gradient)]


def errors_of(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    """Returns the largest errors in as much of a batch as is expected, over the largest elements."""
    pairs = zip(found, expected, strict=True)
    return [((a[: len(b)].float() - b).abs().max() / b.abs().max()).item() for a, b in pairs]


def reference(variant: Variant, inputs: Sequence[Tensor], gradient: Tensor, *, forward: bool) -> tuple[Any, Any]:
    """Returns what unfused attention gives in float32, and its errors in the inputs' type.

    That is of the first of the batch, unless the others are masked otherwise, or add to a gradient.
    """
    count = len(gradient) if variant.is_of_batch else 1
    parts = [*(tensor[:count] for tensor in inputs[:3]), *inputs[3:]]
    first = [tensor.detach().requires_grad_(not forward) for tensor in parts]
    wide = [tensor.float().detach().requires_grad_(not forward) for tensor in first]
    expected = results_of(variant.call, wide, gradient[:count].float(), forward=forward)
    own = errors_of(results_of(variant.call, first, gradient[:count], forward=forward), expected)
    return expected, own


def measure_cells(cells: Any, plan: argparse.Namespace, turn: Any, found: Any) -> None:
    """Compiles, checks and times what a queue of variants and lengths has until None; puts rows, and None, into one."""
    torch._dynamo.config.cache_size_limit = 1024
    torch._functorch.config.donated_buffer = False  # a backward is timed many times
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there are other processes
    while (cell := cells.get()) is not None and seconds_since(plan.began) < plan.deadline:
        try:
            row, calls, _ = _prepared(*cell, plan, turn)
            with turn:
                for key, call in calls.items():
                    backend, _, way = key.rpartition(" ")
                    times = [time_launches(call, LAUNCHES, plan.device) for _ in range(plan.reps)]
                    row.ms.setdefault(backend, {})[way] = statistics.median(times)
        except Exception:  # noqa: BLE001 - reported in the table
            row = Row(*cell, failed={"all": traceback.format_exc()[-600:]})
        found.put(asdict(row))
        del row
        calls = {}
        torch._dynamo.reset()
        _free(plan.device)
    found.put(None)


def _prepared(name: str, length: int, plan: argparse.Namespace, turn: Any) -> tuple[Row, dict[str, Any], list[Any]]:
    """Returns a row without times, what is to be timed, and what that needs alive."""
    queries = plan.queries or length
    variant = variants(Sizes(queries, length, plan.heads, plan.batch, plan.device))[name]()
    inputs, gradient = inputs_of(plan, length, variant)
    widths = inputs[0].shape[3] + inputs[2].shape[3]
    row = Row(name, length, 2.0 * plan.batch * plan.heads * queries * length * widths * variant.density)
    with turn:
        expected, own = reference(variant, inputs, gradient, forward=plan.forward)
        _free(plan.device)
    calls: dict[str, Callable[[], Any]] = {}
    functions: dict[str, Callable[..., Tensor]] = {}
    for backend in plan.backends:
        if backend.startswith(OTHER) and length not in plan.timed:
            continue
        try:
            os.environ.update(caches_in(plan.caches / backend))
            started = time.perf_counter()
            compiled = compile_with(backend, variant.call, fullgraph=True, dynamic=False)
            results = results_of(compiled, inputs, gradient, forward=plan.forward)
            row.seconds[backend] = time.perf_counter() - started
            errors = errors_of(results, expected)
            row.errors[backend] = [
                mine / max(theirs, FLOOR / ERROR_BAR) for mine, theirs in zip(errors, own, strict=True)
            ]
            if not all(error <= ERROR_BAR for error in row.errors[backend]):
                raise ArithmeticError(f"wrong results: errors {errors}, unfused ones {own}")  # noqa: TRY301 - in a cell
            functions[backend] = compiled
        except Exception as error:  # noqa: BLE001 - reported in the backend's cell
            row.failed[backend] = f"{type(error).__name__}: {str(error).strip()[:300]}"
    if variant.library is not None:
        functions[LIBRARY] = variant.library
    for backend, function in functions.items() if length in plan.timed else ():
        calls |= _calls(backend, function, inputs, gradient, forward=plan.forward)
    return row, calls, [inputs, gradient]


def _calls(
    backend: str, function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor, *, forward: bool
) -> dict[str, Callable[[], Any]]:
    plain = [tensor.detach() for tensor in inputs]
    found: dict[str, Callable[[], Any]] = {f"{backend} forward": lambda: function(*plain)}
    if not forward:
        out = function(*inputs)
        found[f"{backend} backward"] = lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)
    for call in found.values():
        call()  # what is compiled is compiled now
    return found


def _free(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lines(rows: Sequence[Row], plan: argparse.Namespace) -> Iterator[str]:
    """Yields a line for each variant and length that was timed, geometric means, and what failed."""
    names = [*plan.backends, LIBRARY]
    ways = ["forward"] if plan.forward else ["forward", "backward"]
    yield f"{'milliseconds':20} {'length':>6} " + " ".join(
        f"{name[:9] + ' ' + way[:3]:>13}" for way in ways for name in names
    )
    for row in rows:
        if row.ms:
            cells = (row.ms.get(name, {}).get(way) for way in ways for name in names)
            rate = row.ms.get(plan.backends[0], {}).get("forward")
            text = " ".join(f"{cell:13.3f}" if cell else f"{'-':>13}" for cell in cells)
            yield f"{row.variant:20} {row.length:6} {text}" + (f" {row.flops / rate * 1e-9:5.0f} TF/s" if rate else "")
    mine = plan.backends[0]
    for other in [name for name in names[1:] if any(name in row.ms for row in rows)]:
        for way in ways:
            ratios = [ratio for row in rows if (ratio := row.times(mine, other, way))]
            if ratios:
                yield f"{mine} / {other} {way}: {geomean(ratios):.3f} (worst {min(ratios):.3f}, {len(ratios)} rows)"
    checked = [max(errors) for row in rows for name, errors in row.errors.items() if name == mine]
    yield f"{len(checked)} rows of {mine} checked, largest error {max(checked, default=0.0):.2f} of the unfused one"
    for row in rows:
        yield from (f"FAILED {row.variant} {row.length} {name}: {why}" for name, why in row.failed.items())


def plan_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=",".join(NAMES))
    parser.add_argument("--lengths", default="1024,4096", help="at which results are checked")
    parser.add_argument("--timed", default="4096", help="those of them at which all backends are compiled and timed")
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--queries", type=int, default=0, help="of each sequence; as many as keys without it")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backends", default="ferrite,inductor", help="ours first")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile side by side")
    parser.add_argument("--deadline", type=float, default=480.0, help="seconds after which nothing more is timed")
    parser.add_argument("--caches", type=Path, default=results_folder() / "attention-caches")
    parser.add_argument("--out", type=Path, default=results_folder() / "attention.json")
    plan = parser.parse_args(arguments)
    plan.device = "cuda" if torch.cuda.is_available() else "cpu"
    # Torch has no gradients of flex_attention on the CPU.
    plan.forward = plan.forward or plan.device == "cpu" or bool(plan.queries)
    plan.variants, plan.backends = plan.variants.split(","), plan.backends.split(",")
    plan.lengths, plan.timed = ([int(word) for word in words.split(",")] for words in (plan.lengths, plan.timed))
    return plan


def seconds_since(began: float) -> float:
    """Returns seconds of the clock that all processes share."""
    return time.time() - began


def _collected(found: Any, count: int, plan: argparse.Namespace) -> Iterator[Row]:
    """Yields rows of ``count`` processes until each has said None, or the deadline is over."""
    while count:
        try:
            row = found.get(timeout=max(1.0, plan.deadline + PATIENCE - seconds_since(plan.began)))
        except queue.Empty:
            print(f"{count} processes still compiled at the deadline")
            return
        count -= row is None
        if row is not None:
            yield Row(**row)


def main() -> int:
    plan = plan_of()
    add_packages_to_path()
    context = multiprocessing.get_context("spawn")
    cells, turn, found = context.Queue(), context.Lock(), context.Queue()
    plan.began = time.time()
    for cell in [(variant, length) for length in plan.lengths for variant in plan.variants] + [None] * plan.jobs:
        cells.put(cell)
    workers = [context.Process(target=measure_cells, args=(cells, plan, turn, found)) for _ in range(plan.jobs)]
    for worker in workers:
        worker.start()
    rows = list(_collected(found, len(workers), plan))
    for worker in workers:
        worker.kill()  # one that still compiles has come too late
        worker.join()
    cells.cancel_join_thread()
    rows.sort(key=lambda row: (plan.variants.index(row.variant), row.length))
    print(machine_name(plan.device))
    print("\n".join(lines(rows, plan)))
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
