"""Reads and writes by index, duplicates included, as lines of the fuzzer's programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz_pool import Line, Pool, is_float, is_number, operation


@dataclass(frozen=True, slots=True)
class Places:
    """Integers that can be places: their text, the names that it reads, and their shape in eager."""

    text: str
    reads: tuple[str, ...]
    shape: torch.Size


def is_index(x: Tensor) -> bool:
    """Returns whether integers can be places; a 0-d index is read by the host."""
    return x.dtype in (torch.int64, torch.int32) and x.ndim > 0


def drawn_places(pool: Pool, x: Tensor, number: int, *, is_alike: bool = False) -> Places:
    """Returns integers for an index into ``x``, which is ``{0}``: a tensor that there is, as ``{number}``, or new ones.

    With ``is_alike`` they have as many dims as it has, and are no longer along any of them.
    """

    def fits(y: Tensor) -> bool:
        return is_index(y) and (
            not is_alike or (y.ndim == x.ndim and all(a <= b for a, b in zip(y.shape, x.shape, strict=True)))
        )

    name = pool.name(fits)
    if name is not None and pool.rng.random() < 0.7:
        return Places(f"{{{number}}}", (name,), pool.tensors[name].shape)
    factor, more = pool.rng.choice((1, 2, 5)), pool.rng.randrange(7)
    if is_alike:
        count = "torch.arange({0}.numel(), device=device).reshape({0}.shape)"
        return Places(f"({count} * {factor} + {more})", (), x.shape)
    count = pool.rng.choice((1, 3, x.shape[0], 2 * x.shape[0] + 1))
    extent = f"{{0}}.shape[0]{' * 2 + 1' if count > x.shape[0] else ''}" if count >= x.shape[0] else str(count)
    return Places(f"(torch.arange({extent}, device=device) * {factor} + {more})", (), torch.Size((count,)))


def inside(pool: Pool, places: Places, extent: str, *, is_signed: bool = True) -> str:
    """Returns an index in bounds, from either end now and then."""
    text = f"({places.text} % {extent})"
    return f"({text} - {extent})" if is_signed and pool.rng.random() < 0.25 else text


@operation(6)
def indexed(pool: Pool) -> Line | None:
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    x, is_alike = pool.tensors[name], pool.rng.random() < 0.5
    axis, places = pool.rng.randrange(x.ndim), drawn_places(pool, x, 1, is_alike=is_alike)
    at = inside(pool, places, f"{{0}}.shape[{axis}]", is_signed=False)
    if is_alike:
        return Line(pool.rng.choice(along_axis(pool, x, axis, f"{at}.long()")), (name, *places.reads))
    found = [f"{{0}}.take(({places.text} % {{0}}.numel()).long())"]
    if len(places.shape) == 1:
        found += along_lines(pool, x, axis, at)
    if x.dtype is torch.float32 and x.ndim == 2:
        found += [f"F.embedding({places.text} % {{0}}.shape[0], {{0}})"]
    return Line(pool.rng.choice(found), (name, *places.reads))


def along_lines(pool: Pool, x: Tensor, axis: int, at: str) -> list[str]:
    """Returns reads and writes of whole lines, at the places of an index of one dim."""
    rows = f"{{0}}.index_select({axis}, {at})"
    found = [rows, f"{{0}}.index_fill({axis}, {at}.long(), 2)"]
    if is_number(x):
        reduce, keeps = pool.rng.choice(("amax", "amin", "prod", "mean")), pool.rng.random() < 0.5
        clamped = f"{rows}.clamp(1, 2)" if reduce == "prod" else rows
        found += [f"{{0}}.index_add({axis}, {at}, {rows})", f"torch.zeros_like({{0}}).index_add({axis}, {at}, {rows})"]
        found += [f"{{0}}.index_reduce({axis}, {at}.long(), {clamped}, '{reduce}', include_self={keeps})"]
    return found


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
    x, reads, texts = pool.tensors[name], [name], []
    for axis in range(pool.rng.randint(1, min(2, x.ndim))):
        places = drawn_places(pool, x, len(reads))
        reads += places.reads
        texts.append(inside(pool, places, f"{{0}}.shape[{axis}]") + ".long()")
    listed = ", ".join(texts)
    adds = pool.rng.random() < 0.5 and is_number(x)
    values = f"{{0}}[{listed}]" if adds else "torch.ones((), dtype={0}.dtype, device=device)"
    text = f"{{0}}.index_put(({listed},), {values}, accumulate={adds})"
    if pool.rng.random() < 0.15 and is_number(x):
        at = f"({texts[0]} % {{0}}.numel())"
        text = f"{{0}}.put({at}, torch.ones_like({at}, dtype={{0}}.dtype), accumulate=True)"
    return Line(text, tuple(reads))


def drawn_index(pool: Pool, x: Tensor, *, allows_masks: bool) -> tuple[str, list[str], bool] | None:
    """Returns an index into a tensor, what it reads, and whether the shape of what it takes depends on data."""
    rng, parts, reads, axis, has_mask = pool.rng, [], [], 0, False
    while axis < x.ndim:
        size, kind = x.shape[axis], rng.random()
        if kind < 0.3:
            places = drawn_places(pool, x, len(reads) + 1)
            reads += places.reads
            parts.append(inside(pool, places, f"{{0}}.shape[{axis}]"))
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
    where = "{1}" if mask else "(torch.arange({0}.numel(), device=device).reshape({0}.shape) % 3 == 0)"
    sums = "{0}.amax()" if is_float(x) else "{0}.sum().to({0}.dtype)"
    found = [f"{{0}}.index_put(({where},), {sums})", f"{{0}}.masked_fill({where}, 3)"]
    found += [f"{{0}}.masked_scatter({where}, {{0}}.flip(0))" if x.ndim else f"{{0}}.masked_fill({where}, {{0}})"]
    text = pool.rng.choice(found)
    # What a mask points at is as long as the mask has places, until the compiler sees that it need not know how long.
    return Line(text, (name, mask) if mask else (name,), has_run_time_size="index_put" in text)


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
