"""Generation: a prompt, then one token after the other, over a cache that grows or one that is filled in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it counts ferrite's own compilations")

VOCABULARY, WIDTH, HEADS, LONGEST = 64, 16, 2, 80
STEPS = 64
MOST_GRAPHS = 3
Cache = tuple[Tensor, Tensor]


class Decoder(nn.Module):
    """One block of a decoder, with a cache that grows by ``cat`` or a static one that is written at its position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.packed = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, place: Tensor, cache: Cache | None, *, is_static: bool) -> tuple[Tensor, Cache]:
        batch, length = ids.shape
        x = self.tokens(ids) + self.places(place)
        packed = self.packed(self.norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        if is_static:
            assert cache is not None
            k, v = cache[0].index_copy(2, place, k), cache[1].index_copy(2, place, v)
        elif cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = torch.arange(k.shape[2])[None] <= place[:, None]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + attended.transpose(1, 2).reshape(batch, length, WIDTH)
        return self.head(x)[:, -1].argmax(-1), (k, v)


def generated(called: Any, prompt: Tensor, *, is_static: bool, steps: int = STEPS) -> Tensor:
    batch, length = prompt.shape
    empty = torch.zeros(batch, HEADS, LONGEST, WIDTH // HEADS)
    cache = (empty, empty.clone()) if is_static else None
    with torch.no_grad():
        token, cache = called(prompt, torch.arange(length), cache, is_static=is_static)
        tokens = [token]
        for step in range(steps):
            token, cache = called(token[:, None], torch.arange(1) + length + step, cache, is_static=is_static)
            tokens.append(token)
    return torch.stack(tokens, 1)


@pytest.mark.parametrize("is_static", [False, True], ids=["growing", "static"])
def test_a_generate_loop_compiles_three_graphs_at_most(*, is_static: bool) -> None:
    model = Decoder().eval()
    ferrite_torch.reset_statistics()
    called = torch.compile(model, backend="ferrite", options={"fallback": False}, fullgraph=True)

    def check(prompt: Tensor, steps: int) -> None:
        mine, theirs = (generated(each, prompt, is_static=is_static, steps=steps) for each in (called, model))
        assert torch.equal(mine, theirs)

    check(torch.randint(VOCABULARY, (2, 5)), STEPS)
    if is_static:  # another prompt makes its length symbolic, and the tokens behind it compile nothing
        check(torch.randint(VOCABULARY, (2, 9)), 2)
        check(torch.randint(VOCABULARY, (2, 7)), 2)
    assert ferrite_torch.statistics()["graphs"] <= MOST_GRAPHS
    assert ferrite_torch.statistics()["specialised"] == {}


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("is_static", [False, True], ids=["growing", "static"])
def test_other_prompts_compile_what_dynamo_asks_for(*, is_static: bool, dynamic: bool | None) -> None:
    """A cache that comes out of a prompt is a view of the packed projections, one that a step made is not.

    Dynamo guards strides: the first step behind a prompt is a graph of its own, and a second length makes it dynamic.
    """
    model, counter = Decoder().eval(), CompileCounter()
    prompts = [torch.randint(VOCABULARY, (2, length)) for length in (5, 9, 7)]
    own = torch.compile(model, backend="ferrite", options={"fallback": False}, fullgraph=True, dynamic=dynamic)
    other = torch.compile(model, backend=counter, fullgraph=True, dynamic=dynamic)
    ferrite_torch.reset_statistics()
    for called in (own, other):
        torch._dynamo.reset()
        for prompt in prompts:
            mine, theirs = (generated(each, prompt, is_static=is_static, steps=3) for each in (called, model))
            assert torch.equal(mine, theirs)
    assert ferrite_torch.statistics()["graphs"] == counter.frame_count
    assert counter.frame_count <= (MOST_GRAPHS if dynamic or is_static else MOST_GRAPHS + 2)
