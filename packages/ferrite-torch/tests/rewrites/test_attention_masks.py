"""Attention masks that are known while compiling: which are left out, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from ferrite_torch.rewrites.attention_masks import HIDDEN, simplify_masks

QUERIES = 8


def meaning(attention: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[tuple[bool, bool]]:
    """Returns for each attention of a function whether it still has a mask, and whether it is causal by flag."""
    found: list[tuple[bool, bool]] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        simplify_masks(module)
        for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
            mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
            causal = node.kwargs.get("is_causal", node.args[5] if len(node.args) > 5 else False)
            found.append((mask is not None, bool(causal)))
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile(attention, backend=backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs), attention(*inputs))
    return found


def heads(keys: int = QUERIES) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, QUERIES, 4, generator=generator)
    return query, torch.randn(2, 3, keys, 4, generator=generator), torch.randn(2, 3, keys, 4, generator=generator)


def with_mask(make: Callable[[Tensor, int], Any]) -> Callable[..., Tensor]:
    """Returns attention with the mask that a function of the query and the number of keys returns."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=make(query, key.shape[2], *rest))

    return attention


def positions(query: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(query.shape[2], device=query.device)[None, None, :, None]
    return rows, torch.arange(keys, device=query.device)[None, None, None, :]


def packed_causal(query: Tensor, keys: int) -> Tensor:
    """Returns a mask as transformers builds one: causal, and within the sequences that positions tell apart."""
    rows, columns = positions(query, keys)
    place = torch.arange(query.shape[2], device=query.device)[None].expand(query.shape[0], -1)
    sequence = (torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch = torch.arange(query.shape[0], device=query.device)[:, None, None, None]
    mask = rows.new_ones((), dtype=torch.bool) & (columns <= rows).to(query.device)
    mask = mask & (sequence[batch, rows] == sequence[batch, columns])
    return mask.expand(query.shape[0], -1, query.shape[2], keys)


def additive(hidden: float) -> Callable[[Tensor, int], Tensor]:
    def make(query: Tensor, keys: int) -> Tensor:
        rows, columns = positions(query, keys)
        return torch.zeros(rows.shape[2], keys).masked_fill((columns > rows)[0, 0], hidden)

    return make


def overwritten(query: Tensor, keys: int) -> Tensor:
    mask = torch.ones(query.shape[2], keys, dtype=torch.bool)
    mask.view(-1)[1:3] = False
    return mask


CASES: dict[str, tuple[Callable[..., Any], tuple[bool, bool]]] = {
    "nothing by rows": (lambda q, k: (positions(q, k)[0] >= 0).expand(2, -1, -1, k), (False, False)),
    "nothing by ones": (lambda q, k: torch.ones(q.shape[0], 1, 1, k, dtype=torch.bool), (False, False)),
    "nothing added": (lambda q, k: (1.0 - torch.ones(q.shape[0], 1, 1, k)) * -3e38, (False, False)),
    "nothing, by another's shape": (lambda q, k: torch.zeros_like(q[:, :1, :, :1]).expand(2, 1, -1, k), (False, False)),
    "zeros added": (lambda q, k: torch.zeros(1, k), (False, False)),
    "causal": (lambda q, k: torch.ones(q.shape[2], k, dtype=torch.bool).tril(), (False, True)),
    "causal, packed": (packed_causal, (False, True)),
    "causal by infinity": (additive(float("-inf")), (False, True)),
    "causal by the least number": (lambda q, k: additive(torch.finfo(q.dtype).min)(q, k), (False, True)),
    "nearly hidden": (additive(HIDDEN / 2), (True, False)),
    "anticausal": (lambda q, k: torch.ones(q.shape[2], k, dtype=torch.bool).triu(), (True, False)),
    "window": (lambda q, k: (positions(q, k)[0] - positions(q, k)[1]).abs() < 3, (True, False)),
    "overwritten": (overwritten, (True, False)),
    "causal, by a method": (lambda q, k: positions(q, k)[1].__le__(positions(q, k)[0])[0, 0], (False, True)),
    "none": (lambda q, k: None, (False, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_masks_are_left_out_where_they_say_nothing_more(name: str) -> None:
    make, expected = CASES[name]
    assert meaning(with_mask(make), *heads()) == [expected]


UNKNOWN_UNLESS_STATIC = frozenset(("nothing added",))
"""Masks that are looked at when their sizes are known, but whose elements are not found for all sizes."""


@pytest.mark.parametrize("name", CASES)
def test_masks_of_any_size_are_left_out_where_they_say_nothing_more(name: str) -> None:
    make, expected = CASES[name]
    found = meaning(with_mask(make), *heads(), dynamic=True)
    assert found == [(True, False) if name in UNKNOWN_UNLESS_STATIC else expected]


def test_a_causal_mask_over_another_number_of_keys_stays_for_any_sizes() -> None:
    def make(query: Tensor, keys: int) -> Tensor:
        return torch.ones(query.shape[2], keys, dtype=torch.bool).tril()

    assert meaning(with_mask(make), *heads(keys=QUERIES + 4), dynamic=True) == [(True, False)]


def test_a_mask_that_depends_on_an_input_stays() -> None:
    kept = torch.ones(2, 1, 1, QUERIES, dtype=torch.bool)
    assert meaning(with_mask(lambda q, k, kept: kept), *heads(), kept) == [(True, False)]
    assert meaning(with_mask(lambda q, k, kept: kept.expand(2, 1, QUERIES, k)), *heads(), kept) == [(True, False)]


def test_a_causal_mask_over_more_keys_than_queries_stays() -> None:
    def make(query: Tensor, keys: int) -> Tensor:
        return torch.ones(query.shape[2], keys, dtype=torch.bool).tril()

    assert meaning(with_mask(make), *heads(keys=QUERIES + 4)) == [(True, False)]


def test_a_mask_of_one_query_that_sees_all_keys_is_left_out() -> None:
    query, key, value = heads()

    def make(query: Tensor, keys: int) -> Tensor:
        rows, columns = positions(query, keys)
        return columns <= rows + keys - 1

    assert meaning(with_mask(make), query[:, :, :1], key, value) == [(False, False)]


@pytest.mark.parametrize("write", ["fill", "setitem", "out", "and"])
def test_a_mask_that_is_changed_later_stays(write: str) -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = torch.ones(QUERIES, QUERIES, dtype=torch.bool)
        view = mask.view(-1)
        match write:
            case "fill":
                view[3:].fill_(False)
            case "setitem":
                mask[:, 2:] = False
            case "out":
                torch.zeros(QUERIES * QUERIES, dtype=torch.bool, out=view)
                mask.view(-1)[::2] = True
            case "and":
                mask &= torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    assert meaning(attention, *heads()) == [(True, False)]


def test_positional_arguments_and_further_ones_are_kept() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(query, key, value, mask, 0.0, False, scale=0.3)

    assert meaning(attention, *heads()) == [(False, True)]


def test_several_attentions_share_one_mask() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = packed_causal(query, key.shape[2])
        first = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return F.scaled_dot_product_attention(first, key, value, attn_mask=mask)

    assert meaning(attention, *heads()) == [(False, True)] * 2


def test_positions_that_are_also_embedded_do_not_matter() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        place = torch.arange(QUERIES)[None]
        query = query + F.embedding(place, table)
        mask = place[:, None, None, :] <= place[:, None, :, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    assert meaning(attention, *heads(), torch.randn(QUERIES, 4)) == [(False, True)]


def test_the_backend_calls_causal_attention() -> None:
    torch.compiler.reset()
    attention = with_mask(packed_causal)
    compiled = torch.compile(attention, backend="ferrite", options={"fallback": False}, dynamic=False)
    torch.testing.assert_close(compiled(*heads()), attention(*heads()))
    program = ferrite_torch.compiled_programs()[-1]
    calls = [step for step in program["steps"] if "scaled_dot_product" in step.get("target", "")]
    assert [(call["args"][4:], call["kwargs"]) for call in calls] == [([True], {})]
