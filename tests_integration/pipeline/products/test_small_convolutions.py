"""Small convolutions in kernels of ours: the numbers, the layouts, and which kernels there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, compiled_anew, devices, forms, own_only, widened
from ferrite_ir.language.graph import Contract
from ferrite_scheduler.rewrites import split_products
from ferrite_torch.lowering.products import tiled_products
from ferrite_torch.lowering.spatial import convolutions
from ferrite_torch.thresholds import CONVOLUTIONS

HALF = torch.bfloat16


pytestmark = pytest.mark.usefixtures("small_on_cpu")


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
    "depthwise, a large window": (partial(F.conv2d, padding=3, groups=16), (IMAGE, (16, 1, 7, 7))),
    "depthwise, two filters": (partial(F.conv2d, stride=2, padding=2, groups=16), (IMAGE, (32, 1, 5, 5))),
    "a transposed image": (lambda x, w: F.conv2d(x.transpose(2, 3), w), (IMAGE, FILTERS)),
}  # fmt: skip


WIDE = (2, 24, 5, 6)
TRANSPOSED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "plain": (F.conv_transpose2d, (WIDE, (24, 16, 3, 3))),
    "padded": (partial(F.conv_transpose2d, padding=1), (WIDE, (24, 16, 3, 3))),
    "strided": (partial(F.conv_transpose2d, stride=2, padding=1, output_padding=1), (WIDE, (24, 16, 3, 3))),
    "strided to odd sizes": (partial(F.conv_transpose2d, stride=2, padding=1), (WIDE, (24, 16, 3, 3))),
    "windows of whole strides": (partial(F.conv_transpose2d, stride=2, padding=1), (WIDE, (24, 16, 4, 4))),
    "windows apart": (partial(F.conv_transpose2d, stride=2), (WIDE, (24, 16, 2, 2))),
    "positions in no window": (partial(F.conv_transpose2d, stride=3, output_padding=1), (WIDE, (24, 16, 1, 2))),
    "dilated": (partial(F.conv_transpose2d, dilation=(2, 3), padding=1), (WIDE, (24, 16, 3, 3))),
    "dilated and strided": (partial(F.conv_transpose2d, stride=(4, 3), dilation=(2, 2), padding=(1, 2)),
                            (WIDE, (24, 16, 3, 3))),
    "a bias": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2).relu(), (WIDE, (24, 16, 2, 2), (16,))),
    "groups": (partial(F.conv_transpose2d, groups=2, stride=2, padding=1), ((2, 32, 5, 6), (32, 16, 3, 3))),
    "one dim": (partial(F.conv_transpose1d, stride=2, padding=1), ((2, 24, 20), (24, 16, 4))),
    "three dims": (partial(F.conv_transpose3d, stride=2, padding=1, output_padding=(1, 0, 1)),
                   ((1, 16, 2, 3, 3), (16, 16, 3, 3, 3))),
}  # fmt: skip


GRADIENTS = {
    **{what: CALLS[what] for what in ("plain", "padded", "strided and dilated", "a bias", "groups", "one element",
                                      "a window beyond the image", "one dim", "depthwise",
                                      "depthwise, two filters")},
    "depthwise, dilated": (partial(F.conv2d, stride=(2, 3), dilation=(2, 2), padding=2, groups=16),
                           (IMAGE, (16, 1, 3, 3))),
    "depthwise, a bias": (partial(F.conv1d, padding=2, groups=16), ((2, 16, 30), (32, 1, 4), (32,))),
    "depthwise, three dims": (partial(F.conv3d, stride=2, padding=1, groups=8), ((2, 8, 4, 5, 6), (8, 1, 3, 3, 3))),
    "three dims": (partial(F.conv3d, padding=1, stride=(1, 2, 1)), ((1, 16, 3, 4, 5), (16, 16, 3, 3, 3))),
    "one element, strided": (partial(F.conv2d, stride=2), (IMAGE, (24, 16, 1, 1))),
    **{f"transposed, {what}": TRANSPOSED[what] for what in ("strided", "a bias", "groups")},
}  # fmt: skip


LAYOUTS = ("row-major", "channels-last")


def laid_out(x: Tensor, layout: str) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.to(memory_format=formats[x.dim()]) if layout == "channels-last" and x.dim() in formats else x


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", CALLS)
def test_calls(what: str, device: str) -> None:
    function, shapes = CALLS[what]
    check(function, device, *drawn(*shapes))
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "what", ["padded", "groups", "one element", "depthwise", "depthwise, a large window", "few channels"]
)
def test_channels_last(what: str, device: str) -> None:
    function, shapes = CALLS[what]
    check(function, device, *(x.to(memory_format=torch.channels_last) for x in drawn(*shapes)))
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", TRANSPOSED)
def test_transposed(what: str, layout: str, device: str) -> None:
    function, shapes = TRANSPOSED[what]
    check(function, device, *(laid_out(x, layout) for x in drawn(*shapes)))
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", ["strided", "positions in no window", "dilated and strided"])
def test_an_infinity_stays_where_its_windows_are(what: str, device: str) -> None:
    function, shapes = TRANSPOSED[what]
    x, w = drawn(*shapes)
    x[0, :, 2, 3] = torch.inf
    check(function, device, x, w.abs())
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients(what: str, layout: str, device: str) -> None:
    function, (image, filters, *rest) = GRADIENTS[what]
    inputs = [laid_out(x, layout).to(device) for x in drawn(image, filters, *rest)]
    grad = torch.randn(function(*inputs).shape, generator=torch.Generator().manual_seed(7)).to(device, HALF)

    def gradients(given: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in operands[:-1]]
        return list(torch.autograd.grad(given(*leaves), leaves, operands[-1]))

    mine = gradients(compiled(function, fullgraph=True), *inputs, grad)
    eager = gradients(function, *inputs, grad)
    exact = gradients(function, *map(widened, (*inputs, grad)))
    assert_all_close(mine, eager, exact)
    assert not steps("extern")


def in_parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Cuts all sums of 48 points or more, as a device of more multiprocessors would have it; returns a policy."""

    def parts_of(contract: Contract, *_: object) -> split_products.Parts | None:
        points = prod(int(dim.size) for dim in contract.reduction_dims)
        return split_products.Parts(-(-points // 48), 48) if points > 48 else None

    monkeypatch.setattr(split_products, "parts_of", parts_of)
    return {"product_parts": 15}  # so that no stored graph is found


ANEW: dict[str, object] = {"sector_seconds": 1.0}
"""A part of a sector that is stored by itself costs more than a kernel."""
FILTERS_OF = {
    "in parts": (partial(F.conv2d, padding=1), (2, 16, 9, 11), (24, 16, 3, 3)),
    "strided": (partial(F.conv2d, stride=2, padding=2), (2, 24, 17, 19), (16, 24, 5, 5)),
    "groups": (partial(F.conv2d, groups=2), (2, 32, 9, 10), (32, 16, 3, 3)),
    "few points": (partial(F.conv2d, padding=1), (2, 16, 7, 7), (24, 16, 3, 3)),
    "few points, strided": (partial(F.conv2d, stride=2, padding=1), (1, 16, 13, 14), (24, 16, 3, 3)),
    "short vectors": (F.conv2d, (2, 16, 9, 20), (24, 16, 1, 1)),
    "one dim": (partial(F.conv1d, stride=2, padding=2), (2, 16, 150), (24, 16, 5)),
    "three dims": (partial(F.conv3d, padding=1), (1, 16, 4, 5, 9), (16, 16, 3, 3, 3)),
}


@own_only("has thresholds of its own")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("how", ["whole", "laid out anew", "in parts"])
@pytest.mark.parametrize("what", FILTERS_OF)
def test_gradients_of_filters(what: str, how: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = in_parts(monkeypatch) if how == "in parts" else ANEW if how == "laid out anew" else {}
    function, *shapes = FILTERS_OF[what]
    image, filters = (x.to(device) for x in drawn(*shapes))
    grad = torch.randn(function(image, filters).shape, generator=torch.Generator().manual_seed(7)).to(device, HALF)

    def gradient(given: Callable[..., Tensor], x: Tensor, w: Tensor, pulled: Tensor) -> Tensor:
        leaf = w.detach().requires_grad_()
        return torch.autograd.grad(given(x, leaf), leaf, pulled)[0]

    mine = gradient(compiled_anew(function, policy), image, filters, grad)
    exact = gradient(function, *map(widened, (image, filters, grad)))
    assert_all_close([mine], [gradient(function, image, filters, grad)], [exact])
    assert mine.stride() == filters.stride()
    assert not steps("extern")
    assert how != "in parts" or not forms()[-1].startswith("tiled")


@own_only("looks at its kernels")
@pytest.mark.parametrize(
    ("what", "kernels"),
    [
        ("few points", ["tiled_contraction"]),
        ("short vectors", ["pointwise", "tiled_contraction"]),
        ("in parts", ["pointwise", "pointwise", "tiled_contraction"]),
    ],
)
def test_images_are_copied_for_filters_where_they_must_be(what: str, kernels: list[str]) -> None:
    """Images whose positions are whole vectors of eight bytes need not be, where windows are single elements."""
    function, *shapes = FILTERS_OF[what]
    image, filters = drawn(*shapes)
    result = compiled(function, fullgraph=True)(image, filters.requires_grad_())
    result.backward(torch.randn(result.shape).to(HALF))
    assert sorted(forms()) == kernels


@own_only("has thresholds of its own")
@pytest.mark.parametrize(("policy", "after"), [({}, []), (ANEW, ["pointwise"])], ids=["whole", "laid out anew"])
def test_what_comes_after_a_gradient_of_filters(policy: dict[str, object], after: list[str]) -> None:
    function, *shapes = FILTERS_OF["in parts"]
    image, filters = drawn(*shapes)
    result = compiled_anew(function, policy)(image, filters.requires_grad_())
    result.backward(torch.randn(result.shape).to(HALF))
    assert forms()[forms().index("tiled_contraction") + 1 :] == after


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", ["padded", "depthwise"])
def test_float32(what: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both factors lose at most 2**-10 of themselves; the library rounds none that is small."""
    for name in ("convolution_precision", "product_precision"):
        monkeypatch.setattr(convolutions, name, lambda: "tf32")
    function, shapes = CALLS[what]
    inputs = [each.to(device) for each in drawn(*shapes, dtype=torch.float32)]
    mine = compiled(function, fullgraph=True)(*inputs)
    wide = [each.double() for each in inputs]
    rounding = 2.0**-9 if what == "padded" else 2.0**-21
    allowed = function(*(each.abs() for each in wide)).abs() * rounding
    assert ((mine.double() - function(*wide)).abs() <= allowed).all()
    assert not steps("extern")


@pytest.mark.parametrize("device", devices())
def test_float32_is_not_rounded_unless_products_are(device: str) -> None:
    function, shapes = CALLS["padded"]
    check(function, device, *drawn(*shapes, dtype=torch.float32))


def steps(kind: str) -> list[dict[str, Any]]:
    return [step for step in ferrite_torch.compiled_programs()[-1]["steps"] if step["do"] == kind]


@own_only("looks at its steps")
@pytest.mark.parametrize("what", ["large", "symbolic", "on the CPU", "float32", "few filters", "asked for"])
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
    compiled(F.conv2d, fullgraph=True, dynamic=what == "symbolic", options=options)(x, w)
    assert [step["target"] for step in steps("extern")] == ["aten.convolution.default"]


@own_only("looks at its steps")
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_convolutions_that_round_are_the_librarys_in_cuda_graphs(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its call costs the host nothing; a depthwise one is a sum, and rounds nothing."""
    for name in ("convolution_precision", "product_precision"):
        monkeypatch.setattr(convolutions, name, lambda: "tf32")
    x, w = drawn(IMAGE, FILTERS, dtype=dtype)
    for is_captured in (True, False):
        options = {"use_cache": False, "cuda_graph": is_captured}
        compiled(F.conv2d, fullgraph=True, dynamic=False, options=options)(x, w)
        assert bool(steps("extern")) is (is_captured and dtype is torch.float32)
        function, shapes = CALLS["depthwise"]
        compiled(function, fullgraph=True, dynamic=False, options=options)(*drawn(*shapes, dtype=dtype))
        assert not steps("extern")


@own_only("looks at its steps")
@pytest.mark.parametrize(("filters", "groups"), [((24, 8, 3, 3), 1), ((16, 1, 3, 3), 16)], ids=["few", "depthwise"])
def test_transposed_convolutions_that_the_library_computes(filters: tuple[int, ...], groups: int) -> None:
    x, w = drawn((2, filters[0], 9, 10), filters)
    with torch.no_grad():
        compiled(partial(F.conv_transpose2d, groups=groups), fullgraph=True)(x, w)
    assert [step["target"] for step in steps("extern")] == ["aten.convolution.default"]


@own_only("looks at its steps")
@pytest.mark.parametrize("what", ["large", "float32", "few channels", "too many bytes"])
def test_gradients_that_the_library_computes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "float32":
        monkeypatch.setattr(convolutions, "convolution_precision", lambda: "ieee")
    if what == "large":
        monkeypatch.setattr(convolutions, "CONVOLUTIONS", type(CONVOLUTIONS)(small_flops=1))
    if what == "too many bytes":
        bytes_of = 2 * 24 * (9 * 10 + 7 * 8) * 2
        monkeypatch.setattr(convolutions, "CONVOLUTIONS", type(CONVOLUTIONS)(reread_bytes=bytes_of - 1))
    channels, depth, groups = {"few channels": (8, 8, 1), "too many bytes": (24, 1, 24)}.get(what, (16, 16, 1))
    x, w = drawn((2, channels, 9, 10), (24, depth, 3, 3), dtype=torch.float32 if what == "float32" else HALF)
    x, w = x.requires_grad_(), w.requires_grad_()
    compiled(partial(F.conv2d, groups=groups), fullgraph=True)(x, w).sum().backward()
    assert [step["target"] for step in steps("extern")] == ["aten.convolution_backward.default"]


@own_only("looks at its steps")
@pytest.mark.parametrize("wanted", ["image", "filters", "bias"])
def test_only_the_gradients_asked_for_are_computed(wanted: str) -> None:
    """That of an image of three channels would be the library's, which has no part in the others."""
    names = ("image", "filters", "bias")
    shapes = ((2, 16 if wanted == "image" else 3, 9, 10), (24, 16 if wanted == "image" else 3, 3, 3), (24,))
    inputs = [x.requires_grad_(name == wanted) for name, x in zip(names, drawn(*shapes), strict=True)]
    x = inputs[names.index(wanted)]

    def gradient(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
        return torch.autograd.grad(function(*given).sum(), given[names.index(wanted)])[0]

    exact = gradient(F.conv2d, *map(widened, inputs))
    assert_all_close([gradient(compiled(F.conv2d, fullgraph=True), *inputs)], [gradient(F.conv2d, *inputs)], [exact])
    assert not steps("extern")
    assert forms().count("tiled_contraction") == (wanted != "bias")
    assert x.grad is None


@own_only("looks at its steps")
def test_a_step_of_training_calls_no_library() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
    ).to(HALF)  # fmt: skip
    x = torch.randn(2, 3, 8, 8).to(HALF)
    before = len(ferrite_torch.compiled_programs())
    compiled(net, fullgraph=True)(x).square().mean().backward()
    programs = ferrite_torch.compiled_programs()[before:]
    assert len(programs) == 2
    assert not [step for program in programs for step in program["steps"] if step["do"] == "extern"]
    assert all(parameter.grad is not None for parameter in net.parameters())


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
def test_gradients_of_a_depthwise_convolution_are_one_launch_or_two() -> None:
    function, shapes = CALLS["depthwise"]
    image, filters = (x.requires_grad_() for x in drawn(*shapes))
    result = compiled(function, fullgraph=True)(image, filters)
    result.backward(torch.randn(result.shape).to(HALF))
    assert not steps("extern")
    assert set(forms()) <= {"pointwise", "persistent", "looped", "mixed_combo"}


@own_only("looks at its kernels")
def test_a_depthwise_convolution_is_pointwise() -> None:
    function, shapes = CALLS["depthwise"]
    with torch.no_grad():
        compiled(lambda *x: function(*x).relu(), fullgraph=True)(*drawn(*shapes))
    assert forms() == ["pointwise"]


@own_only("looks at its kernels")
def test_large_depthwise_convolutions_read_filters_in_vectors() -> None:
    """One launch puts the filters of all channels beside each other, for both convolutions."""
    x, *filters = drawn((2, 16, 96, 96), (16, 1, 7, 7), (16, 1, 7, 7))

    def twice(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, first, padding=3, groups=16), second, padding=3, groups=16)

    with torch.no_grad():
        compiled(twice, fullgraph=True)(x.to(memory_format=torch.channels_last), *filters)
    assert len(steps("launch")) == 3
    assert sorted(set(forms())) == ["mixed_combo", "pointwise"]


@own_only("looks at its buffers")
def test_a_norm_of_channels_reads_what_a_depthwise_convolution_stores() -> None:
    """It is stored as eager mode has it, rounded and channels-last, and read once; as sums it was neither."""

    def block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        result = F.conv2d(x, weight, bias, padding=3, groups=16)
        return F.layer_norm(result.permute(0, 2, 3, 1), (16,))

    x, *filters = drawn((2, 16, 6, 7), (16, 1, 7, 7), (16,))
    with torch.no_grad():
        compiled(block, fullgraph=True)(x.to(memory_format=torch.channels_last), *filters)
    allocated = steps("alloc")[0]
    assert (allocated["dtype"], allocated["strides"]) == ("bf16", [672, 1, 112, 16])
    assert len(forms()) == 2
