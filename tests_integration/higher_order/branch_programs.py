"""Programs with `cond`, `while_loop`, `scan` and `map`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from program import Function, Program

cond = torch.cond


def _zero() -> Tensor:
    return torch.tensor(0)


def _nested(x: Tensor, depth: int) -> Tensor:
    if depth == 0:
        return x.sin()
    return cond(x.sum() > depth, lambda x: _nested(x * 0.5, depth - 1), lambda x: x.cos(), (x,))


def _conds_in_a_row(x: Tensor) -> Tensor:
    for bound in range(3):
        x = cond(x.sum() > bound, lambda x: x.sin() + 1, lambda x: x.cos(), (x,)) * 0.5
    return x


def _linear(x: Tensor) -> Tensor:
    weight = torch.ones(8, 8) / 8
    return cond(x.sum() > 0, lambda x: x @ weight, lambda x: (x - 1) @ weight, (x * 2,)).relu()


def _weights(first: float = 1.0) -> Tensor:
    """Returns a constant of several elements: what a function makes so, the graph of it holds."""
    return torch.tensor([first, 2.0, 0.5, -1.0, 3.0, 1.0, 0.25, 2.0])


CONDS: dict[str, Function] = {
    "cond": lambda x: cond((x * 2).sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos(), (x * 2,)).relu() + x,
    "cond on a bool": lambda x: cond((x > 0).all(), lambda y: y.sin(), lambda y: y.cos(), (x + 1,)) * 2,
    "cond on an element": lambda x: cond(x[0, 0] > 0, lambda y: y.exp(), lambda y: y.neg(), (x * 0.5,)) + 1,
    "cond on a sum": lambda x: cond(x.sum() * 0, lambda y: y.exp(), lambda y: y.neg(), (x * 0.5,)) + 1,
    "cond on a count": lambda x: cond((x > 0).sum(1, keepdim=True)[:1], lambda y: y.sin(), lambda y: y.cos(), (x,)) * 2,
    "cond of two levels": lambda x: _nested(x, 2) + 1,
    "cond of three levels": lambda x: _nested(x, 3) * 2,
    "cond of pairs": lambda x: sum_of(
        cond(x.sum() > 0, lambda x: (x + 1, x.sum(0)), lambda x: (x - 1, x[0] * 3), (x * 2,))
    ),
    "cond of views": lambda x: cond(x.sum() > 0, lambda y: y.t().sin(), lambda y: y.t().cos(), (x * 2,)).t() + x,
    "cond of reductions": lambda x: cond(x.sum() > 0, lambda y: y.sum(1), lambda y: y.amax(1), (x * 2,)).exp(),
    "cond of products": _linear,
    "cond with closures": lambda x: cond(x.sum() > 0, lambda: x.exp() * x[0], lambda: x - x[0], ()).relu(),
    "cond without operands": lambda x: cond(x.sum() > 0, lambda: x.sin() * 2, lambda: x.cos() - 1, ()) + x,
    "cond that gives what it got": lambda x: cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.clone(), (x * 2,)) + x,
    "cond of scalars": lambda x: cond(x.sum() > 0, lambda y: y.sum(), lambda y: y.mean(), (x * 2,)) * x,
    "cond of softmax": lambda x: cond(x.sum() > 0, lambda y: y.softmax(-1), lambda y: y.log_softmax(-1), (x,)) * 3,
    "cond of norms": lambda x: cond(
        x.sum() > 0, lambda y: torch.nn.functional.layer_norm(y, (8,)), lambda y: y / 2, (x + 1,)
    ).sin(),
    "conds in a row": _conds_in_a_row,
    "conds side by side": lambda x: (
        cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        * cond(x.sum() < 1, lambda x: x.exp(), lambda x: x.neg(), (x,))
    ),
    "cond of integers": lambda x: (
        cond(x.sum() > 0, lambda k: k + 1, lambda k: k * 2, ((x * 8).round().to(torch.int64),)) * x
    ),
    "cond of halves": lambda x: cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x.half(),)).float() + x,
    "cond of slices": lambda x: cond(x.sum() > 0, lambda y: y[1:].sin(), lambda y: y[:-1].cos(), (x * 2,)) + 1,
    "cond of cat": lambda x: cond(
        x.sum() > 0, lambda y: torch.cat([y, y + 1]), lambda y: torch.cat([y * 2, y]), (x * 2,)
    ).relu(),
    "cond by a size": lambda x: cond(x.shape[0] > 5, lambda y: y.sin(), lambda y: y.cos(), (x * 2,)).relu() + x,
    "cond of a loop": lambda x: (
        cond(
            x.sum() > 0,
            lambda y: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), (_zero(), y))[1],
            lambda y: y.cos(),
            (x * 2,),
        )
        + x
    ),
    "cond of dropout in evaluation": lambda x: cond(
        x.sum() > 0, lambda y: torch.nn.functional.dropout(y, 0.5, training=False) * 3, lambda y: y * 2, (x + 1,)
    ),
    "cond of constants": lambda x: (
        cond(x.sum() > 0, lambda y: y * _weights(), lambda y: y.sin() + _weights(2), (x * 2,)) + 1
    ),
    "cond of nothing but constants": lambda x: cond(x.sum() > 0, _weights, lambda: _weights(2), ()) * x,
    "cond of listed rows": lambda x: cond(x.sum() > 0, lambda y: y[[0, 2, 2]], lambda y: y[1:4] * 2, (x * 2,)).sin(),
    "cond of conds with constants": lambda x: cond(
        x.sum() > 0,
        lambda y: cond(y[0, 0] > 0, lambda z: z * _weights(), lambda z: z * _weights(3), (y,)),
        lambda y: y * _weights(),
        (x * 2,),
    ).relu(),
    "conds with a constant of two": lambda x: (
        cond(x.sum() > 0, lambda y: y * _weights(), lambda y: y + _weights(), (x * 2,))
        + cond(x.sum() < 1, lambda y: y * _weights(), lambda y: y.sin(), (x,))
    ),
    "cond after a scan": lambda x: (
        cond(x.cumsum(0).sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x.cumsum(1),)) + 1
    ),
}


def sum_of(values: Any) -> Tensor:
    """Returns all results added up, the smaller ones repeated."""
    first, *rest = values
    for value in rest:
        first = first + value
    return first


def _count(limit: int) -> Any:
    return lambda i, *_: i < limit


LOOPS: dict[str, Function] = {
    "while": lambda x: while_loop(_count(4), lambda i, y: (i + 1, y * 1.5 + i), (_zero(), x * 2))[1].relu() + x,
    "while without turns": lambda x: while_loop(_count(0), lambda i, y: (i + 1, y * 1.5), (_zero(), x * 2))[1] + 1,
    "while of one turn": lambda x: while_loop(_count(1), lambda i, y: (i + 1, y.sin()), (_zero(), x * 2))[1] + 1,
    "while of two tensors": lambda x: sum_of(
        while_loop(_count(3), lambda i, a, b: (i + 1, a + b, b * 0.5), (_zero(), x * 2, x.sin()))[1:]
    ),
    "while of reductions": lambda x: while_loop(
        _count(3), lambda i, y: (i + 1, y - y.mean(1, keepdim=True)), (_zero(), x * 2)
    )[1].exp(),
    "while of products": lambda x: while_loop(
        _count(3), lambda i, y: (i + 1, (y @ (torch.ones(8, 8) / 8)).sin()), (_zero(), x * 2)
    )[1].exp(),
    "while on a value": lambda x: while_loop(
        lambda y, s: s < 50, lambda y, s: (y * 1.5, (y * 1.5).abs().sum()), (x + 1, (x + 1).abs().sum())
    )[0].sin(),
    "while with closures": lambda x: while_loop(_count(3), lambda i, y: (i + 1, y + x[0]), (_zero(), x * 2))[1].relu(),
    "while of softmax": lambda x: while_loop(_count(2), lambda i, y: (i + 1, y.softmax(-1)), (_zero(), x * 2))[1] * 3,
    "while of integers": lambda x: (
        while_loop(_count(3), lambda i, k: (i + 1, k * 2 + i), (_zero(), (x * 8).round().to(torch.int64)))[1] * x
    ),
    "while of halves": lambda x: (
        while_loop(_count(3), lambda i, y: (i + 1, y * 0.5), (_zero(), x.half()))[1].float() + x
    ),
    "while of a cond": lambda x: (
        while_loop(
            _count(3),
            lambda i, y: (i + 1, cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))),
            (_zero(), x * 2),
        )[1]
        + 1
    ),
    "while of a while": lambda x: (
        while_loop(
            _count(2),
            lambda i, y: (i + 1, while_loop(_count(2), lambda j, z: (j + 1, z * 1.5), (torch.tensor(0), y))[1]),
            (_zero(), x * 2),
        )[1]
        + 1
    ),
    "whiles in a row": lambda x: while_loop(
        _count(2),
        lambda i, y: (i + 1, y + 1),
        while_loop(_count(2), lambda i, y: (i + 1, y * 2), (_zero(), x * 2)),
    )[1],
    "while of constants": lambda x: while_loop(
        lambda i, _: i < torch.tensor([1, 2]).sum(), lambda i, y: (i + 1, y * _weights()), (_zero(), x * 2)
    )[1].sin(),
    "while that counts": lambda x: while_loop(_count(4), lambda i, y: (i + 1, y * 1.5), (0, x * 2))[1].relu() + x,
}


SCANS: dict[str, Function] = {
    "scan": lambda x: scan(lambda s, row: (s * 0.5 + row, s.sin()), torch.zeros(8), x * 2)[1].relu() + x,
    "scan in reverse": lambda x: (
        scan(lambda s, row: (s * 0.5 + row, s.sin()), torch.zeros(8), x * 2, reverse=True)[1] + x
    ),
    "scan along columns": lambda x: (
        scan(lambda s, c: (s * 0.5 + c, s + c), torch.zeros_like(x[:, 0]), x * 2, dim=1)[1] + 1
    ),
    "scan to its end": lambda x: scan(lambda s, row: (s * 0.5 + row, s + 1), torch.zeros(8), x * 2)[0].sin() * x,
    "scan of two states": lambda x: scan(
        lambda s, row: ((s[0] + row, s[1] * 0.5 + s[0]), s[0] * s[1]), (torch.zeros(8), torch.ones(8)), x * 0.5
    )[1].sin(),
    "scan of two rows": lambda x: scan(lambda s, r: (s + r[0] * r[1], s * 2), torch.zeros(8), (x, x.sin()))[1] + x,
    "scan of products": lambda x: scan(
        lambda s, row: ((s @ (torch.ones(8, 8) / 8) + row).tanh(), s + row), torch.zeros(8), x * 2
    )[1].relu(),
    "scan of reductions": lambda x: scan(lambda s, row: (s + row.sum(), s + row), torch.zeros(()), x * 2)[1].relu(),
    "scan of softmax": lambda x: scan(lambda s, row: ((s + row).softmax(0), s + row), torch.zeros(8), x * 2)[1] * 2,
    "scan with closures": lambda x: scan(lambda s, row: (s + row * x[0].detach(), s + 1), torch.zeros(8), x * 2)[
        1
    ].sin(),
    "scan of constants": lambda x: scan(
        lambda s, row: (s * 0.5 + row * _weights(), s + _weights(2)), torch.zeros(8), x * 2
    )[1].relu(),
    "scans in a row": lambda x: scan(
        lambda s, row: (s + row, s * 2), torch.zeros(8), scan(lambda s, row: (s + row, s - row), torch.zeros(8), x)[1]
    )[1].sin(),
}

MAPS: dict[str, Function] = {
    "map": lambda x: map_rows(lambda row, first: row.sin() + first, x * 2, x[0]).relu() + x,
    "map of reductions": lambda x: map_rows(lambda row: row - row.mean(), x * 2).exp(),
    "map of pairs": lambda x: sum_of(map_rows(lambda row: (row.sin(), row.cos()), x * 2)),
    "map of softmax": lambda x: map_rows(lambda row: row.softmax(0), x * 2) * 3,
    "map of products": lambda x: map_rows(lambda row: row @ (torch.ones(8, 8) / 8), x * 2).sin(),
    "map of two": lambda x: map_rows(lambda rows: rows[0] * rows[1], (x * 2, x.sin())).relu(),
    "map of maps": lambda x: map_rows(lambda row: map_rows(lambda e: e.sin() + 1, row), x * 2) + x,
    "map of constants": lambda x: map_rows(lambda row: row[[1, 0, 2, 3, 7, 6, 5, 4]] * _weights(), x * 2).sin(),
    "maps in a row": lambda x: map_rows(lambda row: row.exp(), map_rows(lambda row: row.sin(), x * 2) * 0.5) + 1,
}

NO_GRADIENT = {
    "whiles in a row": "dynamo refuses what the first one counts to",
    "while that counts": "an integer is carried",
    "while on a value": "AOTAutograd refuses a state that decides",
}

PROGRAMS = {
    name: Program(function, has_gradient=name not in NO_GRADIENT, tolerance=1e-2 if "halves" in name else 1e-4)
    for name, function in {**CONDS, **LOOPS, **SCANS, **MAPS}.items()
}
