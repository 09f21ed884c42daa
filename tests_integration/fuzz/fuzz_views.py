"""Views, rearrangements and joins, as lines of the fuzzer's programs."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzz_pool import Line, Pool, listed, operation


@operation(14)
def view(pool: Pool) -> Line | None:
    name = pool.name()
    if name is None:
        return None
    return Line(pool.rng.choice(views_of(pool, pool.tensors[name])), (name,))


def views_of(pool: Pool, x: Tensor) -> list[str]:
    """Returns views of a tensor and copies in another order."""
    rng = pool.rng
    found = [f"{{0}}.unsqueeze({rng.randint(0, x.ndim)})", "{0}.reshape(-1)", "{0}.squeeze()"]
    if x.ndim:
        found += views_along(pool, x, rng.randrange(x.ndim))
    if x.ndim > 1:
        found += [f"{{0}}.diagonal({rng.randint(-1, 1)})", "{0}.mT", "{0}.flatten(0, 1)", "{0}.tril()", "{0}.triu(1)"]
        found += ["{0}.rot90()", "{0}.mT", "{0}.mT[1:]", "{0}.mT.contiguous()", "{0}.transpose(-1, -2).reshape(-1)"]
    if x.ndim == 4:
        found += ["{0}.contiguous(memory_format=torch.channels_last)", "{0}.permute(0, 2, 3, 1)"]
    if 1 in x.shape:
        found.append(f"{{0}}.expand({listed(pool.extent(size) if size != 1 else 3 for size in x.shape)})")
    if x.ndim < 4:
        found += [f"{{0}}.repeat({listed([2] * x.ndim)})", f"{{0}}.expand({listed([2, *[-1] * x.ndim])})"]
        found += ["F.pad({0}, (1, 2), value=1)" if x.dtype is not torch.bool else "{0}.clone()"]
        found += ["F.pad({0}, (-1, 1))" if x.dtype is not torch.bool else "{0}.clone()"]
    return found


def views_along(pool: Pool, x: Tensor, axis: int) -> list[str]:
    """Returns views of a tensor that concern one of its dims."""
    rng, size, extent = pool.rng, x.shape[axis], f"{{0}}.shape[{axis}]"
    order = rng.sample(range(x.ndim), x.ndim)
    found = [f"{{0}}.permute({order})", f"{{0}}.transpose(0, {axis})", f"{{0}}.flip({axis})", "{0}[..., None]"]
    found += [f"{{0}}.movedim(0, {axis})", "{0}[None]", f"{{0}}.roll({rng.randint(-3, 3)}, {axis})", "{0}.mT.mT"]
    found += [f"{{0}}.flatten({axis})", f"{{0}}.narrow({axis}, {extent} // 2, {extent} - {extent} // 2)"]
    if size:
        colons = ":, " * axis
        found += [f"{{0}}.select({axis}, {rng.randrange(-size, size)})", f"{{0}}[{colons}::2]"]
        found += [f"{{0}}[{colons}{rng.randrange(size)}:]", f"{{0}}[{colons}:{rng.randint(1, size)}]"]
        found += [f"{{0}}[{colons}{size}:]", f"{{0}}[{colons}1:-1]", f"{{0}}[{colons}-2:]", f"{{0}}[{colons}1::3]"]
        found += [f"{{0}}.unfold({axis}, {min(2, size)}, {rng.randint(1, 3)})", f"{{0}}.chunk(2, {axis})[0]"]
        found += [f"{{0}}.unbind({axis})[-1]", f"{{0}}.split({(size + 1) // 2}, {axis})[-1]"]
        found += [f"{{0}}.repeat_interleave(2, {axis})", f"{{0}}.unflatten({axis}, (-1, 1))"]
    if size % 2 == 0 and size and not pool.is_dynamic:
        found += [f"{{0}}.unflatten({axis}, (2, -1))"]
    return found


@operation(5)
def joined(pool: Pool) -> Line | None:
    first = pool.name(lambda x: x.ndim > 0)
    if first is None:
        return None
    x = pool.tensors[first]
    axis = pool.rng.randrange(x.ndim)

    def fits(y: Tensor) -> bool:
        rest = [size for at, size in enumerate(y.shape) if at != axis]
        return y.ndim == x.ndim and rest == [size for at, size in enumerate(x.shape) if at != axis]

    second = pool.name(fits) or first
    same = pool.tensors[second].shape == x.shape
    stacked = same and pool.rng.random() < 0.4
    return Line(f"torch.{'stack' if stacked else 'cat'}([{{0}}, {{1}}], {axis})", (first, second))


@operation(3)
def seen_otherwise(pool: Pool) -> Line | None:
    """Returns integers, or the bits of floats that the program returns, seen as another type."""
    name = pool.name(lambda x: x.dtype is not torch.bool and not pool.is_trained)
    if name is None:
        return None
    x = pool.tensors[name]
    kinds = {1: ("int8", "uint8"), 2: ("int16", "uint8"), 4: ("int32", "uint8", "int16"), 8: ("int64", "int32")}
    kind = pool.rng.choice(kinds[x.dtype.itemsize])
    text = f"{{0}}.view(torch.{kind})"
    if not x.is_floating_point():
        return Line(text, (name,))
    if not may_be_stored(pool, name):
        return None
    # The numbers in float64 lie elsewhere: neither they nor the bits may change from now on.
    pool.kept.add(name)
    own = str(x.dtype).removeprefix("torch.")
    return Line(text, (name,), wide=f"bits({{0}}, '{own}', '{kind}')", stores=name)


def may_be_stored(pool: Pool, name: str) -> bool:
    """Returns whether the program can return a tensor as it is, with what it holds taken for given by its readers."""
    x = pool.tensors[name]
    is_plain = not pool.shares(name) and x.numel() > 0 and name.startswith("t")
    return is_plain and 0 not in x.stride() and not pool.is_kept(x)
