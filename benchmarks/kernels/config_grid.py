"""Times each kernel of cases with a grid of configs, and says how far the first one is from the best.

    python benchmarks/kernels/config_grid.py --set sweep --cases "argmax,nx333" --dtypes bfloat16,float32
    python benchmarks/kernels/config_grid.py --set all --out configs.json

What a config policy chooses without measuring is right if it is near the best of all that could be chosen, for many
shapes: of rows and columns the numbers beside each other, 1 to 32 warps, 4 to 64 elements to a thread. Kernels get
made-up tensors, several sets in turn, so that none is found in the cache; those that read places from memory are
left out, as are those whose programs wait for each other. The details have the times of all configs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kernels.case_sets import CASE_SETS, cases_of
from benchmarks.kernels.compiled_code import emitted_kernels
from benchmarks.kernels.random_cases import FORMS as RANDOM_SETS
from benchmarks.tools.timing import copy_bandwidth, time_launches
from benchmarks.tools.tree import add_packages_to_path

FORMS = ("pointwise", "persistent", "looped", "scan")
WARPS = (1, 2, 4, 8, 16, 32)
PER_THREAD = (4, 8, 16, 32, 64)
COLUMNS = (16, 32, 64, 128)
"""Beside each other in a tile of a loop over columns."""
ROWS = (1, 2, 4, 8, *COLUMNS)
TILE = (256, 8192)
"""Least and most elements of a tile without a reduction axis."""
SETS, MANY_BYTES = 3, 12 << 30
LEAST_BYTES, ROOM = 64 << 20, 2
"""Of a tensor that is read, whatever the axes say; how often that many elements, as some read two halves of rows."""
LAUNCHES, BATCHES = 9, 2


@dataclass(frozen=True, slots=True)
class Found:
    """The times of a kernel in microseconds by config, the first choice first."""

    case: str
    dtype: str
    name: str
    form: str
    times: dict[str, float]

    @property
    def gain(self) -> float:
        """Returns how many times as long as the fastest config the first one took."""
        return next(iter(self.times.values())) / min(self.times.values())

    def __str__(self) -> str:
        first, *_ = self.times.items()
        best = sorted(self.times.items(), key=lambda item: item[1])[:3]
        told = "; ".join(f"{config.replace(', num_stages=1', '')} {us:.1f}" for config, us in (first, *best))
        return f"{self.gain:5.2f}  {self.case} {self.dtype} {self.name} ({len(self.times)} configs): {told}"


def blocks_of(spec: Any, shape: Any) -> Iterator[tuple[dict[str, int], int]]:
    """Yields blocks by axis name, and warps, for a kernel."""
    limits = {axis.name: shape.limit(axis) for axis in spec.axes}
    grid = [axis.name for axis in spec.axes if axis.kind == "grid" and shape.sizes[axis.name] > 1]
    reduction = [axis for axis in spec.axes if axis.kind == "reduction"]
    inner = shape.contiguous if shape.contiguous in ("x", "y") else None
    for warps, per_thread in itertools.product(WARPS, PER_THREAD):
        tile = 32 * warps * per_thread
        if not reduction:
            if not TILE[0] <= tile <= TILE[1]:
                continue
            if len(grid) == 1:
                yield {grid[0]: tile}, warps
            elif len(grid) == 2:
                x, y = sorted(grid)
                yield from (({x: tile // rows, y: rows}, warps) for rows in ROWS if rows <= tile)
        elif len(reduction) == 1:
            row = spec.blocks.get(reduction[0].block)
            if row is not None or (spec.form == "scan" and inner is None and limits[reduction[0].name] <= TILE[1]):
                row = row or limits[reduction[0].name]
                yield {reduction[0].name: row, inner or "x": max(1, tile // row)}, warps
            elif inner is None:
                yield {reduction[0].name: tile}, warps
            else:
                yield from (({reduction[0].name: max(1, tile // x), inner: x}, warps) for x in COLUMNS)


def grid_of(spec: Any, shape: Any) -> Iterator[Any]:
    """Yields the configs of a kernel's grid, all blocks no larger than they may be."""
    from ferrite_runtime.formats.config import Config

    limits = {axis.name: shape.limit(axis) for axis in spec.axes}
    for blocks, warps in blocks_of(spec, shape):
        chosen = {a.block: min(blocks.get(a.name, 1), limits[a.name]) for a in spec.axes if a.block not in spec.blocks}
        yield Config.of(chosen, warps, 1)


def can_be_made_up(spec: Any) -> bool:
    """Returns whether a kernel does not depend on what its tensors hold."""
    return spec.form in FORMS and all(
        param.role == "tensor" and not (param.access != "write" and param.dtype.startswith(("i", "u")))
        for param in spec.params
    )


def made_up(spec: Any) -> tuple[Any, ...]:
    """Returns tensors for a kernel."""
    from ferrite_runtime.host.tensors import torch_dtype

    points, tensors = math.prod(spec.hint_sizes().values()), []
    for param in spec.params:
        dtype = torch_dtype(param.dtype)
        count = points if param.access == "write" else max(ROOM * points, LEAST_BYTES // dtype.itemsize)
        made = torch.randn(count, device="cuda") if dtype.is_floating_point else torch.zeros(count, device="cuda")
        tensors.append(made.to(dtype))
    return tuple(tensors)


def microseconds_of(kernel: Any, sets: list[tuple[Any, ...]]) -> float:
    """Returns how long a launch takes, with the sets of tensors in turn."""
    turns = itertools.cycle(sets)
    kernel(*next(turns))
    return min(time_launches(lambda: kernel(*next(turns)), LAUNCHES, "cuda") for _ in range(BATCHES)) * 1e3


class Grid:
    """Kernels that compile in the background, each with all configs of its grid, until they are timed."""

    def __init__(self, workers: int) -> None:
        from ferrite_runtime import Options
        from ferrite_runtime.engines.cuda_engine import make_machine
        from ferrite_runtime.formats.facts import spec_forms

        self._options = Options(tune="none", workers=workers)
        self._facts = make_machine(0, self._options).facts
        self._forms: dict[str, Any] = spec_forms()
        self._kernels: list[tuple[str, str, Any, list[tuple[Any, Any]]]] = []

    def begin(self, case: str, dtype: str, mapping: dict[str, Any]) -> None:
        """Starts to compile a kernel with its configs."""
        from ferrite_runtime import Kernel, KernelSpec
        from ferrite_runtime.policies.candidates import configs
        from ferrite_runtime.policies.shape import Shape

        spec = KernelSpec.from_mapping(mapping)
        if not can_be_made_up(spec):
            return
        first = configs(spec, self._facts, "none")[0]
        chosen, begun = self._forms[spec.form], []
        for config in dict.fromkeys((first, *grid_of(spec, Shape.of(spec, self._facts)))):
            self._forms[spec.form] = replace(chosen, configs=lambda shape, config=config: (config,))
            kernel = Kernel(spec, self._options)
            kernel.on_device(0)
            begun.append((config, kernel))
        self._forms[spec.form] = chosen
        self._kernels.append((case, dtype, spec, begun))

    def times(self) -> Iterator[Found]:
        """Yields the times of all kernels that were begun."""
        from ferrite_runtime import FerriteRuntimeError

        for case, dtype, spec, begun in self._kernels:
            tensors = made_up(spec)
            enough = sum(tensor.nbytes for tensor in tensors) <= MANY_BYTES
            sets = [tensors, *(made_up(spec) for _ in range(SETS - 1))] if enough else [tensors]
            times: dict[str, float] = {}
            for config, kernel in (*begun, begun[0]):  # the first again: the device may have been idle before
                try:
                    us = microseconds_of(kernel, sets)
                except FerriteRuntimeError as error:  # such as one that needs more shared memory than there is
                    print(f"{case} {dtype} {config}: {error}", file=sys.stderr)
                    continue
                times[str(config)] = min(us, times.get(str(config), us))
            yield Found(case, dtype, spec.name, spec.form, times)
            del sets, tensors
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="comma separated parts of case names")
    parser.add_argument("--set", default="sweep", choices=[*CASE_SETS, *RANDOM_SETS], help="as run.py has them")
    parser.add_argument("--seed", type=int, default=0, help="of programs that are drawn")
    parser.add_argument("--count", type=int, default=30, help="of programs that are drawn")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--policy", type=json.loads, default={}, help="scheduler thresholds, as JSON")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path, help="file for the times of all configs")
    arguments = parser.parse_args()
    add_packages_to_path()
    grid = Grid(arguments.workers)
    cases = cases_of(arguments.set, arguments.seed, arguments.count)
    for dtype in arguments.dtypes.split(","):
        for case, mapping in emitted_kernels(cases, arguments.cases.split(","), dtype, arguments.policy):
            grid.begin(case, dtype, mapping)
    with torch.device("cuda"):
        print(f"copy bandwidth {copy_bandwidth('cuda', 1 << 30) / 1e12:.3f} TB/s on {torch.cuda.get_device_name()}")
    found = []
    for kernel in grid.times():
        found.append(kernel)
        print(kernel, flush=True)
    gains = [kernel.gain for kernel in found]
    middle = math.exp(sum(map(math.log, gains)) / max(1, len(gains)))
    print(f"the first configs take {middle:.3f} times as long as the best, {max(gains, default=1):.2f} at most")
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(kernel) for kernel in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
