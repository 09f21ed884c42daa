"""Products in groups of lengths that only data knows, and mixtures of experts written with them or without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from against_eager import assert_all_close, compiled, devices, forms, own_only, widened
from ferrite_torch.lowering.products import grouped_products, tiled_products
from ferrite_torch.thresholds import PRODUCTS

OPTIONS: dict[str, Any] = {"fallback": False, "verify": True, "products": "own"}
ROWS, K, N, GROUPS = 40, 32, 48, 5
ENDS = ([7, 7, 20, 39, 40], [0, 0, 0, 0, 40], [8, 16, 24, 32, 40], [40, 40, 40, 40, 40])


def drawn(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [(torch.randn(shape, generator=generator) / 2).to(device, dtype) for shape in shapes]


def ends_of(device: str, ends: list[int] = ENDS[0]) -> Tensor:
    return torch.tensor(ends, device=device, dtype=torch.int32)


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Returns what the op does, of any type."""
    if x.dtype is torch.bfloat16:
        return torch._grouped_mm(x, w, offs=ends)
    starts = [0, *ends.tolist()]
    spans = [slice(a, b) for a, b in pairwise(starts)]
    if x.ndim == w.ndim:
        return torch.stack([x[:, span] @ w[span] for span in spans])
    if x.ndim == 3:
        return torch.cat([x[g] @ w[:, span] for g, span in enumerate(spans)], 1)
    return torch.cat([x[span] @ w[g] for g, span in enumerate(spans)])


def plain(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return grouped(x, w, ends)


def activated(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return F.gelu(grouped(x, w, ends))


def of_linear(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return grouped(x, w.transpose(1, 2).contiguous().transpose(1, 2), ends)


def residual(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return grouped(x, w, ends) + x.float().sum(1, keepdim=True).to(x.dtype)


def scaled(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return grouped(x, w, ends) * x[:, :1].sigmoid()


def gated(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return F.silu(grouped(x, w, ends)) * grouped(x, w.flip(0), ends)


def twice(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return grouped(torch.relu(grouped(x, w, ends)), w.transpose(1, 2), ends)


FUNCTIONS = [plain, activated, of_linear, residual, scaled, gated, twice]


def check(function: Callable[..., Tensor], ends: Tensor, *given: Tensor, **how: Any) -> None:
    """Fails unless a compiled function is as exact as torch on the CPU.

    On a GPU torch ends the process where a group of columns, or of rows that are summed, is no multiple of 16 bytes.
    """
    mine = compiled(function, fullgraph=True, options=OPTIONS, **how)(*given, ends)
    exact = function(*map(widened, given), ends)
    theirs = function(*(each.cpu() for each in given), ends.cpu()).to(ends.device)
    assert_all_close([mine], [theirs], [exact])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("function", [plain, gated])
def test_rows_in_groups(function: Callable[..., Tensor], ends: list[int], device: str) -> None:
    check(function, ends_of(device, ends), *drawn(device, torch.bfloat16, (ROWS, K), (GROUPS, K, N)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_reads_rows_in_groups(function: Callable[..., Tensor], device: str) -> None:
    check(function, ends_of(device), *drawn(device, torch.bfloat16, (ROWS, K), (GROUPS, K, N)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_columns_in_groups(ends: list[int], device: str) -> None:
    check(activated, ends_of(device, ends), *drawn(device, torch.bfloat16, (GROUPS, N, K), (K, ROWS)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_sums_in_groups(ends: list[int], device: str) -> None:
    check(activated, ends_of(device, ends), *drawn(device, torch.bfloat16, (K, ROWS), (ROWS, N)))


@pytest.mark.parametrize("device", devices())
def test_lists_of_matrices_are_a_batch(device: str) -> None:
    def batched(x: Tensor, w: Tensor) -> Tensor:
        return torch._grouped_mm(x, w) if x.dtype is torch.bfloat16 else x @ w

    given = drawn(device, torch.bfloat16, (GROUPS, ROWS, K), (GROUPS, K, N))
    mine = compiled(batched, fullgraph=True, options=OPTIONS)(*given)
    assert_all_close([mine], [batched(*given)], [batched(*map(widened, given))])


@pytest.mark.parametrize("device", devices())
def test_rows_of_no_group_leave_the_others_alone(device: str) -> None:
    x, w = drawn(device, torch.bfloat16, (ROWS, K), (GROUPS, K, N))
    ends = ends_of(device, [3, 3, 9, 20, 31])
    mine = compiled(activated, fullgraph=True, options=OPTIONS)(x, w, ends)
    exact = activated(widened(x), widened(w), ends)
    assert_all_close([mine[:31]], [activated(x, w, ends)[:31]], [exact])


@pytest.mark.parametrize("device", devices())
def test_symbolic_rows(device: str) -> None:
    function = compiled(gated, fullgraph=True, options=OPTIONS, dynamic=True)
    (w,) = drawn(device, torch.bfloat16, (GROUPS, K, N))
    for rows in (ROWS, 64, 9):
        (x,) = drawn(device, torch.bfloat16, (rows, K))
        ends = ends_of(device, [2, 2, 5, rows, rows])
        assert_all_close([function(x, w, ends)], [gated(x, w, ends)], [gated(widened(x), widened(w), ends)])


class Experts(nn.Module):
    """Experts with a gate, on tokens sorted by expert."""

    def __init__(self, experts: int = 4, top: int = 2, width: int = 32, inner: int = 48) -> None:
        super().__init__()
        self.top, self.experts = top, experts
        self.router = nn.Linear(width, experts, bias=False)
        for name, shape in {"w1": (width, inner), "w3": (width, inner), "w2": (inner, width)}.items():
            setattr(self, name, nn.Parameter(torch.randn(experts, *shape) / shape[0] ** 0.5))

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares, chosen = F.softmax(self.router(x).float(), -1).topk(self.top, -1)
        return shares.to(x.dtype), chosen

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.routed(x)
        order = chosen.flatten().argsort(stable=True)
        ends = (chosen.flatten()[:, None] == torch.arange(self.experts, device=x.device)).sum(0).cumsum(0).int()
        rows = x[order // self.top]
        h = F.silu(grouped(rows, self.w1, ends)) * grouped(rows, self.w3, ends)
        y = grouped(h, self.w2, ends) * shares.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, order // self.top, y)


class Masked(Experts):
    """The same as a loop over experts that all compute all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.routed(x)
        total = torch.zeros_like(x)
        for expert in range(self.experts):
            share = torch.where(chosen == expert, shares, 0).sum(-1, keepdim=True)
            total = total + (F.silu(x @ self.w1[expert]) * (x @ self.w3[expert])) @ self.w2[expert] * share
        return total


class Selected(Experts):
    """The same as a loop over experts that compute the tokens that chose them."""

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.routed(x)
        total = torch.zeros_like(x)
        for expert in range(self.experts):
            token, place = torch.where(chosen == expert)
            rows = x.index_select(0, token)
            y = (F.silu(rows @ self.w1[expert]) * (rows @ self.w3[expert])) @ self.w2[expert]
            total = total.index_add(0, token, y * shares[token, place][:, None])
        return total


def experts_of(kind: type[Experts], device: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Experts, Tensor]:
    torch.manual_seed(0)
    return kind().to(device, dtype), torch.randn(24, 32).to(device, dtype)


@pytest.mark.parametrize("device", devices())
def test_experts_are_trained_in_kernels_of_groups(device: str) -> None:
    model, x = experts_of(Experts, device)
    exact, _ = experts_of(Experts, device)
    exact = exact.double()
    found = []
    for layer, tokens in ((compiled(model, fullgraph=True, options=OPTIONS), x), (model, x), (exact, widened(x))):
        given = tokens.clone().requires_grad_()
        y = layer(given)
        y.square().sum().backward()
        grads = [p.grad for p in (exact if layer is exact else model).parameters()][1:]  # but those of the router
        found.append([y.detach(), *(grad.clone() for grad in grads if grad is not None)])
        model.zero_grad()
    assert_all_close(*found)


@own_only("looks at its kernels")
def test_a_layer_of_experts_is_two_kernels_of_products() -> None:
    model, x = experts_of(Experts, "cpu")
    with torch.no_grad():
        compiled(model, fullgraph=True, options=OPTIONS)(x)
    assert forms().count("tiled_contraction") == 2  # both products of the gate, and the last one


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", [Masked, Selected])
def test_experts_in_plain_loops(kind: type[Experts], device: str) -> None:
    model, x = experts_of(kind, device, torch.float32)
    with torch.no_grad():
        mine = compiled(model, options={"fallback": False})(x)
        exact, _ = experts_of(kind, device, torch.float32)
        assert_all_close([mine], [model(x)], [exact.double()(widened(x))])


@own_only("looks at its kernels")
def test_products_in_groups_are_the_librarys_unless_they_are_small() -> None:
    x, w = drawn("cpu", torch.bfloat16, (ROWS, K), (GROUPS, K, N))
    compiled(activated, fullgraph=True, options={**OPTIONS, "products": "library"})(x, w, ends_of("cpu"))
    assert forms() == ["pointwise"]


@own_only("looks at its kernels")
@pytest.mark.parametrize(("function", "count"), [(activated, 1), (scaled, 1), (gated, 1), (twice, 2)])
def test_products_in_groups_share_kernels_with_what_reads_them(function: Callable[..., Any], count: int) -> None:
    given = drawn("cpu", torch.bfloat16, (ROWS, K), (GROUPS, K, N))
    compiled(function, fullgraph=True, options=OPTIONS)(*given, ends_of("cpu"))
    assert forms() == ["tiled_contraction"] * count


@own_only("looks at its kernels")
@pytest.mark.parametrize(
    ("rows", "small", "form"),
    [
        (ROWS // GROUPS, 0, "tiled_contraction"),
        (ROWS // GROUPS - 1, 0, "pointwise"),
        (0, 2 * ROWS * K * N, "tiled_contraction"),
    ],
    ids=["few rows of a group", "more", "a small product"],
)
def test_who_computes_products_in_groups_by_default(
    rows: int, small: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = replace(PRODUCTS, group_rows=rows, small_flops=small)
    for module in (grouped_products, tiled_products):
        monkeypatch.setattr(module, "DEVICES", ("cpu",))
        monkeypatch.setattr(module, "PRODUCTS", thresholds)
    given = (*drawn("cpu", torch.bfloat16, (ROWS, K), (GROUPS, K, N)), ends_of("cpu"))
    compiled(activated, fullgraph=True)(*given)
    assert forms() == [form]
