"""Hand-written kernels and programs that the tests share."""

from __future__ import annotations

import itertools
from typing import Any

from ferrite_runtime.formats.canonical_json import kernel_id

HEADER = "import triton\nimport triton.language as tl\nfrom ferrite_runtime import fmath\n\n\n"


def tensor(name: str, dtype: str = "f32", access: str = "read", align: int = 16) -> dict[str, Any]:
    return {"name": name, "role": "tensor", "dtype": dtype, "access": access, "align": align}


def grid_axis(name: str, size: Any, **extra: Any) -> dict[str, Any]:
    hint = extra.pop("hint", size)
    return {"name": name, "kind": "grid", "size": size, "hint": hint, "block": f"{name.upper()}BLOCK", **extra}


def reduction_axis(size: Any, **extra: Any) -> dict[str, Any]:
    return {"name": "r", "kind": "reduction", "size": size, "hint": extra.pop("hint", size), "block": "RBLOCK", **extra}


def spec(
    name: str, body: str, params: list[dict[str, Any]], axes: list[dict[str, Any]], **extra: Any
) -> dict[str, Any]:
    mapping = {
        "format": 2,
        "name": name,
        "source": HEADER + body,
        "form": "pointwise",
        "params": params,
        "axes": axes,
        "blocks": {},
        "grid": ["ceildiv", "x", "XBLOCK"],
        "mutated": [],
        "index_width": 32,
        "facts": {},
        "origin": [],
        **extra,
    }
    return {**mapping, "id": kernel_id(mapping)}


def pointwise(
    expression: str, inputs: int = 1, size: int = 1000, dtype: str = "f32", name: str = "pointwise", **extra: Any
) -> dict[str, Any]:
    """A kernel that stores ``expression`` of the loaded values ``a``, ``b``, … as one flat loop.

    It may begin with a line of its own, ``begin``.
    """
    letters = "abcdef"[:inputs]
    signature = ", ".join([f"{letter}_ptr" for letter in letters] + ["out_ptr", "XBLOCK: tl.constexpr"])
    body = f"@triton.jit\ndef {name}({signature}):\n    {extra.pop('begin', 'pass')}\n"
    body += "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
    body += f"    mask = x < {size}\n"
    for letter in letters:
        body += f"    {letter} = tl.load({letter}_ptr + x, mask)\n"
        if dtype in ("f16", "bf16"):
            body += f"    {letter} = {letter}.to(tl.float32)\n"
    body += f"    out = {expression}\n    tl.store(out_ptr + x, out, mask)\n"
    params = [tensor(f"{letter}_ptr", dtype) for letter in letters] + [
        tensor("out_ptr", extra.pop("out", dtype), "write")
    ]
    extra.setdefault("facts", {"loads": inputs, "stores": 1, "numel": size, "element_bytes": 4, "contiguous_axis": "x"})
    return spec(name, body, params, [grid_axis("x", size)], **extra)


def scaled(name: str = "scaled") -> dict[str, Any]:
    """Out = a * factor, over a size given at launch."""
    body = (
        f"@triton.jit\ndef {name}(a_ptr, out_ptr, n, factor, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    mask = x < n\n"
        "    tl.store(out_ptr + x, tl.load(a_ptr + x, mask) * factor, mask)\n"
    )
    params = [
        tensor("a_ptr"),
        tensor("out_ptr", access="write"),
        {"name": "n", "role": "size", "dtype": "i32"},
        {"name": "factor", "role": "scalar", "dtype": "f32"},
    ]
    return spec(name, body, params, [grid_axis("x", "n", hint=4096)])


def row_facts(rows: int, columns: int, reductions: int) -> dict[str, Any]:
    """The facts of a kernel that reduces the rows of a contiguous matrix of float32."""
    return {
        "loads": 1,
        "stores": 1,
        "reductions": reductions,
        "reduction_size": columns,
        "numel": rows,
        "contiguous_axis": "r",
        "element_bytes": 4,
    }


def row_softmax(rows: int, columns: int, name: str = "row_softmax", block: int | None = None) -> dict[str, Any]:
    """A persistent softmax over the rows of a contiguous matrix."""
    block = block or 1 << max(0, columns - 1).bit_length()
    body = (
        f"@triton.jit\ndef {name}(in_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        f"    RBLOCK: tl.constexpr = {block}\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]\n"
        "    r = tl.arange(0, RBLOCK)[None, :]\n"
        f"    mask = (x < {rows}) & (r < {columns})\n"
        f"    value = tl.load(in_ptr + x * {columns} + r, mask, other=float('-inf'))\n"
        "    top = tl.reduce(value, 1, fmath.maximum_nan, keep_dims=True)\n"
        "    shifted = fmath.exp(value - top)\n"
        "    total = tl.sum(shifted, 1, keep_dims=True)\n"
        f"    tl.store(out_ptr + x * {columns} + r, shifted / total, mask)\n"
    )
    params = [tensor("in_ptr"), tensor("out_ptr", access="write")]
    facts = row_facts(rows, columns, reductions=2)
    axes = [grid_axis("x", rows), reduction_axis(columns)]
    return spec(name, body, params, axes, form="persistent", blocks={"RBLOCK": block}, facts=facts)


def shared_softmax(rows: int, columns: int, points: int, name: str = "shared_softmax") -> dict[str, Any]:
    """A softmax over the rows of a contiguous matrix, whose programs hold parts of rows and wait for each other."""
    parts = -(-columns // points)
    lanes = 1 << (parts - 1).bit_length()
    body = (
        f"@triton.jit\ndef {name}(in_ptr, out_ptr, status, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):\n"
        "    program = fmath.take_ticket(status, tl.num_programs(0))\n"
        f"    member = program % {parts}\n"
        f"    x = program // {parts} * XBLOCK + tl.arange(0, XBLOCK)[:, None]\n"
        "    r = (member * RBLOCK + tl.arange(0, RBLOCK))[None, :]\n"
        f"    mask = (x < {rows}) & (r < {columns})\n"
        f"    words = status + {1 + rows} + x * {parts}\n"
        f"    members = tl.arange(0, {lanes})[None, :]\n"
        f"    told = (members < {parts}) & (x < {rows})\n"
        f"    value = tl.load(in_ptr + x * {columns} + r, mask, other=float('-inf'))\n"
        "    top = tl.max(value, 1, keep_dims=True)\n"
        "    total = tl.sum(tl.exp(value - top), 1, keep_dims=True)\n"
        f"    fmath.publish_state(words + member, top, x < {rows})\n"
        f"    fmath.publish_state(words + {rows * parts} + member, total, x < {rows})\n"
        f"    fmath.grid_barrier(status + 1 + program // {parts}, {parts})\n"
        "    tops = fmath.published_states(words + members, told, float('-inf'))\n"
        f"    totals = fmath.published_states(words + {rows * parts} + members, told, 0.0)\n"
        "    highest = tl.max(tops, 1, keep_dims=True)\n"
        "    mass = tl.sum(totals * tl.exp(tops - highest), 1, keep_dims=True)\n"
        f"    tl.store(out_ptr + x * {columns} + r, tl.exp(value - highest) / mass, mask)\n"
    )
    params = [tensor("in_ptr"), tensor("out_ptr", access="write"), tensor("status", "i64", "atomic")]
    facts = {**row_facts(rows, columns, reductions=1), "splits": parts, "registers": 168}
    return spec(
        name,
        body,
        params,
        [grid_axis("x", rows), reduction_axis(columns, max_block=points)],
        form="grid_reduction",
        blocks={"RBLOCK": points},
        grid=["mul", ["ceildiv", "x", "XBLOCK"], ["ceildiv", "r", "RBLOCK"]],
        mutated=["status"],
        facts=facts,
    )


def shared_means(points: int, parts: int, name: str = "shared_means") -> dict[str, Any]:
    """Means of two groups of four columns, of whose rows each program has a part: all store what all have found."""
    body = (
        f"@triton.jit\ndef {name}(in_ptr, out_ptr, words, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):\n"
        "    part = tl.program_id(0)\n"
        f"    sign = fmath.epoch_sign(words, 0, part, 4, 8, 1, {parts})\n"
        "    row, column = part * RBLOCK + tl.arange(0, RBLOCK), tl.arange(0, 8)\n"
        "    value = tl.load(in_ptr + row[:, None] * 8 + column[None, :])\n"
        "    mean = tl.sum(value, 0) / RBLOCK\n"
        "    away = value - mean[None, :]\n"
        f"    sizes: tl.constexpr = (RBLOCK, 8, 4, 8, 2, 1, {parts})\n"
        "    fmath.publish_groups(words, sign, mean, tl.sum(away * away, 0), 0, part, *sizes)\n"
        f"    found, squares = fmath.whole_groups(words, sign, 0, *sizes, {parts})\n"
        "    tl.store(out_ptr + part * 4 + tl.arange(0, 2), found)\n"
        "    tl.store(out_ptr + part * 4 + 2 + tl.arange(0, 2), squares)\n"
    )
    params = [tensor("in_ptr"), tensor("out_ptr", access="write"), tensor("words", "i64", "atomic")]
    return spec(
        name,
        body,
        params,
        [grid_axis("x", 8), reduction_axis(points * parts, max_block=points)],
        form="register_norm",
        blocks={"XBLOCK": 8, "RBLOCK": points},
        grid=["ceildiv", "r", "RBLOCK"],
        mutated=["words"],
        facts={**row_facts(8, points * parts, reductions=1), "splits": parts, "registers": 56, "threads": 128},
    )


def row_sum(rows: int, columns: int, name: str = "row_sum") -> dict[str, Any]:
    """A looped sum over the rows of a contiguous matrix."""
    body = (
        f"@triton.jit\ndef {name}(in_ptr, out_ptr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]\n"
        f"    total = tl.zeros([XBLOCK, RBLOCK], tl.float32)\n"
        f"    for start in range(0, {columns}, RBLOCK):\n"
        "        r = start + tl.arange(0, RBLOCK)[None, :]\n"
        f"        mask = (x < {rows}) & (r < {columns})\n"
        f"        total += tl.load(in_ptr + x * {columns} + r, mask, other=0.0)\n"
        f"    tl.store(out_ptr + x, tl.sum(total, 1, keep_dims=True), x < {rows})\n"
    )
    params = [tensor("in_ptr"), tensor("out_ptr", access="write")]
    facts = row_facts(rows, columns, reductions=1)
    return spec(name, body, params, [grid_axis("x", rows), reduction_axis(columns)], form="looped", facts=facts)


def contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides


def layout(shape: list[int], dtype: str = "f32", strides: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "strides": contiguous(shape) if strides is None else strides}


def tensor_input(name: str, shape: list[int], dtype: str = "f32", device: str = "cpu") -> dict[str, Any]:
    return {"name": name, "kind": "tensor", **layout(shape, dtype), "device": device}


def program(
    inputs: list[dict[str, Any]],
    kernels: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    device: str = "cpu",
) -> dict[str, Any]:
    return {
        "format": "ferrite-program/2",
        "name": "test",
        "device": device,
        "inputs": inputs,
        "kernels": kernels,
        "steps": steps,
        "outputs": outputs,
    }


def one_kernel(kernel: dict[str, Any], size: int = 1000, dtype: str = "f32", device: str = "cpu") -> dict[str, Any]:
    """A program of one pointwise kernel."""
    count = len(kernel["params"]) - 1
    names = [f"in{i}" for i in range(count)]
    return program(
        [tensor_input(name, [size], dtype, device) for name in names],
        [kernel],
        [
            {"do": "alloc", "name": "out", **layout([size], kernel["params"][-1]["dtype"])},
            {"do": "launch", "kernel": kernel["id"], "args": [*names, "out"]},
        ],
        [{"value": "out"}],
        device,
    )


def chain(
    count: int, size: int = 1000, device: str = "cpu", *, sized: bool = False, uses_pdl: bool = False
) -> dict[str, Any]:
    """A program of launches in a row, each over the result of the one before; its outputs are the middle and the last.

    Each computes ``a * 0.5 + 1``; if ``sized``, ``a * factor`` of the first ``n`` elements, both inputs of the program.
    If it ``follows``, each waits by itself for the one before, and is so light that it starts before that has ended.
    """
    begin = {"begin": "fmath.pdl_wait()", "facts": {"bytes": 8 * size}} if uses_pdl else {}
    kernel = scaled() if sized else pointwise("a * 0.5 + 1", size=size, name="step", **begin)
    inputs = [tensor_input("x", [size], device=device)]
    if sized:
        inputs += [{"name": n, "kind": "scalar", "dtype": t} for n, t in (("n", "i64"), ("factor", "f64"))]
    names = ["x", *(f"t{k}" for k in range(count))]
    steps: list[dict[str, Any]] = []
    for source, target in itertools.pairwise(names):
        args = [source, target, *(["n", "factor"] if sized else [])]
        steps.append({"do": "alloc", "name": target, **layout([size])})
        steps.append({"do": "launch", "kernel": kernel["id"], "args": args})
    return program(inputs, [kernel], steps, [{"value": names[count // 2]}, {"value": names[-1]}], device)
