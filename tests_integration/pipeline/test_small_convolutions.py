"""Small convolutions in kernels of ours: the numbers, the layouts, and which kernels there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, forms, own_only, widened
from ferrite_torch.lowering.products import tiled_products
from ferrite_torch.lowering.spatial import convolutions
from ferrite_torch.thresholds import CONVOLUTIONS

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treats the CPU as a device whose library is waited for; forgets what was compiled before and after each test."""
    monkeypatch.setattr(tiled_products, "DEVICES", ("cuda", "cpu"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = HALF) -> list[Tensor]:
    """Returns tensors whose sums of products, of an image and filters behind it, are about as large as one."""
    generator = torch.Generator().manual_seed(len(shapes))
    image, *rest = (torch.randn(shape, generator=generator) for shape in shapes)
    return [image.to(dtype), *((x / max(1, x[0].numel()) ** 0.5).to(dtype) for x in rest)]


def check(function: Callable[..., Tensor], device: str, *inputs: Tensor, **options: Any) -> None:
    given = [x.to(device) for x in inputs]
    with torch.no_grad():
        mine = compiled(function, fullgraph=True, options=options)(*given)
        eager = function(*given)
        assert_all_close([mine], [eager], [function(*map(widened, given))])
    assert mine.stride() == eager.stride()


IMAGE, FILTERS = (2, 16, 9, 10), (24, 16, 3, 3)
CALLS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "plain": (F.conv2d, (IMAGE, FILTERS)),
    "padded": (partial(F.conv2d, padding=1), (IMAGE, FILTERS)),
    "strided and dilated": (partial(F.conv2d, stride=2, padding=(2, 1), dilation=(2, 1)), (IMAGE, FILTERS)),
    "a bias": (lambda x, w, b: F.conv2d(x, w, b).relu(), (IMAGE, FILTERS, (24,))),
    "a residual": (lambda x, w, v: x + F.conv2d(F.conv2d(x, w, padding=1).relu(), v, padding=1),
                   (IMAGE, FILTERS, (16, 24, 3, 3))),
    "groups": (partial(F.conv2d, groups=2), ((2, 32, 9, 10), (32, 16, 3, 3))),
    "few channels": (partial(F.conv2d, stride=2, padding=3), ((2, 3, 20, 22), (16, 3, 7, 7))),
    "a window beyond the image": (partial(F.conv2d, padding=3), ((2, 16, 3, 3), (16, 16, 5, 5))),
    "one element": (F.conv2d, (IMAGE, (24, 16, 1, 1))),
    "one element of odd images": (F.conv2d, ((2, 16, 7, 7), (24, 16, 1, 1))),
    "one row": (F.conv2d, ((1, 16, 3, 3), FILTERS)),
    "one dim": (partial(F.conv1d, padding=1), ((2, 16, 40), (16, 16, 3))),
    "three dims": (partial(F.conv3d, padding=1), ((1, 8, 5, 4, 6), (16, 8, 3, 3, 3))),
    "depthwise": (partial(F.conv2d, padding=1, groups=16), (IMAGE, (16, 1, 3, 3))),
    "depthwise, two filters": (partial(F.conv2d, stride=2, padding=2, groups=16), (IMAGE, (32, 1, 5, 5))),
    "a transposed image": (lambda x, w: F.conv2d(x.transpose(2, 3), w), (IMAGE, FILTERS)),
}  # fmt: skip


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", CALLS)
def test_calls(what: str, device: str) -> None:
    function, shapes = CALLS[what]
    check(function, device, *drawn(*shapes))
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", ["padded", "groups", "one element", "depthwise", "few channels"])
def test_channels_last(what: str, device: str) -> None:
    function, shapes = CALLS[what]
    check(function, device, *(x.to(memory_format=torch.channels_last) for x in drawn(*shapes)))
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", ["padded", "depthwise"])
def test_float32(what: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "convolution_precision", lambda: "tf32")
    function, shapes = CALLS[what]
    check(function, device, *drawn(*shapes, dtype=torch.float32))
    assert not steps("extern")


def steps(kind: str) -> list[dict[str, Any]]:
    return [step for step in ferrite_torch.compiled_programs()[-1]["steps"] if step["do"] == kind]


@own_only("looks at its steps")
@pytest.mark.parametrize(
    "what", ["large", "symbolic", "on the CPU", "float32", "transposed", "few filters", "asked for"]
)
def test_convolutions_that_the_library_computes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flops = 2 * 2 * 24 * 7 * 8 * 16 * 9
    monkeypatch.setattr(convolutions, "CONVOLUTIONS", type(CONVOLUTIONS)(small_flops=flops - (what == "large")))
    if what == "on the CPU":
        monkeypatch.setattr(tiled_products, "DEVICES", ("cuda",))
    if what == "float32":
        monkeypatch.setattr(convolutions, "convolution_precision", lambda: "ieee")
    filters = (8, *FILTERS[1:]) if what == "few filters" else FILTERS
    x, w = drawn(IMAGE, filters, dtype=torch.float32 if what == "float32" else HALF)
    options = {"use_cache": False, "products": "library" if what == "asked for" else "small"}
    function, w = (F.conv_transpose2d, w.transpose(0, 1)) if what == "transposed" else (F.conv2d, w)
    compiled(function, fullgraph=True, dynamic=what == "symbolic", options=options)(x, w)
    assert [step["target"] for step in steps("extern")] == ["aten.convolution.default"]


@own_only("looks at its kernels")
def test_images_between_convolutions_are_not_copied() -> None:
    """Both filters are copied so that their channels lie side by side, and the first image; the second is made so."""
    function, shapes = CALLS["a residual"]
    with torch.no_grad():
        compiled(function, fullgraph=True)(*drawn(*shapes))
    (copies,) = (
        kernel for kernel in ferrite_torch.compiled_programs()[-1]["kernels"] if kernel["form"] == "mixed_combo"
    )
    assert sorted(forms()) == ["mixed_combo", "tiled_contraction", "tiled_contraction"]
    assert sum(param.startswith("out") for part in copies["parts"] for param in part["params"]) == 3


@own_only("looks at its kernels")
def test_nothing_is_copied_that_lies_right() -> None:
    function, shapes = CALLS["padded"]
    with torch.no_grad():
        compiled(function, fullgraph=True)(*(x.to(memory_format=torch.channels_last) for x in drawn(*shapes)))
    assert forms() == ["tiled_contraction"]


@own_only("looks at its kernels")
def test_a_depthwise_convolution_is_pointwise() -> None:
    function, shapes = CALLS["depthwise"]
    with torch.no_grad():
        compiled(lambda *x: function(*x).relu(), fullgraph=True)(*drawn(*shapes))
    assert forms() == ["pointwise"]
