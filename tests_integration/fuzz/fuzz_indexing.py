"""Reads and writes by index, duplicates included, as lines of the fuzzer's programs."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzz_pool import Line, Pool, is_float, is_number, operation


def is_index(x: Tensor) -> bool:
    """Returns whether integers can be places; a 0-d index is read by the host."""
    return x.dtype in (torch.int64, torch.int32) and x.ndim > 0


def inside(pool: Pool, place: int, extent: str, *, is_signed: bool = True) -> str:
    """Returns an index in bounds, from either end now and then."""
    text = f"({{{place}}} % {extent})"
    return f"({text} - {extent})" if is_signed and pool.rng.random() < 0.25 else text


@operation(6)
def indexed(pool: Pool) -> Line | None:
    name, places = pool.name(lambda x: x.ndim > 0 and x.numel() > 0), pool.name(is_index)
    if name is None or places is None:
        return None
    x, index = pool.tensors[name], pool.tensors[places]
    axis = pool.rng.randrange(x.ndim)
    at = inside(pool, 1, f"{{0}}.shape[{axis}]", is_signed=False)
    found = ["{0}.take(({1} % {0}.numel()).long())"]
    if index.ndim == 1:
        rows = f"{{0}}.index_select({axis}, {at})"
        found += [rows, rows, f"{{0}}.index_fill({axis}, {at}.long(), 2)"]
        if is_number(x):
            found += [
                f"{{0}}.index_add({axis}, {at}, {rows})",
                f"torch.zeros_like({{0}}).index_add({axis}, {at}, {rows})",
            ]
            reduce = pool.rng.choice(("amax", "amin", "prod", "mean"))
            clamped = f"{rows}.clamp(1, 2)" if reduce == "prod" else rows
            keeps = pool.rng.random() < 0.5
            found += [f"{{0}}.index_reduce({axis}, {at}.long(), {clamped}, '{reduce}', include_self={keeps})"]
        if x.dtype is torch.float32 and x.ndim == 2:
            found += ["F.embedding({1} % {0}.shape[0], {0})"]
    if index.ndim == x.ndim:
        fits = all(at == axis or a <= b for at, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)))
        if fits:
            found += along_axis(pool, x, axis, f"{at}.long()")
    return Line(pool.rng.choice(found), (name, places))


def along_axis(pool: Pool, x: Tensor, axis: int, at: str) -> list[str]:
    """Returns reads and writes at the places of an index of as many dims; places may come more than once."""
    rows = f"{{0}}.gather({axis}, {at})"
    found = [rows, f"{{0}}.scatter({axis}, {at}, 1)", f"torch.take_along_dim({{0}}, {at}, {axis})"]
    if is_number(x):
        reduce = pool.rng.choice(("sum", "amax", "amin", "mean", "prod"))
        clamped = f"{rows}.clamp(1, 2)" if reduce == "prod" else rows
        keeps = pool.rng.random() < 0.5
        found += [f"{{0}}.scatter_add({axis}, {at}, {rows})"]
        found += [f"{{0}}.scatter_reduce({axis}, {at}, {clamped}, '{reduce}', include_self={keeps})"] * 2
        found += [f"torch.zeros_like({{0}}).scatter_reduce({axis}, {at}, {clamped}, '{reduce}')"]
    return found


@operation(6)
def advanced(pool: Pool) -> Line | None:
    """Returns what an index of tensors, slices, numbers, None and an ellipsis reads."""
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    index = drawn_index(pool, pool.tensors[name], allows_masks=pool.rng.random() < 0.06 and not pool.is_trained)
    if index is None:
        return None
    text, reads, has_mask = index
    return Line(f"{{0}}[{text}]", (name, *reads), has_run_time_size=has_mask)


@operation(6)
def put(pool: Pool) -> Line | None:
    """Returns a tensor with something written where an index points, the sum of what comes at one place."""
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    x = pool.tensors[name]
    places = [pool.name(is_index) for _ in range(pool.rng.randint(1, min(2, x.ndim)))]
    if None in places:
        return None
    texts = [inside(pool, 1 + n, f"{{0}}.shape[{n}]") + ".long()" for n in range(len(places))]
    listed = ", ".join(texts)
    read = f"{{0}}[{listed}]"
    adds = pool.rng.random() < 0.5 and is_number(x)
    values = read if adds else "torch.ones((), dtype={0}.dtype, device=device)"
    text = f"{{0}}.index_put(({listed},), {values}, accumulate={adds})"
    if pool.rng.random() < 0.2:
        text = "{0}.put({1}.long() % {0}.numel(), torch.ones_like({1}, dtype={0}.dtype), accumulate=True)"
    return Line(text, (name, *places))  # type: ignore[arg-type]


def drawn_index(pool: Pool, x: Tensor, *, allows_masks: bool) -> tuple[str, list[str], bool] | None:
    """Returns an index into a tensor, what it reads, and whether the shape of what it takes depends on data."""
    rng, parts, reads, axis, has_mask = pool.rng, [], [], 0, False
    while axis < x.ndim:
        size, kind = x.shape[axis], rng.random()
        if kind < 0.3:
            places = pool.name(is_index)
            if places is None:
                return None
            reads.append(places)
            parts.append(inside(pool, len(reads), f"{{0}}.shape[{axis}]"))
        elif kind < 0.4:
            parts.append(str(rng.randrange(-size, size)))
        elif kind < 0.5:
            parts.append("None")
            continue
        elif kind < 0.6 and "..." not in parts:
            parts.append("...")
            axis += rng.randint(0, x.ndim - axis - 1)
            continue
        elif kind < 0.7 and allows_masks:
            mask = pool.name(
                lambda m, axis=axis: m.dtype is torch.bool and m.shape == x.shape[axis : axis + m.ndim] and m.ndim > 0
            )  # type: ignore[misc]
            if mask is None:
                return None
            reads.append(mask)
            parts.append(f"{{{len(reads)}}}")
            axis += pool.tensors[mask].ndim - 1
            has_mask = True
        else:
            parts.append(rng.choice((":", "1:", "::2", ":-1", "-2:")))
        axis += 1
        if rng.random() < 0.2:
            break
    return ", ".join(parts), reads, has_mask


@operation(4)
def masked(pool: Pool) -> Line | None:
    """Returns a tensor with something written where a mask holds."""
    name = pool.name(is_number)
    if name is None:
        return None
    x = pool.tensors[name]
    mask = pool.name(lambda m: m.dtype is torch.bool and m.shape == x.shape)
    if mask is None:
        return None
    found = ["{0}.index_put(({1},), {0}.sum().to({0}.dtype))", "{0}.masked_fill({1}, 3)"]
    found += ["{0}.masked_scatter({1}, {0}.flip(0))" if x.ndim else "{0}.masked_fill({1}, {0})"]
    if is_float(x):
        found[0] = "{0}.index_put(({1},), {0}.amax())"
    return Line(pool.rng.choice(found), (name, mask))


@operation(5)
def scattered(pool: Pool) -> Line | None:
    """Returns a tensor with a part replaced: a slice, a place, a diagonal, or any strided part."""
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    x, rng = pool.tensors[name], pool.rng
    axis = rng.randrange(x.ndim)
    size, colons = x.shape[axis], ":, " * axis
    start, step = rng.randrange(size), rng.randint(1, 2)
    at = rng.randrange(-size, size)
    made = rng.choice(("{part}.clone()", "torch.ones_like({part})", "{part}.flip(0)", "{part} & {part}"))
    if is_number(x):
        made = rng.choice((made, "{part} + 1", "-{part}" if x.dtype.is_signed else "{part}"))
    found = [
        (f"{{{{0}}}}.slice_scatter({{made}}, {axis}, {start}, None, {step})", f"{{0}}[{colons}{start}::{step}]"),
        (f"{{{{0}}}}.slice_scatter({{made}}, {axis}, {start}, {size}, 1)", f"{{0}}[{colons}{start}:{size}]"),
        (f"{{{{0}}}}.select_scatter({{made}}, {axis}, {at})", f"{{0}}.select({axis}, {at})"),
    ]
    if x.ndim > 1:
        offset = rng.randint(-1, 1)
        found += [(f"{{{{0}}}}.diagonal_scatter({{made}}, {offset})", f"{{0}}.diagonal({offset})")]
    if not pool.is_dynamic and x.is_contiguous():
        count = max(x.numel() // 2, 1)
        found += [(f"{{{{0}}}}.as_strided_scatter({{made}}, ({count},), (1,), 0)", f"{{0}}.reshape(-1)[:{count}]")]
    outer, part = rng.choice(found)
    if x.dtype.is_floating_point:
        made = made.replace("{part} & {part}", "{part} * 2")
    if made == "{part}.flip(0)" and outer.startswith("{{0}}.select") and x.ndim == 1:
        made = "{part}.clone()"
    return Line(outer.format(made=made.format(part=part)), (name,))
