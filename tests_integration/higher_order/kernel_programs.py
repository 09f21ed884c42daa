"""Programs with Triton kernels of their own, with ops that write to what they are given, and with effects."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import jitted_kernels as kernels
from program import Function, Program


def blocks(n: int) -> Any:
    """Returns the grid of a kernel of so many elements."""
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def plus(x: Tensor, y: Tensor) -> Tensor:
    """Returns three times a tensor plus another, by a kernel."""
    out = torch.empty_like(x)
    kernels.scaled_sum[blocks(x.numel())](x, y, out, x.numel(), 3.0, BLOCK=128)
    return out


def in_place(x: Tensor, y: Tensor) -> Tensor:
    """Returns a tensor that a kernel has added another to."""
    kernels.add_in_place[blocks(x.numel())](x, y, x.numel(), BLOCK=128)
    return x


def _both(x: Tensor) -> Tensor:
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.neighbours[blocks(x.numel())](x, low, high, x.numel(), BLOCK=64)
    return low * high


def _tuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_tuned[blocks(x.numel())](x, out, x.numel())
    return out


def _by_heuristics(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_by_heuristics[blocks(x.numel())](x, out, x.numel(), BLOCK=8)
    return out


def _underscored(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.launch_doubled(x + 1, out)
    return out


def _shifted(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.shifted[(1,)](x, out, x.numel())
    return out


def _columns(x: Tensor) -> Tensor:
    out, y = torch.empty_like(x), (x * 2).t()
    rows, columns = x.shape
    kernels.scaled_columns[(columns, 1)](y, out, columns, rows, y.stride(0), y.stride(1), BLOCK=64)
    return (out.view(columns, rows).t() + 1).contiguous()


def _tiles(x: Tensor) -> Tensor:
    out, (rows, columns) = torch.empty_like(x), x.shape
    grid = (triton.cdiv(rows, 4), triton.cdiv(columns, 16))
    kernels.doubled_by_tiles[grid](x + 1, out, rows, columns, ROWS=4, COLUMNS=16)
    return out.relu() + x


def _helped(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.scaled_by_a_helper[(1,)](x * 2, out=out, n=x.numel(), KIND=tl.float32, BLOCK=128)
    return out + x


def _into_rows(x: Tensor) -> Tensor:
    y = x * 2
    kernels.add_in_place[(1,)](y[1:3], x[2:4], 2 * x.shape[1], BLOCK=128)
    return y.sin()


def _added_to_rows(x: Tensor) -> Tensor:
    return torch.cat([x[:1] * 2, x[1:3] * 2 + x[2:4], x[3:] * 2]).sin()


def _with_itself(x: Tensor) -> Tensor:
    y = x * 2
    kernels.add_in_place[(1,)](y, y, x.numel(), BLOCK=128)
    return y.sin() + x


def _chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: plus(x, x), lambda x: x.sin(), (x,)) + 1


def _binned(kernel: Any) -> tuple[Function, Function]:
    """Returns a program that adds by a kernel to what is not zero, and what it computes."""

    def program(x: Tensor) -> Tensor:
        sums = x[0, :1].exp().repeat(16)
        kernel[blocks(x.numel())](x * 2, sums, x.numel())
        return sums + 1

    def meaning(x: Tensor) -> Tensor:
        bins = torch.arange(x.numel()) % 16
        return x[0, :1].exp().repeat(16).index_add(0, bins, x.flatten() * 2) + 1

    return program, meaning


class Plus(torch.autograd.Function):
    """A kernel with a derivative that is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Returns the sum that the kernel computes."""
        return plus(x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Returns the gradients of both operands."""
        return plus(gradient, torch.zeros_like(gradient)), gradient


@torch.library.triton_op("higher_order_tests::plus", mutates_args=())
def plus_op(x: Tensor, y: Tensor) -> Tensor:
    """Returns what the kernel computes, as an op that torch knows."""
    out = torch.empty_like(x)
    wrapped = torch.library.wrap_triton(kernels.scaled_sum)
    wrapped[blocks(x.numel())](x, y, out, x.numel(), 3.0, BLOCK=128)
    return out


KERNELS: dict[str, tuple[Function, Function]] = {
    "kernel": (lambda x: plus(x * 2, x).relu() + x, lambda x: (x * 7).relu() + x),
    "kernel twice": (lambda x: plus(plus(x * 2, x), x).sin(), lambda x: (x * 22).sin()),
    "kernel in place": (lambda x: in_place(x * 2, x).sin() + 1, lambda x: (x * 3).sin() + 1),
    "kernel of what is read again": (lambda x: reread(x * 2, x), lambda x: (x * 3) * (x * 2 + 1)),
    "kernel of two results": (lambda x: _both(x * 2) + 1, lambda x: (x * 2 - 1) * (x * 2 + 1) + 1),
    "tuned kernel": (lambda x: _tuned(x + 1) + 1, lambda x: (x + 1) * 2 + 1),
    "kernel with heuristics": (lambda x: _by_heuristics(x + 1) + 1, lambda x: (x + 1) * 2 + 1),
    "kernel that is reset while it is timed": _binned(kernels.summed_and_reset),
    "kernel that is restored while it is timed": _binned(kernels.summed_and_restored),
    "kernel of pruned configs": _binned(kernels.summed_by_large_blocks),
    "kernel of estimated configs": _binned(kernels.summed_by_the_best_blocks),
    "kernel with heuristics of its configs": _binned(kernels.summed_by_heuristics),
    "kernel with an underscore": (lambda x: _underscored(x) + 1, lambda x: (x + 1) * 2 + 1),
    "kernel with defaults": (lambda x: _shifted(x * 2) + 1, lambda x: x * 2 + 2.5),
    "kernel beside a scan": (lambda x: plus(x.cumsum(1), x).cumsum(0), lambda x: (3 * x.cumsum(1) + x).cumsum(0)),
    "kernel beside a softmax": (lambda x: plus(x.softmax(-1), x) * 2, lambda x: (3 * x.softmax(-1) + x) * 2),
    "kernel of halves": (lambda x: plus(x.half(), x.half()).float() + x, lambda x: (x.half() * 4).float() + x),
    "kernel of brain floats": (
        lambda x: plus(x.bfloat16(), x.bfloat16()).float() + x,
        lambda x: (x.bfloat16() * 4).float() + x,
    ),
    "kernel of columns": (_columns, lambda x: x * 2 * torch.arange(x.shape[0])[:, None] + 1),
    "kernel of tiles": (_tiles, lambda x: ((x + 1) * 2).relu() + x),
    "kernel that calls another": (_helped, lambda x: x * 6),
    "kernel into a view": (_into_rows, _added_to_rows),
    "kernel of a tensor twice": (_with_itself, lambda x: (x * 4).sin() + x),
    "kernel in a choice": (_chosen, lambda x: torch.where(x.sum() > 0, x * 4, x.sin()) + 1),
    "kernel as an op": (lambda x: plus_op(x * 2, x).relu() + x, lambda x: (x * 7).relu() + x),
}
DIFFERENTIABLE: dict[str, tuple[Function, Function]] = {
    "kernel with a derivative": (lambda x: Plus.apply(x.sin(), x * 2).relu(), lambda x: (x.sin() * 3 + x * 2).relu()),
    "kernels with derivatives": (
        lambda x: Plus.apply(Plus.apply(x, x.sin()), x).sin(),
        lambda x: ((x * 3 + x.sin()) * 3 + x).sin(),
    ),
}


def reread(y: Tensor, x: Tensor) -> Tensor:
    """Returns a tensor as it was before a kernel added to it, times what it is afterwards."""
    before = y + 1
    return in_place(y, x) * before


@torch.library.custom_op("higher_order_tests::add_to", mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    """Adds in place."""
    x.add_(y)


@torch.library.custom_op("higher_order_tests::swap", mutates_args=("x", "y"))
def swap(x: Tensor, y: Tensor) -> None:
    """Changes two tensors for each other."""
    held = x.clone()
    x.copy_(y)
    y.copy_(held)


@torch.library.custom_op("higher_order_tests::scaled", mutates_args=("x",))
def scaled(x: Tensor, factor: float) -> Tensor:
    """Doubles in place, and returns a multiple."""
    x.mul_(2)
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def after(write: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns tensors after something has written to them."""
    write(*tensors)
    return tensors


def _into_columns(x: Tensor) -> Tensor:
    y = x * 2
    add_to(y[:, 1:3], x[:, 2:4])
    return y.relu() + x


def _into_an_input(x: Tensor) -> Tensor:
    y = x.clone()
    add_to(y, x)
    add_to(y, y.sin())
    return y * 2


WRITERS: dict[str, Function] = {
    "written operand": lambda x: after(add_to, x * 2, x)[0].relu() + x,
    "written view": _into_columns,
    "written twice": _into_an_input,
    "two written": lambda x: sum_of_parts(*after(swap, x * 2, x.sin())),
    "written and returned": lambda x: scaled(x * 2, 3.0).relu() + x,
    "written and read": lambda x: written_and_read(x * 2),
}


def sum_of_parts(x: Tensor, y: Tensor) -> Tensor:
    """Returns something that differs if two operands are changed for each other."""
    return x * 3 + y


def written_and_read(y: Tensor) -> Tensor:
    """Returns what an op writes and what it returns, multiplied."""
    return scaled(y, 3.0) * y


def _printed(x: Tensor) -> Tensor:
    torch._higher_order_ops.print("sum {}", x.sum())
    return x.relu() + 1


PRINTERS: dict[str, Function] = {
    "printed": lambda x: _printed(x * 2),
    "printed twice": lambda x: _printed(_printed(x * 2)),
    "printed between scans": lambda x: _printed(x.cumsum(0)).cumsum(1),
}
HAS_PRINT = hasattr(torch._higher_order_ops, "print")

PROGRAMS = {
    **{name: Program(f, has_gradient=False, meaning=meaning) for name, (f, meaning) in KERNELS.items()},
    **{name: Program(f, meaning=meaning) for name, (f, meaning) in DIFFERENTIABLE.items()},
    **{name: Program(f, has_gradient=False) for name, f in {**WRITERS, **(PRINTERS if HAS_PRINT else {})}.items()},
}
