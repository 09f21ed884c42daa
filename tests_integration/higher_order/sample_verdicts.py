"""PyTorch's own samples of higher-order ops (`torch.testing._internal.hop_db`), each compiled and compared with eager.

    python tests_integration/higher_order/sample_verdicts.py [--device cuda] [--dynamic] [--jobs 8]

writes a line for each sample, a table of what became of them by op, and what share of those that eager mode runs, and
that torch can capture, is native. A sample that eager mode refuses says nothing.
"""

from __future__ import annotations

import argparse
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]

from against_eager import compiled_or_eager, tensors_of  # noqa: E402 - found through the path above

NATIVE, STEP, EAGER, REFUSED, WRONG = "native", "step", "eager graph", "refused", "wrong"
"""What becomes of a sample: kernels alone, a step of its own, a graph that runs eagerly, an error, other results."""
EAGER_REFUSES, TORCH_REFUSES = "eager refuses", "torch refuses"
"""What says nothing of a compiler: eager mode has no result, or torch captures nothing, whatever compiles it."""
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one sample, and why."""

    op: str
    dtype: str
    way: str
    status: str
    reason: str = ""


def verdicts(info: Any, device: str, dtypes: Collection[torch.dtype] = (), *, dynamic: bool) -> Iterator[Verdict]:
    """Yields what becomes of each sample of an op: forwards, and backwards where the op has a derivative.

    Without ``dtypes`` at all that the op is entered with; of those that are entered for GPUs alone also on a CPU.
    """
    entered = info.supported_dtypes(device) or info.supported_dtypes("cuda")
    for dtype in sorted(entered, key=str):
        if dtypes and dtype not in dtypes:
            continue
        for way in ["forward"] + ["backward"] * (info.supports_autograd and dtype.is_floating_point):
            told = f"{info.name}:{info.variant_test_name}", str(dtype).removeprefix("torch."), way
            try:
                samples = list(info.sample_inputs(device, dtype, requires_grad=way == "backward"))
            except Exception as error:  # noqa: BLE001  # of integers that would need a gradient, of a missing library
                yield Verdict(*told, EAGER_REFUSES, first_line(error))
                continue
            for sample in samples:
                yield Verdict(*told, *verdict_of(info.op, sample, way, dynamic=dynamic))


def database() -> list[Any]:
    """Returns the entries of torch's database; they make samples on any device that they know dtypes of."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        # The database needs nothing of it but that it can be imported.
        sys.modules["expecttest"] = SimpleNamespace(TestCase=unittest.TestCase)  # type: ignore[assignment]
    with warnings.catch_warnings():
        # Torch's testing modules import Numba where it is there, and others, which warn of what they import.
        warnings.simplefilter("ignore")
        from torch.testing._internal.hop_db import hop_db
    return list(hop_db)


def verdict_of(function: Callable[..., Any], sample: Any, way: str, *, dynamic: bool) -> tuple[str, str]:
    """Returns the status of one sample, and why."""
    import ferrite_torch

    def call(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        inputs, args, kwargs = copied((sample.input, sample.args, sample.kwargs))
        results = function(inputs, *args, **kwargs)
        leaves = [each for each in tensors_of([inputs, args]) if each.requires_grad]
        differentiable = [each for each in tensors_of(results) if each.requires_grad]
        if way != "backward" or not differentiable or not leaves:
            return results, tensors_of([inputs, args])
        return results, torch.autograd.grad([each.sum() for each in differentiable], leaves, allow_unused=True)

    try:
        expected = call(function)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        return EAGER_REFUSES, first_line(error)
    if reason := refusal(lambda: call(torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic))):
        return TORCH_REFUSES, reason
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    try:
        found = call(compiled_or_eager(function, fullgraph=True, dynamic=dynamic))
    except Exception as error:  # noqa: BLE001  # whatever is raised is reported
        return REFUSED, first_line(error)
    try:
        compare(found, expected)
    except AssertionError as error:
        return WRONG, first_line(error)
    known = ferrite_torch.statistics()
    if known["fallbacks"] or not known["graphs"]:
        return EAGER, next(iter(known["fallbacks"]), "nothing was compiled")
    steps = [op for op in known["externs"] if op.startswith("higher_order.")]
    return (STEP, steps[0]) if steps else (NATIVE, "")


def refusal(call: Callable[[], Any]) -> str:
    """Returns why a call fails, "" of one that does not."""
    torch._dynamo.reset()
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        return first_line(error)
    return ""


def copied(value: Any) -> Any:
    """Returns the same structure with tensors of its own, which ask for gradients where the others do."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    return {name: copied(item) for name, item in value.items()} if isinstance(value, dict) else value


def compare(found: Any, expected: Any) -> None:
    """Fails unless two results are the same up to what rounding explains."""
    mine, theirs = tensors_of(found), tensors_of(expected)
    assert len(mine) == len(theirs), f"{len(mine)} results, eager has {len(theirs)}"
    for one, other in zip(mine, theirs, strict=True):
        tolerance = TOLERANCES.get(other.dtype, 0.0)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def first_line(error: BaseException) -> str:
    """Returns the first line that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def told(entry: int, dtype: torch.dtype, device: str, *, dynamic: bool) -> list[Verdict]:
    """Returns what becomes of the samples of an entry of the database, by number, at one dtype."""
    return list(verdicts(database()[entry], device, (dtype,), dynamic=dynamic))


def all_verdicts(device: str, jobs: int, *, dynamic: bool) -> Iterator[Verdict]:
    """Yields what becomes of all samples; several processes share them out."""
    entered = [info.supported_dtypes(device) or info.supported_dtypes("cuda") for info in database()]
    work = [(number, dtype) for number, dtypes in enumerate(entered) for dtype in sorted(dtypes, key=str)]
    tell = partial(told, device=device, dynamic=dynamic)
    if jobs < 2:
        for each in work:
            yield from tell(*each)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for found in pool.map(tell, *zip(*work, strict=True)):
            yield from found


def table(found: Sequence[Verdict]) -> str:
    """Returns how many samples of each op became what, and the share that is native."""
    counts: dict[str, Counter[str]] = {}
    for verdict in found:
        counts.setdefault(verdict.op, Counter())[verdict.status] += 1
    kinds = [NATIVE, STEP, EAGER, REFUSED, WRONG, EAGER_REFUSES, TORCH_REFUSES]
    lines = ["".join([f"{'op':42}", *(f"{kind:>15}" for kind in kinds)])]
    lines += ["".join([f"{op:42}", *(f"{row[kind]:15}" for kind in kinds)]) for op, row in counts.items()]
    total: Counter[str] = sum(counts.values(), Counter())
    lines.append("".join([f"{'all':42}", *(f"{total[kind]:15}" for kind in kinds)]))
    passed = sum(total[kind] for kind in (NATIVE, STEP, EAGER, REFUSED, WRONG))
    right = total[NATIVE] + total[STEP]
    share = 100 * total[NATIVE] / max(passed, 1)
    lines.append(f"of {passed} samples that eager runs and torch captures {right} are right, {share:.1f} % native")
    return "\n".join(lines)


def main() -> int:
    """Returns 0 if nothing is wrong, refused or eager, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the samples out")
    chosen = parser.parse_args()
    found: list[Verdict] = []
    for verdict in all_verdicts(chosen.device, chosen.jobs, dynamic=chosen.dynamic):
        found.append(verdict)
        line = (verdict.op, verdict.dtype, verdict.way, verdict.status, verdict.reason)
        sys.stdout.write("  ".join(filter(None, line)) + "\n")
        sys.stdout.flush()
    sys.stdout.write(table(found) + "\n")
    return 1 if any(verdict.status in (EAGER, REFUSED, WRONG) for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
