"""What the fuzzer's programs are made of: each operation writes one line over tensors that it picks from a pool.

Lines whose result jumps where a number changes by a rounding (comparisons, rounding, sorting, casts to integers) read
only numbers that are exact on every way through the program: small multiples of 1/8 and what sums and products of them
give, so that no two right compilers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from fuzz_program import Statement

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True)
class Line:
    """What an operation writes.

    Attributes:
        template, reads: as in `Statement`.
        assigns: whether the line has a value.
        writes: the name whose storage it writes, None for none.
        is_exact: whether exact operands give exact results.
    """

    template: str
    reads: tuple[str, ...]
    assigns: bool = True
    writes: str | None = None
    is_exact: bool = False

    def statement(self, target: str) -> Statement:
        """Returns the line with a name for its value."""
        return Statement(target if self.assigns else None, self.template, self.reads)


class Pool:
    """The tensors of a program under construction, as eager has them, and which of them are exact."""

    def __init__(self, rng: Random, sizes: tuple[int, ...], *, is_written: bool, is_trained: bool) -> None:
        self.rng, self.sizes, self.is_written, self.is_trained = rng, sizes, is_written, is_trained
        self.tensors: dict[str, Tensor] = {}
        self.inexact: set[int] = set()
        self.kept: set[int] = set()  # storages that must not be written: inputs whose gradients are asked for

    def name(self, wanted: Callable[[Tensor], bool] = lambda x: True, *, exact: bool = False) -> str | None:
        """Returns the name of a tensor, the younger the likelier, or None if there is none."""
        names = [name for name, x in self.tensors.items() if wanted(x) and not (exact and self.is_inexact(name))]
        if not names:
            return None
        return names[-1 - min(int(self.rng.expovariate(0.35)), len(names) - 1)]

    def is_inexact(self, name: str) -> bool:
        """Returns whether a tensor holds floats that another order of operations would round otherwise."""
        x = self.tensors[name]
        return x.is_floating_point() and storage(x) in self.inexact

    def shape(self) -> tuple[int, ...]:
        """Returns a shape over the sizes of the program."""
        return tuple(self.rng.choice(self.sizes) for _ in range(self.rng.randint(0, 3)))


def storage(x: Tensor) -> int:
    """Returns a number that tensors over one storage share."""
    return x.untyped_storage()._cdata


Operation = Callable[[Pool], Line | None]
OPERATIONS: list[tuple[int, Operation]] = []
"""Operations with their weights."""


def operation(weight: int) -> Callable[[Operation], Operation]:
    """Returns a decorator that enters a function in the table."""

    def enter(function: Operation) -> Operation:
        OPERATIONS.append((weight, function))
        return function

    return enter


def is_float(x: Tensor) -> bool:
    return x.is_floating_point()


def is_integer(x: Tensor) -> bool:
    return x.dtype in INTEGERS


def is_number(x: Tensor) -> bool:
    return x.dtype is not torch.bool


def broadcasts(x: Tensor) -> Callable[[Tensor], bool]:
    """Returns whether another tensor is of the same kind and broadcasts with this one."""

    def fits(y: Tensor) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return y.dtype == x.dtype and all(a == b or 1 in (a, b) for a, b in pairs)

    return fits


def listed(values: Iterable[Any]) -> str:
    return "(" + "".join(f"{value}, " for value in values) + ")"


UNARY = (
    "{0}.sin()", "{0}.cos()", "{0}.tanh()", "{0}.sigmoid()", "{0}.clamp(-4, 4).exp()", "F.gelu({0})", "F.silu({0})",
    "F.softplus({0})", "{0}.abs().log1p()", "{0}.erf()", "({0}.abs() + 1).rsqrt()", "({0}.abs() + 1).sqrt()",
    "1 / ({0}.abs() + 1)", "F.elu({0})", "{0}.atan()", "F.mish({0})", "{0}.expm1().clamp(max=8)", "F.hardtanh({0})",
    "F.leaky_relu({0}, 0.1)", "({0}.abs() + 0.5).log()", "{0} * 0.3", "{0} / 3", "({0}.abs() + 1) ** 1.5",
)  # fmt: skip
EXACT_UNARY = (
    "-{0}", "{0}.abs()", "{0} * 2", "{0} + 1", "1 - {0}", "{0}.clamp(-1, 1)", "{0}.square().clamp(max=64)", "{0} * 0.5",
    "torch.relu({0})", "{0}.clone()", "{0}.contiguous()", "torch.zeros_like({0})", "torch.ones_like({0})", "{0} - 0.25",
)  # fmt: skip
JUMPS = (
    "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()", "{0} > 0", "{0} <= 0.25", "{0} == 0",
    "torch.heaviside({0}, torch.ones_like({0}))", "{0} != 1", "{0}.frac()", "{0}.isnan()", "{0}.signbit()",
    "{0}.to(torch.int64)", "{0}.to(torch.int32)", "torch.remainder({0}, 2)", "torch.fmod({0}, 1.5)", "{0} // 0.5",
)  # fmt: skip
INTEGER_UNARY = (
    "{0} // 3", "{0} % 5", "-{0}", "{0} & 7", "{0} | 3", "{0} ^ 5", "~{0}", "{0} << 1", "{0} >> 1", "{0}.abs()",
    "{0} * 3 % 101", "torch.fmod({0}, 4)", "{0}.clamp(-6, 9)", "{0} > 2", "{0}.to(torch.float32)", "{0} == 1",
    "torch.div({0}, -3, rounding_mode='floor')", "torch.div({0}, 7, rounding_mode='trunc')", "{0}.sign()", "{0} / 4",
    "{0}.to(torch.bool)", "{0}.remainder(-4)", "{0}.to(torch.int32)", "{0}.to(torch.float64)",
)  # fmt: skip
BOOL_UNARY = ("~{0}", "{0}.to(torch.float32)", "{0}.to(torch.int64)", "{0}.any()", "{0}.all()", "{0}.sum()")
BINARY = (
    "{0} / ({1}.abs() + 1)", "torch.hypot({0}, {1})", "torch.atan2({0}, {1}.abs() + 1)",
    "torch.logaddexp({0}, {1})", "{0}.lerp({1}, 0.3)", "torch.addcdiv({0}, {1}, {1}.abs() + 2)", "({0} - {1}).tanh()",
    "F.smooth_l1_loss({0}, {1}, reduction='none')",
)  # fmt: skip
EXACT_BINARY = (
    "{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "({0} * {1}).clamp(-64, 64)",
    "torch.add({0}, {1}, alpha=2)", "torch.where({0}.isnan(), {0}, {1})", "torch.addcmul({0}, {0}, {1}).clamp(-64, 64)",
)  # fmt: skip
INTEGER_BINARY = (
    "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} // ({1}.abs() + 1)", "{0} % ({1}.abs() + 2)", "{0} > {1}", "{0} == {1}",
    "torch.fmod({0}, {1}.abs() + 1)", "{0} << ({1} & 3)", "{0} >> ({1} & 3)", "({0} * {1}) % 1009",
)  # fmt: skip
BOOL_BINARY = ("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} == {1}")


@operation(10)
def unary(pool: Pool) -> Line | None:
    name = pool.name()
    if name is None:
        return None
    x = pool.tensors[name]
    if not is_float(x):
        return Line(pool.rng.choice(BOOL_UNARY if x.dtype is torch.bool else INTEGER_UNARY), (name,), is_exact=True)
    if pool.rng.random() < 0.4:
        return Line(pool.rng.choice(EXACT_UNARY), (name,), is_exact=True)
    return Line(pool.rng.choice(UNARY), (name,))


@operation(4)
def jump(pool: Pool) -> Line | None:
    name = pool.name(is_float, exact=True)
    return name and Line(pool.rng.choice(JUMPS), (name,), is_exact=True)  # type: ignore[return-value]


@operation(12)
def binary(pool: Pool) -> Line | None:
    first = pool.name()
    if first is None:
        return None
    x = pool.tensors[first]
    second = pool.name(broadcasts(x)) or first
    if pool.rng.random() < 0.5:
        first, second = second, first
    if not is_float(x):
        chosen = BOOL_BINARY if x.dtype is torch.bool else (*INTEGER_BINARY, *EXACT_BINARY[:4])
        return Line(pool.rng.choice(chosen), (first, second), is_exact=True)
    is_exact = pool.rng.random() < 0.5
    return Line(pool.rng.choice(EXACT_BINARY if is_exact else BINARY), (first, second), is_exact=is_exact)


@operation(3)
def mixed(pool: Pool) -> Line | None:
    """Returns arithmetic on tensors of two dtypes: what promotion makes of it."""
    first, second = pool.name(is_number), pool.name(is_number)
    if first is None or second is None:
        return None
    x, y = pool.tensors[first], pool.tensors[second]
    if not broadcasts(x)(y.to(x.dtype)):
        return None
    return Line(pool.rng.choice(("{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})")), (first, second), is_exact=True)


@operation(4)
def choice(pool: Pool) -> Line | None:
    mask, first = pool.name(lambda x: x.dtype is torch.bool), pool.name(is_number)
    if mask is None or first is None:
        return None
    x = pool.tensors[first]
    if not broadcasts(x)(pool.tensors[mask].to(x.dtype)):
        return None
    second = pool.name(broadcasts(x)) or first
    template = pool.rng.choice(("torch.where({0}, {1}, {2})", "torch.where({0}, {1}, 0)", "{1}.masked_fill({0}, 2)"))
    if template.startswith("{1}"):
        shape = torch.broadcast_shapes(x.shape, pool.tensors[mask].shape)
        if shape != x.shape:
            return None
    return Line(template, (mask, first, second), is_exact=True)


@operation(8)
def reduction(pool: Pool) -> Line | None:
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    x = pool.tensors[name]
    dim, keep = pool.rng.randrange(-x.ndim, x.ndim), pool.rng.random() < 0.5
    dims = listed(sorted(pool.rng.sample(range(x.ndim), pool.rng.randint(1, x.ndim))))
    if x.dtype is torch.bool:
        return Line(pool.rng.choice((f"{{0}}.any({dim}, {keep})", f"{{0}}.all({dim}, {keep})")), (name,), is_exact=True)
    exact = [f"{{0}}.amax({dims}, {keep})", f"{{0}}.amin({dims}, {keep})", f"{{0}}.sum({dims}, {keep})", "{0}.sum()"]
    exact += [f"{{0}}.max({dim}, {keep}).values", f"{{0}}.cummax({dim}).values", f"{{0}}.cumsum({dim})"]
    if not is_float(x):
        exact += [f"{{0}}.argmax({dim}, {keep})", f"{{0}}.count_nonzero({dim})", f"{{0}}.clamp(-2, 2).prod({dim})"]
        return Line(pool.rng.choice(exact), (name,), is_exact=True)
    inexact = [f"{{0}}.mean({dims}, {keep})", f"{{0}}.softmax({dim})", f"{{0}}.log_softmax({dim})"]
    inexact += [f"{{0}}.logsumexp({dims}, {keep})", f"({{0}} * 0.5).clamp(-2, 2).cumprod({dim})", "{0}.mean()"]
    # Of one element, torch 2.11's fake tensors keep the dim.
    inexact += [f"{{0}}.abs().add(0.5).norm(dim={dim}, keepdim={keep or x.shape[dim] == 1})"]
    if x.shape[dim] > 1:
        inexact += [f"torch.linalg.vector_norm({{0}}, 1, {dim})"]
        inexact += [f"{{0}}.var({dim}, keepdim={keep})", f"({{0}}.var({dim}, keepdim=True) + 0.1).sqrt()"]
        inexact += [f"F.layer_norm({{0}}, ({x.shape[-1]},))"]
    if not pool.is_inexact(name):
        # Of equal numbers an unstable sort gives the gradient of any to any: on CUDA eager's is not the first's.
        order = f"{{0}}.sort(dim={dim}, stable=True)" if pool.is_trained else f"{{0}}.sort({dim})"
        largest = f"{{0}}.sort(dim={dim}, stable=True, descending=True).values.narrow({dim}, 0, 1)"
        exact += [f"{{0}}.argmax({dim}, {keep})", f"{{0}}.argmin({dim})", f"{order}.values", "{0}.any()"]
        exact += [
            f"{{0}}.sort({dim}, stable=True).indices",
            largest if pool.is_trained else f"{{0}}.topk(1, {dim}).values",
            f"{{0}}.max({dim}).indices",
        ]
    is_exact = pool.rng.random() < 0.5
    return Line(pool.rng.choice(exact if is_exact else inexact), (name,), is_exact=is_exact)


@operation(14)
def view(pool: Pool) -> Line | None:
    name = pool.name()
    if name is None:
        return None
    x, rng = pool.tensors[name], pool.rng
    found = [f"{{0}}.unsqueeze({rng.randint(0, x.ndim)})", "{0}.reshape(-1)", "{0}.squeeze()"]
    if x.ndim:
        axis = rng.randrange(x.ndim)
        size = x.shape[axis]
        order = rng.sample(range(x.ndim), x.ndim)
        found += [f"{{0}}.permute({order})", f"{{0}}.transpose(0, {axis})", f"{{0}}.flip({axis})", "{0}[..., None]"]
        found += [f"{{0}}.movedim(0, {axis})", "{0}[None]", f"{{0}}.roll({rng.randint(-3, 3)}, {axis})", "{0}.mT.mT"]
        found += [f"{{0}}.flatten({axis})", f"{{0}}.narrow({axis}, {size // 2}, {size - size // 2})"]
        if size:
            colons = ":, " * axis
            found += [f"{{0}}.select({axis}, {rng.randrange(-size, size)})", f"{{0}}[{colons}::2]"]
            found += [f"{{0}}[{colons}{rng.randrange(size)}:]", f"{{0}}[{colons}:{rng.randint(1, size)}]"]
            found += [
                f"{{0}}.unfold({axis}, {min(2, size)}, 1)",
                f"{{0}}.chunk(2, {axis})[0]",
                f"{{0}}.unbind({axis})[-1]",
            ]
            found += [f"{{0}}.split({(size + 1) // 2}, {axis})[-1]", f"{{0}}.repeat_interleave(2, {axis})"]
        if x.ndim > 1:
            found += [
                f"{{0}}.diagonal({rng.randint(-1, 1)})",
                "{0}.mT",
                "{0}.flatten(0, 1)",
                "{0}.tril()",
                "{0}.triu(1)",
            ]
            found += ["{0}.rot90()"]
        if 1 in x.shape:
            found.append(f"{{0}}.expand({listed(size if size != 1 else 3 for size in x.shape)})")
        if x.ndim < 4:
            found += [f"{{0}}.repeat({listed([2] * x.ndim)})", f"{{0}}.expand({listed((2, *x.shape))})"]
            found += ["F.pad({0}, (1, 2), value=1)" if x.dtype is not torch.bool else "{0}.clone()"]
    return Line(rng.choice(found), (name,), is_exact=True)


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
    template = (
        f"torch.stack([{{0}}, {{1}}], {axis})"
        if same and pool.rng.random() < 0.4
        else f"torch.cat([{{0}}, {{1}}], {axis})"
    )
    return Line(template, (first, second), is_exact=True)


@operation(6)
def indexed(pool: Pool) -> Line | None:
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    places = pool.name(lambda x: x.dtype is torch.int64 and x.ndim > 0)  # a 0-d index is read by the host
    if name is None or places is None:
        return None
    x, index = pool.tensors[name], pool.tensors[places]
    axis = pool.rng.randrange(x.ndim)
    inside = f"({{1}} % {x.shape[axis]})"
    found = [f"{{0}}[{inside}]"] if axis == 0 else [f"{{0}}[{':, ' * axis}{inside}]"]
    if index.ndim == 1:
        found.append(f"{{0}}.index_select({axis}, {inside})")
        if is_number(x):
            rows = f"{{0}}.index_select({axis}, {inside})"
            found.append(f"{{0}}.index_add({axis}, {inside}, {rows})")
    if index.ndim == x.ndim:
        fits = all(at == axis or a <= b for at, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)))
        if fits:
            found.append(f"{{0}}.gather({axis}, {inside})")
            if is_number(x):
                found.append(f"{{0}}.scatter_add({axis}, {inside}, {{0}}.gather({axis}, {inside}))")
                found.append(f"{{0}}.scatter({axis}, {inside}, 1)")
    return Line(pool.rng.choice(found), (name, places), is_exact=True)


@operation(4)
def product(pool: Pool) -> Line | None:
    first = pool.name(lambda x: is_float(x) and x.ndim in (2, 3) and 0 not in x.shape)
    if first is None:
        return None
    x = pool.tensors[first]
    second = pool.name(lambda y: y.dtype == x.dtype and y.ndim == 2 and y.shape[0] == x.shape[-1])
    if second is not None:
        return Line("({0} @ {1}) * 0.125", (first, second))
    other = pool.name(lambda y: y.dtype == x.dtype and y.ndim == 2 and y.shape[1] == x.shape[-1])
    return Line("F.linear({0}, {1}) * 0.125", (first, other)) if other else Line("({0} @ {0}.mT) * 0.125", (first,))


@operation(3)
def cast(pool: Pool) -> Line | None:
    name = pool.name()
    if name is None:
        return None
    wanted = [dtype for dtype in FLOATS if dtype != pool.tensors[name].dtype]
    # Of another dtype it is a copy, and in float64 must be one too.
    return Line(f"{{0}}.to({pool.rng.choice(wanted)}, copy=True)", (name,), is_exact=True)


@operation(3)
def new(pool: Pool) -> Line | None:
    shape, dtype = listed(pool.shape()), pool.rng.choice((*FLOATS[:2], *INTEGERS))
    size = pool.rng.choice(pool.sizes)
    found = (
        f"torch.zeros({shape}, dtype={dtype}, device=device)",
        f"torch.full({shape}, 3, dtype={dtype}, device=device)",
    )
    found += (f"torch.arange({size}, dtype={dtype}, device=device)", f"torch.eye({size}, dtype={dtype}, device=device)")
    return Line(pool.rng.choice(found), (), is_exact=True)


@operation(12)
def mutation(pool: Pool) -> Line | None:
    """Returns a line that writes into a tensor, or into a part of it."""
    if not pool.is_written:
        return None
    name = pool.name(lambda x: storage(x) not in pool.kept and x.numel() > 0 and not overlaps(x))
    if name is None:
        return None
    x, rng = pool.tensors[name], pool.rng
    other = pool.name(
        lambda y: broadcasts(x)(y) and torch.broadcast_shapes(x.shape, y.shape) == x.shape and is_apart(x, y)
    )
    found = ["{0}.zero_()", "{0}.fill_(1)", "{0}.copy_({1})"]
    if is_number(x):
        found += [
            "{0}.add_(1)",
            "{0}.mul_(2).clamp_(-64, 64)",
            "{0}.neg_()",
            "{0}.add_({1})",
            "{0}.sub_({1})",
            "{0}.relu_()",
        ]
    if x.ndim:
        size = x.shape[0]
        found += [
            f"{{0}}[{rng.randrange(size)}] = 1",
            f"{{0}}[{rng.randrange(size)}:].fill_(0)",
            "{0}[..., 0] = {0}[..., -1].clone()",
        ]
        found += ["{0}[::2].copy_({1}[::2])" if other and pool.tensors[other].shape == x.shape else "{0}[::2].zero_()"]
        found += ["{0}[1:] = {0}[:-1].clone()", "{0}.copy_({0}.flip(0))", "{0}.masked_fill_({0} == 1, 0)"]
    template = rng.choice(found)
    if template.startswith("{0}.masked_fill_") and pool.is_inexact(name):
        return None
    if "{1}" not in template:
        return Line(template, (name,), assigns=False, writes=name, is_exact=True)
    return Line(template, (name, other), assigns=False, writes=name, is_exact=True) if other else None


def is_apart(x: Tensor, y: Tensor) -> bool:
    """Returns whether writing into one tensor what is read of another one means the same in any order of elements.

    It does not where they lie over one storage, but for one and the same view: eager reads what it has just written.
    """
    is_same = (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())
    return storage(x) != storage(y) or is_same


def overlaps(x: Tensor) -> bool:
    """Returns whether two elements of a tensor may lie at one place."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
