"""Programs with regions: repeated blocks, checkpoints, hints, strict modes, functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from program import Function, Program

higher_order: Any = torch.ops.higher_order


@torch.compiler.nested_compile_region
def block(x: Tensor) -> Tensor:
    """Returns what a repeated block computes."""
    return (x.sin() * 2).softmax(-1)


@torch.compiler.nested_compile_region
def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two results of two operands."""
    return x * y, (x + y).relu()


@torch.compiler.nested_compile_region
def outer(x: Tensor) -> Tensor:
    """Returns what a block with a block in it computes."""
    return block(x + 1) * 2


@torch.compiler.nested_compile_region
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Returns a product."""
    return (x @ weight).relu()


@torch.compiler.nested_compile_region
def weighted(x: Tensor) -> Tensor:
    """Returns what a block with constants computes."""
    return x[:, [1, 0, 2, 3, 7, 6, 5, 4]] * torch.tensor([1.0, 2.0, 0.5, -1.0, 3.0, 1.0, 0.25, 2.0])


@torch.compiler.nested_compile_region
def moved_on(x: Tensor, y: Tensor) -> Tensor:
    """Adds to its first operand and doubles the second's first row."""
    x.add_(y)
    y[0].mul_(2)
    return x * y


def _written(x: Tensor, y: Tensor) -> Tensor:
    """Returns all that calls of a region return and have written."""
    first, second = moved_on(x, y), moved_on(x, y)
    return first + second * 2 + x * 3 + y * 4


def _counted(x: Tensor) -> Tensor:
    """Returns what a region returns that writes to buffers of three calls."""
    sums = [torch.zeros(1, 8) for _ in range(3)]
    results = [moved_on(total, x[:1] + number) for number, total in enumerate(sums)]
    return torch.cat(results + sums).sum(0) * x


def _repeated(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = block(x) + 1
    return x


def _into_views(x: Tensor) -> Tensor:
    """Returns a tensor after a region has written to rows of it."""
    y = x.cos()
    return moved_on(x[:2], y[2:4]) + moved_on(x[1:3], y[:2]) + x[:2] + y[1:3]


def _layers(x: Tensor) -> Tensor:
    for layer in range(3):
        x = linear(x, torch.full((8, 8), 0.1 * (layer + 1)))
    return x + 1


REGIONS: dict[str, Function] = {
    "region": lambda x: block(x * 2) + x,
    "region twice": lambda x: block(block(x) + 1).relu() * x,
    "region five times": lambda x: _repeated(x, 5),
    "region of two": lambda x: pair(*pair(x, x.sin()))[1] + x,
    "region of regions": lambda x: outer(outer(x)) + x,
    "region of products": _layers,
    "region of other shapes": lambda x: block(x)[0] + block(x[0] * 2),
    "region of views": lambda x: block(x.t()).t() + block(x),
    "region of halves": lambda x: block(x.half()).float() * x,
    "region of constants": lambda x: weighted(weighted(x * 2)) + x,
    "region that writes": lambda x: _written(x * 2, x.sin()),
    "region that writes to views": lambda x: _into_views(x * 2),
    "region that writes to transposes": lambda x: _written((x * 2).t(), x.sin().t()).t(),
    "region that writes to buffers": _counted,
    "region beside a cond": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (block(x),)) + x,
}


def kept(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Returns the result of a checkpointed function."""
    return checkpoint(function, *args, use_reentrant=False, **options)


def _policy(saved: Any) -> Any:
    def policy(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)


MM, EXP = torch.ops.aten.mm.default, torch.ops.aten.exp.default
WEIGHT = torch.eye(8) * 0.5
CHECKPOINTS: dict[str, Function] = {
    "checkpoint": lambda x: kept(lambda x: x.sin().exp(), x * 2) + 1,
    "checkpoints in a row": lambda x: kept(torch.sin, kept(torch.exp, kept(torch.sin, x))) + 1,
    "checkpoint of checkpoints": lambda x: kept(lambda x: kept(torch.sin, x.exp()).cos(), x) + 1,
    "checkpoint of products": lambda x: kept(lambda x: (x @ WEIGHT).relu() @ WEIGHT, x) * 2,
    "checkpoint of a norm": lambda x: kept(lambda x: F.layer_norm(x, (8,)).sin(), x) * 2,
    "checkpoint of a softmax": lambda x: kept(lambda x: x.softmax(-1).log(), x) * 2,
    "checkpoint of two": lambda x: kept(lambda x, y: x * y.exp(), x, x.sin()) * 2,
    "checkpoint of a region": lambda x: kept(lambda x: block(x).exp(), x) * 2,
    "checkpoint that saves products": lambda x: kept(
        lambda x: (x @ WEIGHT).sin() @ WEIGHT, x, context_fn=_policy((MM,))
    ),
    "checkpoint that saves exponentials": lambda x: kept(lambda x: x.exp().sin(), x, context_fn=_policy((EXP,))),
    "checkpoint that saves nothing": lambda x: kept(lambda x: (x @ WEIGHT).sin(), x, context_fn=_policy(())),
    "checkpoint of a list of ops": lambda x: kept(
        lambda x: (x @ WEIGHT).sin(), x, context_fn=partial(create_selective_checkpoint_contexts, [MM])
    ),
}
DRAWN: dict[str, Function] = {
    "checkpoint of dropout": lambda x: kept(lambda x: F.dropout(x.sin(), 0.5), x),
    "checkpoint of random numbers": lambda x: kept(lambda x: x.sin() * torch.rand_like(x), x),
    "checkpoint of normal numbers": lambda x: kept(lambda x: x.sin() * torch.randn_like(x), x),
    "checkpoints of dropout": lambda x: kept(lambda x: F.dropout(x, 0.5), kept(lambda x: F.dropout(x.sin(), 0.5), x)),
    "checkpoint of dropout that saves": lambda x: kept(
        lambda x: F.dropout(x.sin(), 0.5), x, context_fn=_policy((torch.ops.aten.native_dropout.default,))
    ),
}


class Square(torch.autograd.Function):
    """A function whose derivative is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Returns the square."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Returns three times the gradient, which nobody would derive."""
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class Pair(torch.autograd.Function):
    """A function of two operands and results, one of which has no derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns two results."""
        ctx.save_for_backward(x, y)
        places = y.argmax(1)
        ctx.mark_non_differentiable(places)
        return x * y, places

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Returns the gradients of both operands."""
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


FUNCTIONS: dict[str, Function] = {
    "function": lambda x: Square.apply(x.sin()) + 1,
    "function twice": lambda x: Square.apply(Square.apply(x) * 0.5),
    "function of two": lambda x: Pair.apply(x * 2, x.sin())[0].exp(),
    "function with places": lambda x: Pair.apply(x * 2, x.sin())[1][:, None] * x,
    "function in a checkpoint": lambda x: kept(lambda x: Square.apply(x.sin()), x) + 1,
    "function and a region": lambda x: Square.apply(block(x)) * 2,
    "function of a cond": lambda x: Square.apply(torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))),
}
MODES: dict[str, Function] = {
    "strict mode": lambda x: torch._higher_order_ops.strict_mode(lambda x: (x.sin() + 1,), (x * 2,))[0].relu(),
    "hints": lambda x: higher_order.hints_wrapper(lambda x: (x.sin() + 1,), (x * 2,), {}, hints={"outer": True})[
        0
    ].relu(),
    "wider products": lambda x: (
        higher_order.out_dtype(
            torch.ops.aten.mm.default, torch.int32, (x * 8).to(torch.int8), torch.ones(8, 8, dtype=torch.int8)
        )
        * x
    ),
    "without gradients": lambda x: x * torch.no_grad()(lambda x: x.sin() + 1)(x),
    "with autocast": lambda x: autocast(x) + x,
}


def autocast(x: Tensor) -> Tensor:
    """Returns a product in half precision, as a region of the program asks for."""
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ WEIGHT).float()


NO_GRADIENT = frozenset(("strict mode", "hints", "wider products", *(name for name in REGIONS if "writes" in name)))
"""Torch differentiates no region that writes, and some have no derivative."""

PROGRAMS = {
    **{
        name: Program(function, has_gradient=name not in NO_GRADIENT, tolerance=1e-2 if "halves" in name else 1e-4)
        for name, function in {**REGIONS, **CHECKPOINTS, **FUNCTIONS, **MODES}.items()
    },
    **{name: Program(function, draws=True) for name, function in DRAWN.items()},
}
