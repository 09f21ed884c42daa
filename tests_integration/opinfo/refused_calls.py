"""Calls beyond the database's own that eager refuses, by kind; each line is another way to be wrong.

A call is a function and its arguments, which are made on the device that is asked for. Those that some torch accepts
after all are passed over there: only what eager refuses is asked of the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from refused import arguments, values, windows
from refused.words import WIDE, Refused, empty, ints, number, ones, zeros
from refused.words import calls as _calls


def _assign(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    y = x + 0
    y[index] = value
    return y


def _shape_members() -> dict[str, list[Refused]]:
    far, some = ints(0, 7), ints(0, 1)
    return {
        "index_put of other shapes": [
            *_calls(_assign, (zeros(8), torch.arange(8), ones(2)), (zeros(4, 3), some, ones(3, 3))),
            *_calls(_assign, (zeros(4, 3), some, ones(2, 2)), (zeros(4, 3), some, ones(1, 2, 4))),
            *_calls(lambda x, i, j, v: x.index_put((i, j), v), (zeros(4, 3), some, some, ones(3))),
            *_calls(lambda x, i, v: x.index_put((i,), v, accumulate=True), (zeros(3, 2), ints(0, 1), zeros(0))),
            *_calls(lambda x, i, v: x.index_put((i,), v), (zeros(3), ints(0), ones(1, dtype=WIDE))),
            *_calls(lambda x, i, v: x.clone().index_put_((i,), v), (zeros(3, 4), ints(0, 2), ones(3))),
            *_calls(lambda x, i: x[i], (empty, ints(0)), (zeros(0, 2), ints(0)), (zeros(3), far), (zeros(3), ints(-4))),
            *_calls(lambda x, i, v: x.index_put((i,), v), (zeros(3), far, ones(2)), (empty, ints(0), ones(1))),
        ],
        "values for the places of a mask": [
            *_calls(_assign, (zeros(3), torch.tensor([True, False, True]), ones(3))),
            *_calls(_assign, (zeros(3), torch.tensor([True, True, True]), ones(2))),
            *_calls(_assign, (zeros(3, 2), torch.tensor([True, False, True]), ones(3, 2))),
            *_calls(_assign, (zeros(3), torch.tensor([False, False, False]), ones(2))),
            *_calls(_assign, (zeros(3, 4), torch.ones(3, dtype=torch.bool), ones(5))),
            *_calls(lambda x, m, v: _assign(x, (slice(None), m), v), (zeros(3, 4), torch.arange(4) > 1, ones(2, 2))),
        ],
        "masks of other shapes": [
            *_calls(_assign, (zeros(3, 4), torch.ones(4, dtype=torch.bool), number)),
            *_calls(_assign, (zeros(3, 4), torch.ones(3, 5, dtype=torch.bool), number)),
            *_calls(_assign, (zeros(3), torch.ones(3, 1, dtype=torch.bool), number)),
            *_calls(lambda x, m: _assign(x, (slice(None), m), 1.0), (zeros(3, 4), torch.ones(3, dtype=torch.bool))),
            *_calls(lambda x, m: _assign(x, (..., m), 1.0), (zeros(3, 4), torch.ones(5, dtype=torch.bool))),
            *_calls(
                lambda x, m, v: x.index_put((m,), v, accumulate=True),
                (zeros(3, 4), torch.ones(2, dtype=torch.bool), number),
            ),
            *_calls(lambda x, i, v: x.index_put((i,), v), (zeros(4, 5), zeros(2), ones(5))),
        ],
        "places that no load needs": [
            *_calls(lambda i: torch.arange(5, device=i.device)[i], (ints(7),), (ints(-6),)),
            *_calls(lambda i: torch.zeros(5, device=i.device)[i] + 1, (ints(5),)),
            *_calls(lambda x, i: x.expand(3, 5).gather(1, i), (zeros(3, 1), ints([5], [0], [0]))),
            *_calls(lambda x, i: (x * 2).expand(3, 5).index_select(1, i), (zeros(3, 1), ints(5))),
            *_calls(lambda x: x[torch.arange(10, device=x.device)], (zeros(5),)),
            *_calls(lambda x: x.index_select(0, torch.arange(6, device=x.device)), (zeros(5),)),
            *_calls(lambda i: torch.zeros(3, 5, device=i.device).scatter(1, i, 1.0), (ints([5], [0], [0]),)),
            *_calls(lambda i: torch.zeros(3, 5, device=i.device).scatter_add(1, i, i.float()), (ints([-1], [0], [0]),)),
        ],
        "parts of other shapes": [
            *_calls(lambda x, v: torch.slice_scatter(x, v, 0, 0, 6), (zeros(9), ones(3)), (zeros(9), ones(1))),
            *_calls(
                lambda x, v: torch.slice_scatter(x, v, 1, 0, 6, 2), (zeros(2, 9), ones(2, 4)), (zeros(2, 9), number)
            ),
            *_calls(lambda x, v: torch.select_scatter(x, v, 0, 1), (zeros(3, 4), ones(2)), (zeros(3, 4), ones(1))),
            *_calls(lambda x, v: torch.select_scatter(x, v, -1, 1), (zeros(3, 4), ones(4)), (zeros(3, 4), number)),
            *_calls(lambda x, v: torch.select_scatter(x, v, 0, 9), (zeros(3, 4), ones(4)), (zeros(0, 4), ones(4))),
            *_calls(lambda x, v: torch.select_scatter(x, v, -1, -5), (zeros(3, 4), ones(3))),
            *_calls(torch.diagonal_scatter, (zeros(5, 5), ones(3)), (zeros(5, 5), ones(6)), (zeros(2, 5), number)),
            *_calls(lambda x, v: torch.diagonal_scatter(x, v, 1), (zeros(5, 5), ones(5))),
            *_calls(lambda x, v: x.as_strided_scatter(v, (2, 2), (2, 1)), (zeros(3, 3), ones(3))),
            *_calls(lambda x, v: x.as_strided_scatter(v, (2,), (9,), 1), (zeros(3, 3), ones(2))),
            *_calls(lambda x: x.as_strided((4, 4), (4, 1)), (zeros(3, 3),), (zeros(0),)),
            *_calls(lambda x: x.as_strided((3,), (1,), 7) + 1, (zeros(3, 3),)),
            *_calls(lambda x: (x * 2).as_strided((10,), (1,)), (zeros(3, 3),)),
        ],
        "index_*": [
            *_calls(
                lambda x, i: x.index_select(0, i),
                (zeros(0), zeros(0, 3, dtype=torch.int64)),
                (zeros(3), ints([0, 1])),
                (zeros(0, 2), ints(0)),
                (number, ints(1)),
                (number, ints(0, 0)),
                (zeros(3), ints(3)),
                (zeros(3), ints(-1)),
                (zeros(3), ones(1)),
            ),
            *_calls(
                lambda x, i, v: x.index_add(0, i, v),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
                (zeros(3, 2), ints(0, 1), ones(2, 3)),
                (zeros(3, 2), ints(0, 1), ones(1, 2)),
                (zeros(3, 2), ints([0], [1]), ones(2, 2)),
                (zeros(3), ints(0, -1), ones(2)),
                (zeros(3), ints(0, 3), ones(2)),
                (zeros(0), ints(0), ones(1)),
                (number, ints(1), ones(1)),
                (zeros(3, 2), ints(0, 1), ones(2)),
            ),
            *_calls(
                lambda x, i, v: x.index_copy(0, i, v),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
                (zeros(3, 2), ints(0, 1), ones(2, 3)),
                (zeros(3, 2), ints(0, 1), ones(1, 2)),
                (zeros(3), ints(3), ones(1)),
                (zeros(3), ints(-1), ones(1)),
                (number, ints(2), ones(1)),
                (zeros(3), ints(0).int(), ones(1)),
            ),
            *_calls(
                lambda x, i: x.index_fill(0, i, 1.0),
                (zeros(3), ints([0])),
                (zeros(3), ints(3)),
                (zeros(3), ints(-4)),
                (zeros(3), ints(0).int()),
                (number, ints(1)),
                (zeros(0), ints(0)),
            ),
            *_calls(lambda x, i, v: x.index_fill(0, i, v), (zeros(3), ints(0), ones(1)), (zeros(3), ints(0), ones(2))),
            *_calls(
                lambda x, i, v: x.index_reduce(0, i, v, "amax"),
                (zeros(20, 10), torch.arange(20), ones(20, 3)),
                (zeros(3), ints(0), ones(2)),
                (zeros(3), ints(3), ones(1)),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
                (number, ints(1), ones(1)),
            ),
            *_calls(lambda x, i, v: x.index_reduce(0, i, v, "sum"), (zeros(3), ints(0), ones(1))),
        ],
        "take, put": [
            *_calls(lambda x, i: x.take(i), (number, ints(3, 9)), (number, ints(-2)), (zeros(0), ints(0))),
            *_calls(lambda x, i: x.take(i), (zeros(2, 3), ints(6)), (zeros(3), ints(0).int()), (zeros(3), ones(1))),
            *_calls(
                lambda x, i, v: x.put(i, v),
                (zeros(20), torch.arange(20), ones(3)),
                (zeros(3), ints(0), ones(2)),
                (zeros(3), ints(3), ones(1)),
                (zeros(3), ints(-4), ones(1)),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
                (zeros(0), ints(0), ones(1)),
                (number, ints(1), ones(1)),
            ),
            *_calls(
                lambda x, i, v: x.put(i, v, accumulate=True), (zeros(3), ints(7), ones(1)), (zeros(3), some, ones(1))
            ),
        ],
        "gather, scatter": [
            *_calls(
                lambda x, i: x.gather(0, i),
                (number, ints(1)),
                (zeros(3), ints(3)),
                (zeros(3), ints(-1)),
                (zeros(0), ints(0)),
                (zeros(3, 2), ints([0, 0, 0])),
                (zeros(3, 2), ints(0)),
                (zeros(3), ones(1)),
            ),
            *_calls(
                lambda x, i, v: x.scatter(0, i, v),
                (number, torch.tensor(1), number),
                (zeros(3), ints(3), ones(1)),
                (zeros(3), ints(-1), ones(1)),
                (zeros(3), ints(0, 1), ones(1)),
                (zeros(3, 2), ints([0, 0, 0]), ones(1, 3)),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
                (zeros(3), ints([0]), ones(1, 1)),
                (zeros(0), ints(0), ones(1)),
            ),
            *_calls(lambda x, i: x.scatter(0, i, 2.0), (zeros(3), ints(3)), (number, torch.tensor(-1))),
            *_calls(lambda x, i, v: x.scatter_add(0, i, v), (zeros(3), ints(3), ones(1)), (zeros(3), some, ones(1))),
            *_calls(
                lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
                (zeros(3), ints(5), ones(1)),
                (number, torch.tensor(1), number),
                (zeros(3), ints(0), ones(1, dtype=WIDE)),
            ),
            *_calls(lambda x, i, v: x.scatter_reduce(0, i, v, "max"), (zeros(3), ints(0), ones(1))),
        ],
        "embeddings": [
            *_calls(
                lambda w, i: F.embedding(i, w), (zeros(4, 2), ints(4)), (zeros(4, 2), ints(-1)), (zeros(4), ints(0))
            ),
            *_calls(lambda w, i: F.embedding(i, w), (zeros(0, 2), ints(0)), (zeros(4, 2), ones(1))),
            *_calls(
                lambda w, i, o: F.embedding_bag(i, w, o), (zeros(4, 2), ints(4), ints(0)), (zeros(4, 2), some, ints(1))
            ),
            *_calls(
                lambda w, i, o: F.embedding_bag(i, w, o),
                (zeros(4, 2), some, ints([0])),
                (zeros(4, 2), some, ints(0, 9)),
            ),
            *_calls(lambda i: F.one_hot(i, 3), (ints(3),), (ints(-1),)),
        ],
        "searches, repeats": [
            *_calls(torch.bucketize, (zeros(3, 2, 2), zeros(0, 3, 3)), (zeros(3), number), (zeros(3), zeros(2, 2))),
            *_calls(torch.bucketize, (zeros(3), zeros(3, dtype=WIDE))),
            *_calls(torch.searchsorted, (zeros(2, 3), zeros(3, 2)), (number, zeros(2)), (zeros(3), ints(0))),
            *_calls(torch.searchsorted, (zeros(2, 3), zeros(2))),
            *_calls(
                lambda s, v, order: torch.searchsorted(s, v, sorter=order),
                (zeros(3), ones(2), ints(0, 1)),
                (zeros(3), ones(2), ints(0, 1, 7)),
                (zeros(3), ones(2), ints(0, 1, 2).int()),
            ),
            *_calls(lambda s, v: torch.searchsorted(s, v, right=True, side="left"), (zeros(3), ones(2))),
            *_calls(lambda x, n: x.repeat_interleave(n, 0, output_size=40), (torch.arange(2.0), ints(1, 1))),
            *_calls(lambda x, n: x.repeat_interleave(n, 0, output_size=2), (torch.arange(2.0), ints(3, -1))),
            *_calls(lambda x, n: x.repeat_interleave(n, 0, output_size=2), (torch.arange(3.0), ints(1, 1))),
            *_calls(lambda x, m, v: x.masked_scatter(m, v), (zeros(3), ones(3).bool(), ones(2))),
            *_calls(
                lambda x, m, v: x.masked_scatter(m, v),
                (zeros(3), ones(3), ones(3)),
                (zeros(3), ones(3).bool(), ints(1, 2, 3)),
            ),
        ],
    }


def _reduction_members() -> dict[str, list[Refused]]:
    return {
        "extremes of nothing": [
            *(
                call
                for f in (torch.max, torch.min, torch.amax, torch.amin, torch.argmax, torch.argmin, torch.aminmax)
                for call in _calls(f, (empty,), (zeros(2, 0),))
            ),
            *(
                call
                for f in (torch.max, torch.min, torch.amax, torch.argmax, torch.mode, torch.median, torch.nanmedian)
                for call in _calls(f, (zeros(2, 0), 1), (zeros(0, 2), 0), (zeros(2), 1))
            ),
            *_calls(torch.kthvalue, (zeros(3), 4), (zeros(3), 0), (empty, 1)),
            *_calls(torch.topk, (zeros(3), 4), (number, 2)),
            *_calls(torch.quantile, (zeros(3), 1.5), (empty, 0.5)),
        ],
        "norms": [
            *_calls(lambda x, m: F.batch_norm(x, m, m + 1), (zeros(2, 3), zeros(1)), (zeros(2, 3), zeros(4))),
            *_calls(lambda x, m, w: F.batch_norm(x, m, m + 1, weight=w), (zeros(2, 30), zeros(30), zeros(2))),
            *_calls(lambda x, m: F.batch_norm(x, m, m + 1, training=True), (zeros(2, 3), zeros(1))),
            *_calls(lambda x, m: F.batch_norm(x, None, None, m, None, True), (zeros(4, 3), zeros(2))),
            *_calls(lambda x, m: F.batch_norm(x, None, None, None, m, True), (zeros(4, 3), zeros(4))),
            *_calls(lambda x: F.batch_norm(x, None, None, training=True), (zeros(1, 3),)),
            *_calls(lambda x, w: F.layer_norm(x, (4,), w), (zeros(2, 4), zeros(3)), (zeros(2, 3), zeros(4))),
            *_calls(lambda x, w: F.group_norm(x, 2, w), (zeros(2, 4), zeros(3)), (zeros(2, 3), zeros(3))),
            *_calls(lambda x, w: F.instance_norm(x, w, w + 1, use_input_stats=False), (zeros(2, 3, 4), zeros(2))),
            *_calls(lambda x, w: F.rms_norm(x, (4,), w), (zeros(2, 4), zeros(3))),
        ],
        "losses": [
            *_calls(lambda a, b: F.smooth_l1_loss(a, b, beta=-1.0), (ones(1), zeros(1))),
            *_calls(lambda a, b: F.huber_loss(a, b, delta=0.0), (ones(1), zeros(1))),
            *_calls(
                lambda t: F.binary_cross_entropy(torch.ones_like(t) * 0.5, t), (torch.full((4,), 1.5),), (-ones(2),)
            ),
            *_calls(lambda x: F.binary_cross_entropy(x, torch.ones_like(x)), (torch.full((4,), 1.5),), (-ones(2),)),
            *_calls(F.binary_cross_entropy, (ones(2), ones(3))),
            *_calls(lambda x, y: F.binary_cross_entropy(x, y, reduction="none"), (ones(3) / 2, 2 * ones(3))),
            *_calls(
                F.cross_entropy, (zeros(2, 3), ints(0, 3)), (zeros(2, 3), ints(0, -1)), (zeros(2, 3), ints(0, 1, 2))
            ),
            *_calls(
                F.cross_entropy, (zeros(2, 3), ints(0, 1).int()), (zeros(3), ints(0, 1)), (zeros(2, 3), zeros(2, 4))
            ),
            *_calls(
                F.nll_loss, (zeros(2, 3), ints(0, 3)), (zeros(2, 3, 2), ints([0, 5], [0, 0])), (zeros(2, 3), ints(0))
            ),
            *_calls(F.nll_loss, (zeros(2, 3, 4, 4), zeros(2, 4, 2).long()), (zeros(2, 3, 4, 4), zeros(1, 4, 4).long())),
            *_calls(F.cross_entropy, (zeros(2, 3), ints(0, 1), zeros(2))),
            *_calls(F.multi_margin_loss, (zeros(2, 3), ints(0, 3)), (zeros(2, 3), ints(0))),
            *_calls(lambda x, t: F.multi_margin_loss(x, t, p=3), (zeros(2, 3), ints(0, 1))),
            *_calls(
                F.multilabel_margin_loss, (zeros(2, 3), ints([0, 3, -1], [0, 0, 0])), (zeros(2, 3), ints([0], [0]))
            ),
            *_calls(F.kl_div, (zeros(2, 3), zeros(2, 4))),
            *_calls(F.mse_loss, (zeros(2, 3), zeros(2, 4))),
            *_calls(F.glu, (ones(2, 3),), (ones(2, 4, dtype=torch.int8),)),
        ],
        "distances, histograms": [
            *_calls(lambda x, y: torch.cdist(x, y, -1.0), (zeros(2, 3), zeros(2, 3))),
            *_calls(torch.cdist, (zeros(2, 3), zeros(2, 4)), (ints([1, 2]), ints([1, 2])), (zeros(3), zeros(3))),
            *_calls(lambda x: F.pdist(x, -1.0), (zeros(3, 2),)),
            *_calls(
                lambda x: torch.histc(x, 4), (torch.tensor([1.0, float("nan")]),), (torch.tensor([1.0, float("inf")]),)
            ),
            *_calls(lambda x: torch.histc(x, 0), (zeros(3),)),
            *_calls(lambda x: torch.histc(x, 4, 2, 1), (zeros(3),)),
            *_calls(lambda x: torch.renorm(x, -1.0, 0, 1.0), (zeros(3, 2),)),
            *_calls(lambda x: torch.renorm(x, 2.0, 0, -1.0), (zeros(3, 2),)),
        ],
    }


def _number_members() -> dict[str, list[Refused]]:
    return {
        "distributions": [
            *_calls(
                torch.bernoulli, (torch.full((4,), 1.5),), (torch.tensor([0.5, float("nan")]),), (-ones(2),), (ints(1),)
            ),
            *_calls(torch.bernoulli, (zeros(4), 1.5), (zeros(4), -0.5)),
            *_calls(lambda x, p: x.clone().bernoulli_(p), (zeros(4), 1.5), (zeros(4), torch.full((4,), 2.0))),
            *_calls(lambda s: torch.normal(torch.zeros_like(s), s), (torch.full((4,), -1.0),)),
            *_calls(lambda m: torch.normal(m, -1.0), (zeros(4),)),
            *_calls(lambda x: x.clone().normal_(0, -1), (zeros(4),), (ints(1),)),
            *_calls(lambda x: x.clone().uniform_(1, 0), (zeros(4),)),
            *_calls(lambda x: x.clone().exponential_(-1.0), (zeros(4),)),
            *_calls(lambda x: x.clone().geometric_(0.0), (zeros(4),)),
            *_calls(lambda x: x.clone().geometric_(1.0), (zeros(4),)),
            *_calls(lambda x: x.clone().cauchy_(0.0, -1.0), (zeros(4),)),
            *_calls(lambda x: x.clone().log_normal_(0.0, -1.0), (zeros(4),)),
            *_calls(lambda x: x.clone().random_(3, 3), (zeros(4),)),
            *_calls(lambda x: torch.randint(3, 3, x.shape, device=x.device), (zeros(4),)),
            *_calls(lambda x: torch.randint_like(x, 0), (zeros(4),)),
            *_calls(lambda x: torch.randperm(-1, device=x.device), (zeros(1),)),
            *_calls(lambda x: F.dropout(x, 1.5), (zeros(4),)),
            *_calls(lambda x: F.rrelu(x, 0.5, 0.1, training=True), (zeros(4),)),
        ],
        "draws by weights": [
            *_calls(torch.multinomial, (torch.tensor([-1.0, 2.0]), 1), (zeros(3), 1), (ones(3), 0), (ones(3), 4)),
            *_calls(torch.multinomial, (torch.tensor([float("nan"), 2.0]), 1), (torch.tensor([float("inf"), 2.0]), 1)),
            *_calls(torch.multinomial, (ones(3, dtype=torch.int64), 1), (ones(2, 2, 2), 1), (number, 1)),
            *_calls(
                torch.multinomial, (torch.stack([ones(3), zeros(3)]), 1, True), (torch.tensor([-1.0, 2.0]), 3, True)
            ),
            *_calls(torch.multinomial, (torch.tensor([-1.0, 2.0, 3.0]), 2)),
        ],
        "arithmetic": [
            *_calls(lambda x, y: x - y, (number, torch.tensor([False])), (torch.tensor([True]), torch.tensor([False]))),
            *_calls(lambda x: 1.0 - x, (torch.tensor([True]),)),
            *_calls(lambda x: -x, (torch.tensor([True]),)),
            *_calls(lambda x: x**-1, (ints(1, 2),), (ints(1, 2).to(torch.uint8),)),
            *_calls(lambda x: torch.round(x, decimals=-1), (torch.tensor([[1, -2]], dtype=torch.int8),), (ints(12),)),
            *(
                call
                for f in (torch.ceil, torch.floor, torch.trunc, torch.round, torch.frac)
                for call in _calls(f, (ones(2).bool(),))
            ),
            *(
                call
                for f in (torch.softmax, torch.log_softmax, torch.logcumsumexp)
                for call in _calls(f, (ints(1, 2), 0))
            ),
            *(
                call
                for f in (F.gelu, F.silu, F.elu, F.mish, F.softplus, F.hardswish, F.logsigmoid)
                for call in _calls(f, (ints(1, 2),))
            ),
            *_calls(torch.mean, (ints(1, 2),)),
            *_calls(torch.std, (ints(1, 2),)),
            *_calls(torch.lerp, (zeros(2), zeros(2, dtype=WIDE), 0.5), (ints(1), ints(2), 0.5)),
            *_calls(
                torch.addmm,
                (zeros(2, 2), zeros(2, 3), zeros(2, 2)),
                (zeros(2, 2), zeros(2, 2), zeros(2, 2, dtype=WIDE)),
            ),
            *_calls(torch.matmul, (zeros(2, 3), zeros(2, 3)), (zeros(2, 2), ints([1, 2], [3, 4])), (number, zeros(2))),
            *_calls(torch.clamp, (zeros(2),)),
            *_calls(torch.bitwise_and, (zeros(2), zeros(2)), (zeros(2), ints(1, 2))),
            *_calls(lambda x, y: x << y, (zeros(2), zeros(2))),
            *_calls(lambda x, y: torch.add(x, y, alpha=1.5), (ints(1), ints(2))),
            *_calls(torch.cross, (zeros(2), zeros(2))),
            *_calls(torch.softmax, (zeros(2), 1), (zeros(2, 2), -3)),
        ],
        "integers over zero": [
            *_calls(
                lambda x, y: x // y,
                (ints(1, 2), ints(0, 1)),
                (ints(1, 2).int(), ints(1, 0)),
                (ints(1, 2), torch.tensor(0)),
            ),
            *_calls(lambda x: x // 0, (ints(1, 2),), (ints(1, 2).to(torch.int8),)),
            *_calls(lambda x: 7 // x, (ints(1, 0),)),
            *_calls(
                torch.remainder, (ints(1, 2), ints(0, 1)), (ints(1, 2).to(torch.uint8), ints(1, 0).to(torch.uint8))
            ),
            *_calls(lambda x: 7 % x, (ints(1, 0),)),
            *_calls(lambda x: x % 0, (ints(1, 2),)),
            *_calls(torch.fmod, (ints(1, 2), ints(0, 1)), (ints(1, 2), 0)),
            *_calls(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (ints(1, 2), ints(0, 1))),
            *_calls(lambda x, y: torch.div(x, y, rounding_mode="floor"), (ints(1, 2), ints(2, 0)), (ints(1, 2), 0)),
            *_calls(lambda x, y: torch.where(y != 0, x // y, 0), (ints(1, 2), ints(0, 1))),
            *_calls(lambda x, y: x.clone().floor_divide_(y), (ints(1, 2), ints(0, 1))),
        ],
    }


def _window_members() -> dict[str, list[Refused]]:
    image, kernel = zeros(1, 2, 4, 4), zeros(2, 2, 3, 3)
    return {
        "pools": [
            *_calls(lambda x: F.avg_pool2d(x, 2, padding=2), (image,)),
            *_calls(lambda x: F.avg_pool2d(x, 9), (image,)),
            *_calls(lambda x: F.avg_pool2d(x, 2, divisor_override=0), (image,)),
            *_calls(lambda x: F.avg_pool1d(x, 0), (image[0],)),
            *_calls(lambda x: F.max_pool2d(x, 2, padding=2), (image,)),
            *_calls(lambda x: F.max_pool2d(x, 9), (image,)),
            *_calls(lambda x: F.max_pool2d(x, 2, dilation=0), (image,)),
            *_calls(lambda x: F.max_pool1d(x, 2, -1), (image[0],)),
            *_calls(lambda x: F.max_pool3d(x, 2), (image,), (zeros(2, 2),)),
            *_calls(lambda x: F.adaptive_avg_pool2d(x, (-1, 2)), (image,)),
            *_calls(lambda x: F.adaptive_max_pool2d(x, (2, 2)), (zeros(1, 2, 0, 4),), (zeros(4, 4),)),
            *_calls(
                lambda x, i: F.max_unpool2d(x, i, 2),
                (zeros(1, 1, 2, 2), ints([[[0, 1], [2, 99]]])),
                (image, ints([[[0]]])),
            ),
            *_calls(lambda x: F.max_pool2d(x.long().bool(), 2), (image,)),
        ],
        "convolutions, windows": [
            *_calls(
                F.conv2d,
                (image, zeros(2, 3, 3, 3)),
                (image, zeros(2, 2, 9, 9)),
                (image, zeros(2, 2, 3)),
                (zeros(2, 4), kernel),
            ),
            *_calls(F.conv2d, (image, kernel, zeros(3)), (image, kernel.double()), (image.long(), kernel)),
            *_calls(lambda x, w: F.conv2d(x, w, stride=0), (image, kernel)),
            *_calls(lambda x, w: F.conv2d(x, w, padding=-1), (image, kernel)),
            *_calls(lambda x, w: F.conv2d(x, w, dilation=0), (image, kernel)),
            *_calls(lambda x, w: F.conv2d(x, w, groups=3), (image, kernel)),
            *_calls(lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=2), (image, kernel)),
            *_calls(F.unfold, (image, 9), (image, 0), (zeros(4), 2)),
            *_calls(lambda x: F.unfold(x, 2, dilation=0), (image,)),
            *_calls(lambda x: F.fold(x, (4, 4), 2), (zeros(1, 8, 3),), (zeros(1, 7, 9),)),
            *_calls(lambda x: F.fold(x, (4, 4), 2, stride=0), (zeros(1, 8, 9),)),
            *_calls(lambda x: x.unfold(0, 9, 1), (zeros(4),)),
            *_calls(lambda x: x.unfold(0, 2, 0), (zeros(4),)),
            *_calls(lambda x: F.pad(x, (1, -9)), (zeros(4),)),
            *_calls(lambda x: F.pad(x, (5, 5), "reflect"), (zeros(1, 1, 4),)),
            *_calls(lambda x: F.pad(x, (5, 5), "circular"), (zeros(1, 1, 4),)),
            *_calls(lambda x: F.interpolate(x, (0, 2)), (image,)),
            *_calls(lambda x: F.pixel_shuffle(x, 2), (image,)),
        ],
        "shapes": [
            *_calls(
                lambda x, y: torch.cat((x, y)), (zeros(2, 3), zeros(2, 4)), (zeros(2), zeros(2, 3)), (number, zeros(1))
            ),
            *_calls(lambda x, y: torch.stack((x, y)), (zeros(2), zeros(3))),
            *_calls(lambda x: x.view(7), (zeros(2, 3),)),
            *_calls(lambda x: x.t().view(6), (zeros(2, 3),)),
            *_calls(lambda x: x.expand(4, 3), (zeros(2, 3),)),
            *_calls(lambda x: x.permute(0, 0), (zeros(2, 3),)),
            *_calls(lambda x: x.squeeze(5), (zeros(2, 3),)),
            *_calls(lambda x: x.split([1, 2]), (zeros(2, 3),)),
            *_calls(lambda x: x.chunk(0), (zeros(2, 3),)),
            *_calls(lambda x: x.roll(1, 5), (zeros(2, 3),)),
            *_calls(lambda x: x.flip(0, 0), (zeros(2, 3),)),
            *_calls(lambda x: x.diagonal(0, 0, 0), (zeros(2, 3),)),
            *_calls(lambda x: x.narrow(0, 1, 5), (zeros(2, 3),)),
            *_calls(lambda x: x.select(0, 5), (zeros(2, 3),)),
            *_calls(lambda x: x[5], (zeros(2, 3),)),
            *_calls(lambda x: torch.linspace(0, 1, -1, device=x.device), (zeros(1),)),
            *_calls(lambda x: torch.arange(0, 5, 0, device=x.device), (zeros(1),)),
            *_calls(lambda x: torch.arange(0, 5, -1, device=x.device), (zeros(1),)),
            *_calls(lambda x: torch.eye(-1, device=x.device), (zeros(1),)),
            *_calls(torch.tril, (zeros(3),)),
            *_calls(lambda x, y: x + y, (zeros(2), zeros(3))),
            *_calls(lambda c, x: torch.where(c, x, x), (zeros(2), zeros(2))),
            *_calls(lambda x: x.repeat(2), (zeros(2, 3),)),
            *_calls(lambda x: x.tile(-1), (zeros(2),)),
            *_calls(lambda x: x.cumsum(1), (zeros(2),)),
            *_calls(lambda x: x.sort(3), (zeros(2),)),
        ],
    }


CALLS: dict[str, Sequence[Refused]] = {
    **_shape_members(),
    **_reduction_members(),
    **_number_members(),
    **_window_members(),
    **arguments.dims(),
    **arguments.shapes(),
    **windows.windows(),
    **windows.layers(),
    **values.numbers(),
    **values.types(),
    **values.writes(),
}
"""Calls by kind."""

_FAKES = "dynamo's own program for tensors without data fails first, while it looks for the axis"
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "narrow_copy",
        "Expected dim <",
    ): "dynamo narrows as `narrow` does, which raises IndexError for a dim there is not",
    (
        "median",
        "cannot have more than 25 dimensions",
    ): "a limit of eager's kernel for GPUs alone",
    ("cat", "zero-dimensional tensor"): "torch's own fake of cat fails first, while it looks for the axis",
    (
        "pads, folds, grids",
        "CUDA error: invalid argument",
    ): "eager cannot launch a kernel without threads; what is left by a negative padding is empty here, as on a CPU",
    ("nothing and numbers", "split expects at least a 1-dimensional"): _FAKES,
    ("nothing and numbers", "zero-dimensional tensor"): _FAKES,
    (
        "results that do not fit",
        "to have dtype float, but got double",
    ): "torch takes `matmul` apart into a product and a copy, which takes any type, before any backend sees it",
    **{
        (f"__r{name}__", "doesn't apply to a 'int' object"): "dynamo itself computes with numbers that may change"
        for name in ("add", "mul", "and", "or", "xor")
    },
}
"""Why a call does not raise as eager does: by operator, or kind, and a part of eager's message.

What dynamo refuses itself as another type of error is not listed one by one: see `op_refusals.BY_DYNAMO`.
"""

_WAITS = "eager waits for the GPU, reads what a kernel found and raises; compiled code does not wait, and asserts"
ASSERTIONS: dict[tuple[str, str], str] = {
    ("multinomial", "probability tensor contains either"): _WAITS,
    ("multinomial", "invalid multinomial distribution"): _WAITS,
    ("draws by weights", "probability tensor contains either"): _WAITS,
    ("draws by weights", "invalid multinomial distribution"): _WAITS,
    ("random numbers of bad parameters", "probability tensor contains either"): _WAITS,
    ("random numbers of bad parameters", "invalid multinomial distribution"): _WAITS,
    ("random numbers of bad parameters", "normal expects all elements of std"): _WAITS,
    ("counts and searches", "sorter index out of range"): _WAITS,
    ("histc", "is not finite"): _WAITS,
    ("distances, histograms", "is not finite"): _WAITS,
    ("searchsorted", "sorter index out of range"): _WAITS,
    ("searches, repeats", "sorter index out of range"): _WAITS,
    ("normal", "normal expects all elements of std"): _WAITS,
    ("distributions", "normal expects all elements of std"): _WAITS,
    ("values for the places of a mask", "shape mismatch"): _WAITS,
    ("losses", "returned"): "eager's kernel for GPUs takes what lies behind its input for a label that there is not",
}
"""Why a kernel asserts where eager raises and the GPU can be used on: by operator, or kind, and part of the message."""
