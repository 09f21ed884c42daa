"""Library calls that kernels of ours carry out: each as a few launches, whose texts call device functions.

The kernels' scratch memory is allocated before the first launch and dropped after the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ferrite_ir.dtypes import F32, F64, I32, DType
from ferrite_ir.graph import TensorType, View
from ferrite_scheduler.combined_rows import COMBINE_ROWS
from ferrite_scheduler.schedule import CallExtern

from .literals import number_text
from .spec import KernelSpec
from .steps import encode_layout

COUNTED = 1024
"""Rows that one program counts."""
STARTED, AHEAD = 1024, 4096
"""Places whose first row one program finds, and places before them that it reads at a time."""
FILLED = 32
"""Fewest places that one program looks at to see whether they are empty."""
PARTS, EDGE = 32, 128
"""Parts of one place that are read at a time, and columns of them."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """A call as kernels and host steps."""

    kernels: tuple[KernelSpec, ...]
    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An operand of a launch: its name on the host and in the kernel, its type, and how it is used."""

    host: str
    name: str
    dtype: DType
    access: str = "read"


def expand(step: CallExtern, taken: Collection[str]) -> Expansion | None:
    """Returns what carries a call out, None for calls of a library; ``taken`` are the names that the host uses."""
    write = _TEMPLATES.get(step.definition.target)
    return None if write is None else write(step, taken)


def _combine_rows(step: CallExtern, taken: Collection[str]) -> Expansion:
    definition, (result,) = step.definition, step.results
    places, source, base = definition.args
    given, value = dict(definition.kwargs), definition.results[0]
    if value is None or result is None:
        return Expansion((), ())
    (count, width), rows = map(int, source.shape), int(value.type.shape[0])
    mode, chunk, block, device = given["mode"], given["chunk"], given["block"], value.type.device
    compute = F64 if source.dtype is F64 else F32
    initial = "0.0" if isinstance(base, View) else number_text(base, compute)
    chunks = -(-count // chunk)
    end = chunks * chunk + 1
    scratch = {
        "counts": (I32, rows + 1),
        "ranks": (I32, count),
        "starts": (I32, rows + 1),
        "ranked": (I32, end),
        "order": (I32, end),
        "edges": (compute, 2 * chunks * width),
    }
    hosts = {name: _free_name(f"{result}_{name}", taken) for name in scratch}

    def tensor(name: str, access: str = "read") -> _Tensor:
        return _Tensor(hosts[name], name, scratch[name][0], access)

    place, row, out = (
        _Tensor(places.name, "places", places.dtype),
        _Tensor(source.name, "source", source.dtype),
        _Tensor(result, "out", value.type.dtype, "write"),
    )
    before = (_Tensor(base.name, "base", base.dtype),) if isinstance(base, View) else ()
    held = "base" if before else "None"
    size = f"{count}, {rows}"
    programs = max(-(-end // COUNTED), -(-rows // FILLED))
    lane = f"tl.program_id(0) * {COUNTED} + tl.arange(0, {COUNTED})"
    columns = min(block, EDGE)
    launches = [
        (
            "zero_counts",
            (tensor("counts", "write"),),
            [f"place = {lane}", f"tl.store(counts + place, 0, place <= {rows})"],
            -(-(rows + 1) // COUNTED),
            4,
        ),
        (
            "count_places",
            (place, tensor("counts", "atomic"), tensor("ranks", "write")),
            [f"fmath.count_places(places, counts, ranks, {size}, {given['wraps']}, {COUNTED})"],
            -(-count // COUNTED),
            4,
        ),
        (
            "start_places",
            (tensor("counts"), tensor("starts", "write")),
            [f"fmath.start_places(counts, starts, {rows}, {STARTED}, {AHEAD})"],
            -(-(rows + 1) // STARTED),
            8,
        ),
        (
            "order_rows",
            (
                place,
                *(tensor(name) for name in ("counts", "ranks", "starts")),
                *before,
                tensor("ranked", "write"),
                tensor("order", "write"),
                out,
            ),
            [
                f"fmath.order_rows(places, ranks, starts, ranked, order, {size}, {given['wraps']}, {end}, {COUNTED})",
                f"fmath.fill_places(counts, {held}, out, {initial}, {rows}, {width}, {programs}, {FILLED}, {columns})",
            ],
            programs,
            4,
        ),
        (
            "combine_rows",
            (tensor("ranked"), tensor("order"), row, *before, out, tensor("edges", "write")),
            [
                f'fmath.combine_rows(ranked, order, source, {held}, out, edges, "{mode}", {initial}, {size}, {width}, '
                f"{int(source.strides[0])}, {chunk}, {given['batch']}, {block})"
            ],
            chunks * -(-width // block),
            1,
        ),
        (
            "combine_edges",
            (tensor("ranked"), *before, out, tensor("edges")),
            [
                f'fmath.combine_edges(ranked, {held}, out, edges, "{mode}", {initial}, {size}, {width}, {chunk}, '
                f"{PARTS}, {columns})"
            ],
            chunks * -(-width // columns),
            4,
        ),
    ]
    origin = tuple(dict.fromkeys(str(origin) for origin in definition.origins if str(origin)))
    kernels = [_template(name, tensors, body, grid, warps, origin) for name, tensors, body, grid, warps in launches]
    steps = [
        {"do": "alloc", "name": name, **encode_layout(type_)}
        for name, type_ in (
            (result, value.type),
            *((hosts[name], TensorType(dtype, (extent,))) for name, (dtype, extent) in scratch.items()),
        )
    ]
    if device:
        steps = [{**step, "device": device} for step in steps]
    steps += [
        {"do": "launch", "kernel": kernel.id, "args": [tensor.host for tensor in tensors]}
        for kernel, (_, tensors, *_) in zip(kernels, launches, strict=True)
    ]
    return Expansion(tuple(kernels), (*steps, {"do": "free", "names": list(hosts.values())}))


def _free_name(wanted: str, taken: Collection[str]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted


def _template(
    name: str, tensors: tuple[_Tensor, ...], body: list[str], programs: int, warps: int, origin: tuple[str, ...]
) -> KernelSpec:
    """Returns the spec of a kernel with these lines, which is launched in one way only."""
    imports = ["import triton", "import triton.language as tl"]
    if any("fmath." in line for line in body):
        imports.append("from ferrite_runtime import fmath")
    kinds = "# " + ", ".join(f"{tensor.name}: {tensor.dtype}" for tensor in tensors)
    signature = ", ".join(tensor.name for tensor in tensors)
    text = "\n".join([f"def {{}}({signature}):", *(f"    {line}" for line in (kinds, *body)), ""])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    full = f"{name}_{digest}"
    return KernelSpec(
        name=full,
        source="\n".join([*imports, "", "", "@triton.jit", text.format(full)]),
        family="template",
        params=tuple(
            {"name": t.name, "role": "tensor", "dtype": t.dtype.name, "access": t.access, "align": 16} for t in tensors
        ),
        axes=(),
        blocks={},
        grid=programs,
        mutated=tuple(tensor.name for tensor in tensors if tensor.access == "atomic"),
        index_width=64,
        facts={"num_warps": warps, "num_stages": 1},
        origin=origin,
    )


_TEMPLATES: dict[str, Callable[[CallExtern, Collection[str]], Expansion]] = {COMBINE_ROWS: _combine_rows}
