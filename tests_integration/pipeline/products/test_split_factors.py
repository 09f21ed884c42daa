"""Products of float32 that may not be rounded, in parts of TF32 (`ferrite_scheduler.rewrites.split_factors`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch.pipeline
from against_eager import compiled, devices
from ferrite_torch import compiled_programs
from ferrite_torch.lowering.products import tiled_products
from ferrite_torch.lowering.spatial import convolutions
from ferrite_torch.thresholds import CONVOLUTIONS, PRODUCTS
from product_cases import kernels

INFINITY = float("inf")


@pytest.fixture(autouse=True)
def small_products_are_split(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has products of any size computed in parts, on any device."""
    torch._dynamo.reset()
    monkeypatch.setattr(tiled_products, "PRODUCTS", replace(PRODUCTS, split_flops=0, split_results=0))
    monkeypatch.setattr(tiled_products, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(ferrite_torch.pipeline, "splits_factors", lambda: True)
    monkeypatch.setattr(convolutions, "CONVOLUTIONS", replace(CONVOLUTIONS, split_flops=1 << 40))
    yield
    torch._dynamo.reset()


def given(rows: int = 80, columns: int = 64, points: int = 256, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(rows + columns + points)
    shapes = (rows, points), (columns, points), (columns,)
    x, w, b = (torch.randn(shape, generator=g).to(device) for shape in shapes)
    return x, w, b


SHORT = {"policy": {"split_points": 64}}
"""Options with which windows of few channels are split as well."""


def run(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], **options: Any) -> Tensor:
    return compiled(function, fullgraph=True, options={"fallback": False, "verify": True, **options})(*inputs)


def is_split() -> bool:
    return any("add_dot_of_parts" in kernel["source"] for kernel in kernels())


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def by_columns(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ w.t().contiguous() + b


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(torch.relu(x), w) * b


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ (w * 0.5).t())


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", [layer, by_columns, activated, gated])
@pytest.mark.parametrize("extents", [(160, 64, 256), (200, 100, 300), (170, 72, 1028)], ids=str)
def test_values(function: Callable[..., Tensor], extents: tuple[int, int, int], device: str) -> None:
    """No less exact than the library's: what is left out of a product is 2**-23 of it at most."""
    inputs = given(*extents, device=device)
    mine, theirs = run(function, inputs), function(*inputs)
    assert is_split()
    exact = function(*(each.double() for each in inputs))
    least = 2.0**-22 * exact.abs().max()
    assert (mine - exact).abs().max() <= 1.5 * (theirs - exact).abs().max() + least


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("value", [INFINITY, -INFINITY, float("nan"), torch.finfo(torch.float32).max])
def test_infinities_are_those_of_whole_factors(value: float, side: int, device: str) -> None:
    """A part of an infinity is no number, and powers of two have no second part: all of these are met."""
    x, w, b = given(device=device)
    x[:8], w[:8] = torch.sign(x[:8]), 2 * torch.sign(w[:8])
    (x, w)[side][3, 5] = value
    (x, w)[side][40, 200] = value
    x[17] = 0
    mine, theirs = run(lambda x, w, b: F.linear(x, w) + b, (x, w, b)), F.linear(x, w) + b
    assert is_split()
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine.isinf(), theirs.isinf())
    infinite = theirs.isinf()
    assert torch.equal(mine[infinite], theirs[infinite])
    finite = theirs.isfinite()
    torch.testing.assert_close(mine[finite], theirs[finite], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", [2.0**-100, 2.0**-60, 2.0**60, 2.0**100])
def test_numbers_of_any_size(size: float, device: str) -> None:
    x, w, b = given(device=device)
    inputs = (x * size, w / size, b)
    mine, theirs = run(lambda x, w, b: F.linear(x, w), inputs), F.linear(*inputs[:2])
    exact = F.linear(*(each.double() for each in inputs[:2]))
    assert is_split()
    bound = 2 * (theirs - exact).abs().max() + 2.0**-21 * exact.abs().max()
    assert (mine - exact).abs().max() <= bound


def test_shared_factors_have_their_parts_made_once() -> None:
    x, w, _ = given()
    mine = run(lambda x, w: F.linear(x, w) * F.linear(x + 1, w).sigmoid(), (x, w))
    assert mine.shape == (80, 64)
    steps = compiled_programs()[-1]["steps"]
    assert sum(step["do"] == "launch" for step in steps) <= 3


@pytest.mark.parametrize(
    ("extents", "options"),
    [
        ((80, 64, 252), {}),
        ((80, 64, 258), {}),
        ((80, 63, 256), {}),
        ((80, 64, 256), {"products": "library"}),
        ((80, 64, 256), {"policy": {"split_points": 0}}),
    ],
    ids=["short sums", "odd sums", "odd columns", "the library", "not wanted"],
)
def test_other_products_are_the_library_s(extents: tuple[int, int, int], options: dict[str, Any]) -> None:
    run(lambda x, w, b: F.linear(x, w), given(*extents), **options)
    assert not is_split()


def test_a_factor_whose_parts_take_more_memory_than_all_else_is_whole() -> None:
    run(lambda x, w, b: F.linear(x, w), given(32, 512, 256))
    assert not is_split()


def test_products_that_may_be_rounded_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_products, "product_precision", lambda: "tf32")
    run(lambda x, w, b: F.linear(x, w), given())
    assert not is_split()


def test_gradients_of_the_left_factor_are_split_too() -> None:
    """Those of a layer's input: a product by its weight, of which both parts are copied with sums along rows."""
    x, w, b = given(200, 256, 64)
    x.requires_grad_()
    y = compiled(layer, fullgraph=True, options={"fallback": False, "verify": True})(x, w, b)
    y.sum().backward()
    assert is_split()
    ours, x.grad = x.grad, None
    layer(x, w, b).sum().backward()
    torch.testing.assert_close(ours, x.grad, rtol=1e-5, atol=2e-5)


CALLS = {
    "conv2d": (F.conv2d, (2, 8, 13, 11), (20, 8, 4, 4), {}),
    "conv2d strided": (F.conv2d, (2, 12, 13, 11), (16, 12, 3, 3), {"stride": 2, "padding": 1}),
    "conv1d": (F.conv1d, (3, 8, 40), (16, 8, 9), {"padding": 4, "dilation": 2}),
    "conv3d": (F.conv3d, (1, 4, 6, 7, 5), (16, 4, 3, 3, 3), {"padding": 1}),
}


def with_bias(function: Callable[..., Tensor], **steps: Any) -> Callable[..., Tensor]:
    return lambda x, w, b: torch.relu(function(x, w, b, **steps))


def convolved(name: str, device: str) -> tuple[Callable[..., Tensor], tuple[Tensor, Tensor, Tensor]]:
    function, image, filters, steps = CALLS[name]
    g = torch.Generator().manual_seed(len(name))
    x, w = (torch.randn(shape, generator=g).to(device) for shape in (image, filters))
    return with_bias(function, **steps), (x, w, torch.randn(filters[0], generator=g).to(device))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", CALLS)
def test_convolutions_that_are_not_rounded(name: str, device: str) -> None:
    """Of few channels: the library rounds none of these row-major images either."""
    function, inputs = convolved(name, device)
    mine, theirs = run(function, inputs, **SHORT), function(*inputs)
    assert is_split()
    assert mine.stride() == theirs.stride()
    exact = function(*(each.double() for each in inputs))
    least = 2.0**-22 * exact.abs().max()
    assert (mine - exact).abs().max() <= 1.5 * (theirs - exact).abs().max() + least


def test_images_that_the_library_rounds_are_not_split() -> None:
    function, (x, w, b) = convolved("conv2d", "cpu")
    run(function, (x.contiguous(memory_format=torch.channels_last), w, b), **SHORT)
    assert not is_split()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("value", [INFINITY, float("nan")])
def test_infinities_of_images(value: float, device: str) -> None:
    function, (x, w, b) = convolved("conv2d", device)
    x[0, 3, 5, 5] = value
    w[4] = torch.sign(w[4])
    mine, theirs = run(function, (x, w, b), **SHORT), function(x, w, b)
    assert is_split()
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine.isinf(), theirs.isinf())
    torch.testing.assert_close(mine[theirs.isfinite()], theirs[theirs.isfinite()])


def test_convolutions_are_the_library_s_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "CONVOLUTIONS", CONVOLUTIONS)
    run(*convolved("conv2d", "cpu"), **SHORT)
    assert not is_split()


@pytest.mark.parametrize("split_flops", [0, 1 << 40])
def test_convolutions_that_round_with_products_are_as_before(split_flops: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "CONVOLUTIONS", replace(CONVOLUTIONS, split_flops=split_flops))
    for name in ("convolution_precision", "product_precision"):
        monkeypatch.setattr(convolutions, name, lambda: "tf32")
    run(*convolved("conv2d", "cpu"), **SHORT)
    assert any("to_tf32" in kernel["source"] for kernel in kernels())
