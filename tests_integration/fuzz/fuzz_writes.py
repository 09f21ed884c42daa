"""Lines that write: in place, through views, by index, and into tensors given as ``out=``."""

from __future__ import annotations

import torch

from fuzz_casts import name_of
from fuzz_indexing import Places, drawn_places
from fuzz_pool import Line, Pool, fits_into, is_apart, is_float, is_number, operation, overlaps


def target_of(pool: Pool) -> str | None:
    """Returns the name of a tensor that may be written."""
    if not pool.is_written:
        return None
    return pool.name(lambda x: x.numel() > 0 and not overlaps(x) and not pool.is_kept(x) and not pool.is_window(x))


@operation(12)
def mutation(pool: Pool) -> Line | None:
    """Returns a line that writes into a tensor, or into a part of it."""
    name = target_of(pool)
    if name is None:
        return None
    x, rng = pool.tensors[name], pool.rng
    other = pool.name(lambda y: y.dtype == x.dtype and fits_into(y.shape, x) and is_apart(x, y))
    found = ["{0}.zero_()", "{0}.fill_(1)", "{0}.copy_({1})"]
    if is_number(x):
        found += ["{0}.add_(1)", "{0}.mul_(2).clamp_(-64, 64)", "{0}.add_({1})", "{0}.sub_({1})", "{0}.mul_({0})"]
        found += ["{0}.clamp_(0, 3)", "{0}.abs_()"]
    if is_float(x):
        found += [
            "{0}.relu_()",
            "{0}.neg_()",
            "{0}.mul_(0.3)",
            "{0}.sigmoid_()",
            "{0}.addcmul_({0}, {1}).clamp_(-9, 9)",
        ]
        found += ["{0}.lerp_({1}, 0.5)", "{0}.add_({1}, alpha=0.5)"]
    elif is_number(x):
        found += ["{0}.bitwise_and_(7)", "{0}.bitwise_xor_({1})", "{0}.remainder_(5)", "{0}.floor_divide_(3)"]
    else:
        found += ["{0}.logical_not_()", "{0}.logical_and_({1})"]
    if x.ndim:
        found += writes_into_parts(pool, name, other)
    template = rng.choice(found)
    if ("masked_fill_({0} ==" in template or "floor_divide" in template) and pool.is_inexact(name):
        return None
    if "{1}" not in template:
        return Line(template, (name,), assigns=False, writes=name)
    return Line(template, (name, other), assigns=False, writes=name) if other else None


def writes_into_parts(pool: Pool, name: str, other: str | None) -> list[str]:
    """Returns lines that write into parts of a tensor of at least one dim."""
    x, rng = pool.tensors[name], pool.rng
    size = x.shape[0]
    found = [f"{{0}}[{rng.randrange(-size, size)}] = 1", f"{{0}}[{rng.randrange(size)}:].fill_(0)"]
    found += ["{0}[..., 0] = {0}[..., -1].clone()", "{0}[1:] = {0}[:-1].clone()", "{0}.copy_({0}.flip(0))"]
    found += ["{0}[::2].copy_({1}[::2])" if other and pool.tensors[other].shape == x.shape else "{0}[::2].zero_()"]
    found += ["{0}.masked_fill_({0} == 1, 0)", "{0}[..., 1:2] = 0", "{0}.unsqueeze(0).select(-1, -1).zero_()"]
    if is_number(x):
        found += ["{0}[0].add_(2)", "{0}.reshape(-1)[::3] = 2", "{0}[-1:] += 1", "{0}.flip(-1).add_(1)"]
    if x.ndim > 1:
        found += ["{0}.mT[0] = 0", "{0}.diagonal().fill_(1)", "{0}.transpose(0, 1)[1:].zero_()", "{0}[:, ::2] = 1"]
    return found


@operation(4)
def indexed_write(pool: Pool) -> Line | None:
    """Returns a line that writes where an index points; where places come more than once, one number, or sums."""
    name = target_of(pool)
    if name is None:
        return None
    x, is_alike = pool.tensors[name], pool.rng.random() < 0.4
    if x.ndim == 0:
        return None
    places = drawn_places(pool, x, 1, is_alike=is_alike)
    if any(not is_apart(x, pool.tensors[each]) for each in places.reads):
        return None
    at = f"({places.text} % {{0}}.shape[0]).long()"
    found = [f"{{0}}[{at}] = 1", f"{{0}}.index_put_(({at},), torch.zeros((), dtype={{0}}.dtype, device=device))"]
    if is_number(x):
        found += [f"{{0}}.index_put_(({at},), {{0}}[{at}], accumulate=True)"]
    if is_alike:
        found += [f"{{0}}.scatter_(0, {at}, 3)"]
        if is_number(x):
            found += [f"{{0}}.scatter_add_(0, {at}, {{0}}.gather(0, {at}))"]
            found += [f"{{0}}.scatter_reduce_(0, {at}, {{0}}.gather(0, {at}), 'amax')"]
    elif len(places.shape) == 1:
        found += writes_of_lines(pool, x, places, at)
    return Line(pool.rng.choice(found), (name, *places.reads), assigns=False, writes=name)


def writes_of_lines(pool: Pool, x: torch.Tensor, places: Places, at: str) -> list[str]:
    """Returns lines that write whole lines of a tensor, at the places of an index of one dim."""
    count, found = places.shape[0], [f"{{0}}.index_fill_(0, {at}, 2)"]
    if count <= x.shape[0] and not pool.is_dynamic:
        # The places of a sort come once each.
        once = f"{places.text}.argsort(stable=True)"
        found += [f"{{0}}[{once}] = {{0}}[:{count}].clone()", f"{{0}}.index_copy_(0, {once}, {{0}}[:{count}].flip(0))"]
    if is_number(x):
        found += [f"{{0}}.index_add_(0, {at}, {{0}}.index_select(0, {at}))"]
    return found


@operation(4)
def conversion_write(pool: Pool) -> Line | None:
    """Returns a line that copies numbers of another type, which a narrower one rounds."""
    name = target_of(pool)
    if name is None:
        return None
    x = pool.tensors[name]
    other = pool.name(lambda y: is_float(x) and is_float(y) and fits_into(y.shape, x) and is_apart(x, y))
    if other is None:
        return None
    rounds = f"rounded({{1}}, '{name_of(x.dtype)}')" if pool.tensors[other].dtype is not x.dtype else "{1}"
    return Line("{0}.copy_({1})", (name, other), assigns=False, writes=name, wide=f"{{0}}.copy_({rounds})")


@operation(4)
def given_output(pool: Pool) -> Line | None:
    """Returns a line that writes into a tensor given as ``out=``, of the shape and type of the result."""
    name = target_of(pool)
    if name is None or pool.is_trained:
        return None
    x = pool.tensors[name]
    if x.dtype is torch.bool or not x.is_contiguous():  # dynamo takes no others
        return None

    def fits(y: torch.Tensor) -> bool:
        return y.dtype == x.dtype and y.shape == x.shape and is_apart(x, y)

    first, second = pool.name(fits), pool.name(fits)
    if first is None or second is None:
        return None
    found = ["torch.add({1}, {2}, out={0})", "torch.sub({1}, {2}, out={0})", "torch.maximum({1}, {2}, out={0})"]
    if is_float(x):
        found += ["torch.sin({1}, out={0})", "torch.mul({1}, 0.5, out={0})", "torch.clamp({2}, -1, 1, out={0})"]
    if x.ndim:
        found += ["torch.cumsum({1}, 0, dtype={0}.dtype, out={0})"]
    return Line(pool.rng.choice(found), (name, first, second), assigns=False, writes=name)
