"""Attention as products and a softmax in a model: what it becomes, with equal results, and what stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from ferrite_torch.rewrites.attention_masks import simplify_masks
from ferrite_torch.rewrites.attention_patterns import rewrite_attention

SIZE, WIDTH = 6, 8
Attend = Callable[..., Tensor]


def rewritten(attend: Attend, *inputs: Tensor) -> str | None:
    """Returns the options of the call that attention becomes, None if it stays; checks that results stay as well."""
    found: list[str | None] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        rewrite_attention(module)
        simplify_masks(module)
        module.graph.lint()
        calls = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        found.extend(
            ", ".join(sorted(f"{name}={value}" for name, value in call.kwargs.items() if value)) for call in calls
        )
        if calls:
            assert not any("softmax" in str(node.target) for node in module.graph.nodes)
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile(attend, backend=backend, fullgraph=True, dynamic=False)
    torch.manual_seed(1)
    mine = compiled(*inputs)
    if "dropout" not in "".join(filter(None, found)):
        torch.testing.assert_close(mine, attend(*inputs), equal_nan=True)
        assert mine.stride() == attend(*inputs).stride()
    return found[0] if found else None


def heads(keys: int = SIZE, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, size, width, generator=generator) for size in (SIZE, keys, keys))
    return query, key, value


def causal(size: int) -> Tensor:
    return torch.tril(torch.ones(size, size, dtype=torch.bool))


RULES: dict[str, tuple[Attend, str]] = {
    "plain": (lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1) @ v, "scale=1.0"),
    "divided": (lambda q, k, v: F.softmax(q @ k.mT / math.sqrt(4), dim=-1) @ v, "scale=0.5"),
    "multiplied": (lambda q, k, v: ((q @ k.permute(0, 1, 3, 2)) * 0.25).softmax(3).matmul(v), "scale=0.25"),
    "factor on the query": (lambda q, k, v: (2 * ((q * 0.25) @ k.mT)).softmax(-1) @ v, "scale=0.5"),
    "softmax in another type": (
        lambda q, k, v: torch.softmax((q @ k.mT * 0.5).double(), -1, dtype=torch.float32).to(q.dtype) @ v,
        "scale=0.5",
    ),
    "a type that is asked for": (
        lambda q, k, v: (s := q @ k.mT).double().softmax(-1).type_as(s) @ v,
        "scale=1.0",
    ),
    "causal, filled": (
        lambda q, k, v: (q @ k.mT).masked_fill(~causal(SIZE), -math.inf).softmax(-1) @ v,
        "is_causal=True, scale=1.0",
    ),
    "causal, chosen": (
        lambda q, k, v: torch.where(causal(SIZE), 0.5 * (q @ k.mT), -math.inf).softmax(-1) @ v,
        "is_causal=True, scale=0.5",
    ),
    "causal, added": (
        lambda q, k, v: (q @ k.mT / 4 + torch.full((SIZE, SIZE), -math.inf).triu(1)).softmax(-1) @ v,
        "is_causal=True, scale=0.25",
    ),
    "a mask that hides nothing": (
        lambda q, k, v: torch.where(torch.ones(SIZE, SIZE, dtype=torch.bool), q @ k.mT, -math.inf).softmax(-1) @ v,
        "scale=1.0",
    ),
    "another mask": (
        lambda q, k, v: (
            (q @ k.mT).masked_fill(torch.arange(SIZE)[:, None] == torch.arange(SIZE), -math.inf).softmax(-1) @ v
        ),
        "attn_mask=logical_not, scale=1.0",
    ),
    "numbers that are added": (
        lambda q, k, v: (q @ k.mT + torch.arange(SIZE).float()).softmax(-1) @ v,
        "attn_mask=unsqueeze, scale=1.0",
    ),
    "a factor around a mask": (
        lambda q, k, v: (0.5 * (q @ k.mT).masked_fill(~causal(SIZE), -math.inf)).softmax(-1) @ v,
        "is_causal=True, scale=0.5",
    ),
    "three dims": (
        lambda q, k, v: torch.bmm((torch.bmm(q[0], k[0].transpose(1, 2)) / 2).softmax(-1), v[0]),
        "scale=0.5",
    ),
    "dropout": (lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.25) @ v, "dropout_p=0.25, scale=1.0"),
    "dropout while not training": (
        lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.25, training=False) @ v,
        "scale=1.0",
    ),
    "heads put together": (
        lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(2, SIZE, -1),
        "scale=1.0",
    ),
    "a result seen from elsewhere": (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).view(2, -1), "scale=1.0"),
}
"""Attention as models write it, and the options of the call that it becomes."""

KNOWN_ONLY_TO_THE_CALL: dict[str, Attend] = {
    "hidden": lambda q, k, v: (q @ k.mT).masked_fill(v[..., :1].mT > 0, -math.inf).softmax(-1) @ v,
    "seen": lambda q, k, v: torch.where(v[..., :1].mT > 0, q @ k.mT, -math.inf).softmax(-1) @ v,
    "hidden by a number": lambda q, k, v: (q @ k.mT * 0.5).masked_fill(v[..., :1].mT > 0, -1e9).softmax(-1) @ v,
    "hidden by the least number": lambda q, k, v: (
        torch.where(v[..., :1] > 0, q @ k.mT, torch.finfo(q.dtype).min).softmax(-1) @ v
    ),
    "hidden by a tensor": lambda q, k, v: (
        torch.where(v[..., :1] > 0, q @ k.mT, torch.full([], -3e38, dtype=q.dtype)).softmax(-1) @ v
    ),
    "numbers": lambda q, k, v: (q @ k.mT + v[..., :1].mT).softmax(-1) @ v,
    "numbers before": lambda q, k, v: (v[..., :1].mT + q @ k.mT).softmax(-1) @ v,
    "infinities": lambda q, k, v: (
        (q @ k.mT + torch.zeros_like(v[..., :1]).masked_fill(v[..., :1] > 0, -math.inf)).softmax(-1) @ v
    ),
    "numbers and numbers": lambda q, k, v: (q @ k.mT / 2 + v[..., :1].mT + k[:1, :, :, 1:2]).softmax(-1) @ v,
    "numbers, and hidden": lambda q, k, v: (
        (q @ k.mT / 2 + v[..., :1].mT).masked_fill(k[..., :1] > 0.5, -math.inf).softmax(-1) @ v
    ),
    "numbers, and hidden by a number": lambda q, k, v: (
        (q @ k.mT / 2 + v[..., :1].mT).masked_fill(k[..., :1] > 0.5, -1e9).softmax(-1) @ v
    ),
    "three dims": lambda q, k, v: (q[0] @ k[0].mT).masked_fill(v[0, :, :, :1] > 0, -math.inf).softmax(-1) @ v[0],
    "a query that sees nothing": lambda q, k, v: (
        (q @ k.mT).masked_fill(torch.ones(SIZE, SIZE, dtype=torch.bool).triu(), -math.inf).softmax(-1) @ v
    ),
}
"""Masks of which nobody can say before the call that they leave every query a key; many here do not."""


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", q, k)


EINSUMS: dict[str, Attend] = {
    "heads first": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", scores(q, k).softmax(-1), v),
    "heads inside": lambda q, k, v: torch.einsum(
        "b h i j, b j h d -> b i h d",
        (torch.einsum("b i h d, b j h d -> b h i j", q.transpose(1, 2), k.transpose(1, 2)) * 0.5).softmax(-1),
        v.transpose(1, 2),
    ),
    "ellipsis": lambda q, k, v: torch.einsum(
        "...ij,...jd->...id", torch.einsum("...id,...jd->...ij", q, k).softmax(dim=-1), v
    ),
    "keys first": lambda q, k, v: torch.einsum("bhkd,bhqk->bhqd", v, torch.einsum("bhkd,bhqd->bhqk", k, q).softmax(-1)),
    "a product and a sum": lambda q, k, v: torch.einsum("bhij,bhje->bhie", (q @ k.mT).softmax(-1), v),
}


KEPT: dict[str, Attend] = {
    "added numbers of another type": lambda q, k, v: (q @ k.mT + v[..., :SIZE, :1].mT.bfloat16()).softmax(-1) @ v,
    "a number that may not hide": lambda q, k, v: (q @ k.mT).masked_fill(~causal(SIZE), -1e4).softmax(-1) @ v,
    "numbers added to a number that hides": lambda q, k, v: (
        ((q @ k.mT).masked_fill(v[..., :1].mT > 0, -1e9) + v[..., 1:2].mT).softmax(-1) @ v
    ),
    "a product that is broadcast": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", scores(q, k[:, :1]).softmax(-1), v),
    "a factor around added numbers": lambda q, k, v: (0.5 * (q @ k.mT + torch.ones(SIZE))).softmax(-1) @ v,
    "a negative factor around a mask": lambda q, k, v: (
        (-1.0 * (q @ k.mT).masked_fill(~causal(SIZE), -math.inf)).softmax(-1) @ v
    ),
    "softmax over the queries": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "keys as they are": lambda q, k, v: (q @ k).softmax(-1) @ v,
    "weights that are read elsewhere": lambda q, k, v: (w := (q @ k.mT).softmax(-1)) @ v + w.sum(),
    "scores that are read elsewhere": lambda q, k, v: (s := q @ k.mT).softmax(-1) @ v + s.sum(),
    "something between": lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v,
    "heads that are shared": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
    "an odd width": lambda q, k, v: (q[..., :7] @ k[..., :7].mT).softmax(-1) @ v[..., :7],
    "wider values": lambda q, k, v: (q @ k.mT).softmax(-1) @ torch.cat((v, v), -1),
    "wide floats": lambda q, k, v: (q.double() @ k.double().mT).softmax(-1) @ v.double(),
}


def written_over(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    query = q + 1
    weights = (query @ k.mT).softmax(-1)
    query.zero_()
    return weights @ v + query


def assert_trains(attend: Attend, dtype: torch.dtype) -> None:
    """Fails unless the compiled function's values and gradients are about as close to float64's as eager's are."""

    def run(call: Attend, kind: torch.dtype) -> list[Tensor]:
        inputs = [each.to(kind).requires_grad_() for each in heads()]
        result = call(*inputs)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), inputs)]

    torch.compiler.reset()
    ferrite_torch.reset_statistics()
    compiled = torch.compile(attend, backend="ferrite", fullgraph=True, dynamic=False, options={"fallback": False})
    for found, eager, exact in zip(
        *(run(compiled, dtype), run(attend, dtype), run(attend, torch.float64)), strict=True
    ):
        error, own = ((each.double() - exact).norm() / exact.norm() for each in (found, eager))
        assert error <= max(1.5 * own, 8 * torch.finfo(torch.float32).eps)  # eager's own in float32 is two roundings


@pytest.mark.parametrize("name", RULES)
def test_what_it_becomes(name: str) -> None:
    attend, options = RULES[name]
    inputs = heads(WIDTH if name == "keys as they are" else SIZE)
    assert rewritten(attend, *inputs) == options


@pytest.mark.parametrize("name", KNOWN_ONLY_TO_THE_CALL)
def test_masks_that_only_the_call_knows(name: str) -> None:
    """Where a query sees nothing, results are what they were; gradients are NaN where any were."""
    attend = KNOWN_ONLY_TO_THE_CALL[name]
    found = rewritten(attend, *heads())
    assert found is not None
    assert "attn_mask" in found

    def trained(call: Attend) -> list[Tensor]:
        inputs = [each.requires_grad_() for each in heads()]
        result = call(*inputs)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), inputs)]

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        assert rewrite_attention(module) == 1
        return module.forward

    torch.compiler.reset()
    fast = torch.compile(attend, backend=backend, fullgraph=True, dynamic=False)
    (mine, *grads), (result, *expected) = trained(fast), trained(attend)
    torch.testing.assert_close(mine, result, equal_nan=True)
    broken = torch.stack([grad.isnan().any(-1).any(-1) for grad in expected]).any(0)
    for found, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(found[~broken], wanted[~broken], rtol=1e-4, atol=1e-5)
        assert found[wanted.isnan()].isnan().all()


@pytest.mark.parametrize("name", EINSUMS)
def test_sums_of_einstein(name: str) -> None:
    assert rewritten(EINSUMS[name], *heads()) == f"scale={0.5 if name == 'heads inside' else 1.0}"


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    inputs = heads(WIDTH, WIDTH) if name == "keys as they are" else heads()
    if name == "keys as they are":
        inputs = tuple(torch.randn(2, 3, WIDTH, WIDTH) for _ in range(3))
    assert rewritten(KEPT[name], *inputs) is None


def test_operands_that_are_written_to_stay() -> None:
    assert rewritten(written_over, *heads()) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_result_that_is_written_to_has_its_gradients(dtype: torch.dtype) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = torch.softmax(q @ k.mT, -1) @ v
        mixed.transpose(1, 2)[:, 1:] += 1
        mixed += v.tanh()
        return mixed * 2

    assert rewritten(attend, *heads()) is not None
    assert_trains(attend, dtype)


def test_other_numbers_of_keys() -> None:
    assert rewritten(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, *heads(4)) == "scale=1.0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_compiled_values_and_gradients(dtype: torch.dtype) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) / math.sqrt(WIDTH)).masked_fill(~causal(SIZE), -math.inf)
        return torch.softmax(scores.float(), -1).to(q.dtype) @ v

    assert_trains(attend, dtype)
    steps = [step.get("target", "") for program in ferrite_torch.compiled_programs() for step in program["steps"]]
    assert any("scaled_dot_product" in target for target in steps)


def test_dropout_is_the_same_forward_and_backward() -> None:
    """Attention is linear in its values: its derivative by them, times them, is the result, if the same ones drop."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    torch.compiler.reset()
    q, k, v = heads()
    v.requires_grad_()
    result = torch.compile(attend, backend="ferrite", fullgraph=True, dynamic=False)(q, k, v)
    (gradient,) = torch.autograd.grad(result.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), result.sum())
    assert not torch.allclose(result, attend(q, k, v)), "some are dropped"


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "joined": (lambda o: o.transpose(1, 2).reshape(2, SIZE, -1) + 1, False),
    "gated and joined": (lambda o: (o * o.sigmoid()).transpose(1, 2).flatten(2) * 2, False),
    "a product": (lambda o: o.relu() @ torch.ones(WIDTH, 3) + 1, False),
    "one that multiplies it": (lambda o: torch.ones(4, SIZE) @ o, True),
    "an element-wise op": (lambda o: o + 1, True),
    "every second": (lambda o: o.transpose(1, 2)[:, ::2].reshape(2, SIZE // 2, -1), True),
    "a view": (lambda o: (o + 1).view(2, 3, -1), True),
}


@pytest.mark.parametrize("what", LAYOUTS)
def test_the_result_is_copied_for_those_who_could_tell_how_it_lies(what: str) -> None:
    reader, is_copied = LAYOUTS[what]
    copies: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        assert rewrite_attention(module) == 1
        copies.append(len(module.graph.find_nodes(op="call_method", target="contiguous")))
        return module.forward

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reader(torch.softmax(q @ k.mT, -1) @ v)

    torch.compiler.reset()
    inputs = [torch.randn(2, SIZE, 3, WIDTH).transpose(1, 2) for _ in range(3)]
    mine = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    assert copies == [int(is_copied)]
    assert mine.stride() == function(*inputs).stride()
