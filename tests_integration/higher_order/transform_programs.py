"""Programs with the transforms of `torch.func` inside, and with attention whose scores a function changes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from program import Function, Program

WEIGHT = torch.arange(64.0).reshape(8, 8) / 64
MODEL = torch.nn.Linear(8, 8)
for _parameter in MODEL.parameters():
    _parameter.requires_grad_(requires_grad=False).copy_(torch.full_like(_parameter, 0.1))


def energy(row: Tensor) -> Tensor:
    """Returns a number for a row."""
    return (row.sin() * row).sum()


TRANSFORMS: dict[str, Function] = {
    "vmap": lambda x: vmap(lambda row: row.sin() + row.sum())(x * 2) + x,
    "vmap of products": lambda x: vmap(lambda row: row @ WEIGHT)(x * 2).relu(),
    "vmap of two": lambda x: vmap(lambda a, b: a * b.sum())(x, x.sin()) + 1,
    "vmap of vmap": lambda x: vmap(vmap(lambda e: e.sin() + 1))(x * 2) + x,
    "vmap along columns": lambda x: vmap(lambda c: c - c.mean(), in_dims=1, out_dims=1)(x * 2) + x,
    "vmap of a softmax": lambda x: vmap(lambda row: row.softmax(0))(x * 2) + x,
    "vmap of a choice": lambda x: vmap(lambda row: torch.where(row > 0, row, row.exp()))(x * 2) + x,
    "grad": lambda x: grad(lambda x: energy(x * 2))(x) + x,
    "grad and value": lambda x: grad_and_value(energy)(x)[0] * grad_and_value(energy)(x)[1],
    "vmap of grad": lambda x: vmap(grad(energy))(x * 2) + x,
    "grad of grad": lambda x: grad(lambda x: grad(energy)(x).sin().sum())(x) + x,
    "grad of a model": lambda x: (
        grad(lambda x: functional_call(MODEL, dict(MODEL.named_parameters()), (x,)).sum())(x) * x
    ),
    "functional call": lambda x: functional_call(MODEL, dict(MODEL.named_parameters()), (x * 2,)).relu(),
    "jvp": lambda x: jvp(lambda x: x.sin() * x, (x,), (x * 2,))[1] + x,
    "jvp of jvp": lambda x: jvp(lambda x: jvp(lambda x: x**3, (x,), (torch.ones_like(x),))[1], (x,), (x * 2,))[1] + x,
    "vjp": lambda x: vjp(lambda x: x.sin() * x, x)[1](x * 2)[0] + x,
    "jacrev": lambda x: jacrev(lambda r: r.sin() * r.sum())(x[0]) @ x.t(),
    "jacfwd": lambda x: jacfwd(lambda r: r.sin() * r.sum())(x[0]) @ x.t(),
    "hessian": lambda x: hessian(energy)(x[0]) @ x.t(),
    "vmap of jvp": lambda x: vmap(lambda row: jvp(torch.sin, (row,), (row * 2,))[1])(x) + x,
    "grad of a scan": lambda x: grad(lambda x: x.cumsum(0).sin().sum())(x) + x,
}


def heads(x: Tensor) -> Tensor:
    """Returns a tensor of one batch and one head, long enough for a block of attention."""
    return x[:4].repeat(32, 2)[None, None]


def attended(x: Tensor, **options: object) -> Tensor:
    """Returns attention of a tensor to itself."""
    q = heads(x)
    return flex_attention(q * 2, q + 1, q.sin(), **options).relu() + q  # type: ignore[arg-type,operator]


def biased(x: Tensor, bias: Tensor) -> Tensor:
    """Returns attention whose scores have an element of a tensor added."""
    return attended(x, score_mod=lambda s, b, h, i, j: s + bias[0])


def _causal(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


MASK = create_block_mask(_causal, None, None, 128, 128, device="cpu")
ATTENTION: dict[str, Function] = {
    "attention": attended,
    "attention with a bias": lambda x: attended(x, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01),
    "attention with what is captured": lambda x: biased(x, x.detach().sum(0)),
    "attention with a mask": lambda x: attended(x, block_mask=MASK),
    "attention with both": lambda x: attended(x, block_mask=MASK, score_mod=lambda s, b, h, i, j: s * 0.5),
    "attention with a scale": lambda x: attended(x, scale=0.25),
}

PROGRAMS = {
    **{
        name: Program(function, is_dynamic=not name.startswith(("hessian", "jac")))
        for name, function in TRANSFORMS.items()
    },
    **{name: Program(function, has_gradient=False, is_dynamic=False) for name, function in ATTENTION.items()},
}
