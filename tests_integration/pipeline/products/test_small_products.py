"""Small products and attention in kernels of ours, where the library would be called for the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, forms, own_only, widened
from ferrite_torch.lowering.products import tiled_products
from ferrite_torch.thresholds import ATTENTION, PRODUCTS

HEADS, LENGTH, HEAD = 4, 40, 64


pytestmark = pytest.mark.usefixtures("small_on_cpu")


def drawn(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def heads(
    device: str, dtype: torch.dtype = torch.bfloat16, queries: int = LENGTH, key_heads: int = HEADS, head: int = HEAD
) -> list[Tensor]:
    """Returns queries, keys and values that lie as the parts of one product do: heads innermost but one."""
    shapes = [(2, queries, HEADS, head), (2, LENGTH, key_heads, head), (2, LENGTH, key_heads, head)]
    return [x.transpose(1, 2) for x in drawn(device, dtype, *shapes)]


ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    "plain": attend,
    "causal": partial(attend, is_causal=True),
    "scaled": lambda *x: attend(*x, scale=0.3) * 2,
    "read by others": lambda *x: attend(*x).transpose(1, 2).flatten(2).relu(),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("what", ATTENTIONS)
def test_attention(what: str, dtype: torch.dtype, device: str) -> None:
    function, inputs = ATTENTIONS[what], heads(device, dtype)
    mine = compiled(function, fullgraph=True)(*inputs)
    eager = function(*inputs)
    assert_all_close([mine], [eager], [function(*map(widened, inputs))])
    assert mine.stride() == eager.stride()


SHAPES: dict[str, dict[str, Any]] = {
    "heads of 80": {"head": 80},
    "heads of 128": {"head": 128},
    "other lengths": {"queries": 7},
    "one query": {"queries": 1},
    "shared keys": {"key_heads": 2},
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", SHAPES)
def test_shapes_of_attention(what: str, device: str) -> None:
    inputs, function = heads(device, **SHAPES[what]), partial(attend, enable_gqa=what == "shared keys")
    mine = compiled(function, fullgraph=True)(*inputs)
    assert_all_close([mine], [function(*inputs)], [function(*map(widened, inputs))])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
def test_gradients_of_attention(key_heads: int, device: str, *, is_causal: bool) -> None:
    given = heads(device, key_heads=key_heads)
    function = partial(attend, is_causal=is_causal, enable_gqa=key_heads != HEADS)

    def results(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        result = function(*leaves)
        (gradient,) = drawn(device, torch.float32, tuple(result.shape))
        result.backward(gradient.to(result.dtype))
        return [result.detach(), *(x.grad for x in leaves if x.grad is not None)]

    mine, eager = results(compiled(function, fullgraph=True), given), results(function, given)
    assert len(mine) == 4
    assert_all_close(mine, eager, results(function, [widened(x) for x in given]))
    assert [x.stride() for x in mine] == [x.stride() for x in eager]


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.into(self.norm(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(*parts, is_causal=True).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.last(x))))


def steps(kind: str) -> list[dict[str, Any]]:
    return [step for step in ferrite_torch.compiled_programs()[-1]["steps"] if step["do"] == kind]


@own_only("looks at its steps")
def test_a_layer_is_launches_alone() -> None:
    layer = Layer(64).bfloat16().eval()
    with torch.no_grad():
        compiled(layer, fullgraph=True)(*drawn("cpu", torch.bfloat16, (2, LENGTH, 64)))
    assert not steps("extern")
    assert sorted(forms()) == ["attention", *["persistent"] * 2, *["tiled_contraction"] * 4]


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x @ y)


@own_only("looks at its steps")
@pytest.mark.parametrize("what", ["large", "symbolic", "on the CPU", "float32", "asked for"])
def test_products_that_the_library_computes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flops = 2 * LENGTH * HEAD * LENGTH
    monkeypatch.setattr(tiled_products, "PRODUCTS", type(PRODUCTS)(small_flops=flops - (what == "large")))
    if what == "on the CPU":
        monkeypatch.setattr(tiled_products, "DEVICES", ("cuda",))
    dtype = torch.float32 if what == "float32" else torch.bfloat16
    options = {"products": "library"} if what == "asked for" else {}
    inputs = drawn("cpu", dtype, (LENGTH, HEAD), (HEAD, LENGTH))
    compiled(product, fullgraph=True, dynamic=what == "symbolic", options=options)(*inputs)
    assert [step["target"] for step in steps("extern")] == ["aten.mm.default"]


@own_only("looks at its steps")
@pytest.mark.parametrize("what", ["large", "dropout", "float32", "asked for"])
def test_attention_that_the_library_computes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ferrite_torch.lowering.products import small_attention

    flops = 4 * 2 * HEADS * LENGTH * LENGTH * HEAD
    monkeypatch.setattr(small_attention, "ATTENTION", type(ATTENTION)(small_flops=flops - (what == "large")))
    inputs = heads("cpu", torch.float32 if what == "float32" else torch.bfloat16)
    function = partial(attend, dropout_p=0.5 * (what == "dropout"))
    options = {"products": "library"} if what == "asked for" else {}
    compiled(function, options=options)(*inputs)
    assert any("attention" in step["target"] or "bmm" in step["target"] for step in steps("extern"))


@own_only("looks at its kernels")
def test_attention_between_products_is_stored_as_they_read_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return attend(x, x, x).transpose(1, 2).reshape(2 * LENGTH, HEADS * HEAD) @ w

    (x, *_), (w,) = heads("cpu"), drawn("cpu", torch.bfloat16, (HEADS * HEAD, 48))
    compiled(function, fullgraph=True)(x, w)
    first, second = ferrite_torch.compiled_programs()[-1]["kernels"]
    assert [first["form"], second["form"]] == ["attention", "tiled_contraction"]
    stored = next(param for param in first["params"] if param["name"] == "out0")
    assert stored["dtype"] == "bf16"
