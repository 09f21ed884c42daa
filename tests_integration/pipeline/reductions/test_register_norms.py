"""Norms of images by one kernel, whose programs hold what they have read: `Policy.register_norms`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled_anew, devices, forms
from ferrite_torch import compiled_programs

POLICY = {"small_kernel_bytes": 0}
"""So that small images are worth kernels of their own."""

Shape = tuple[int, int, int, int]


def compiled(function: Callable[..., Any], **changes: object) -> Callable[..., Any]:
    return compiled_anew(function, POLICY | changes)


def images(shape: Shape, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns images whose channels lie beside each other, with a mean that is not small beside their deviation."""
    torch.manual_seed(0)
    x = torch.randn(shape, device=device) * 3 + 5
    return x.to(dtype).to(memory_format=torch.channels_last)


def norm(groups: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, weight, bias: F.silu(F.group_norm(x, groups, weight, bias))


def affine(channels: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(channels, device=device).to(dtype), torch.randn(channels, device=device).to(dtype)


SHAPES: dict[str, tuple[Shape, int]] = {
    "groups that end in another block": ((2, 320, 16, 16), 32),
    "groups that divide a block": ((2, 128, 16, 16), 32),
    "blocks that are not full": ((2, 96, 16, 16), 8),
    "groups of most of a block": ((2, 240, 16, 16), 8),
    "one image": ((1, 320, 16, 16), 32),
    "one block": ((4, 64, 16, 8), 16),
    "places that are no power of two": ((2, 80, 12, 48), 4),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_register_norms_give_what_eager_gives(name: str, dtype: torch.dtype, device: str) -> None:
    shape, groups = SHAPES[name]
    given = (images(shape, device, dtype), *affine(shape[1], device, dtype))
    found = compiled(norm(groups))(*given)
    assert forms() == ["register_norm"]
    assert found.dtype is dtype
    step = torch.finfo(dtype).eps
    expected = norm(groups)(*(t.double() for t in given))
    assert found.stride() == expected.stride(), "on a GPU results lie as images do that are no channels-last ones"
    torch.testing.assert_close(found.double(), expected, rtol=16 * step, atol=16 * step)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_results_lie_either_way(order: torch.memory_format, dtype: torch.dtype, device: str) -> None:
    given = (images((2, 320, 16, 16), device, dtype), *affine(320, device, dtype))
    found = compiled(lambda *given: norm(32)(*given).contiguous(memory_format=order))(*given)
    assert forms() == ["register_norm"]
    assert found.is_contiguous(memory_format=order)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), norm(32)(*(t.double() for t in given)), rtol=16 * step, atol=16 * step)


@pytest.mark.parametrize("device", devices())
def test_what_is_made_of_elements_before_they_are_reduced(device: str) -> None:
    """An embedding of the time step is added to each channel before the norm."""
    x, (weight, bias) = images((2, 96, 16, 16), device), affine(96, device)
    step = torch.randn(2, 96, device=device)

    def function(x: Tensor, step: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(x + step[:, :, None, None], 8, weight, bias))

    found = compiled(function)(x, step, weight, bias)
    assert forms() == ["register_norm"]
    expected = function(*(t.double() for t in (x, step, weight, bias)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("device", devices())
def test_what_else_is_read_of_each_element(device: str) -> None:
    x, (weight, bias) = images((2, 96, 16, 16), device), affine(96, device)
    other = images((2, 96, 16, 16), device).flip(0)

    def function(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x, 8, weight, bias) * 2 + other

    found = compiled(function)(x, other, weight, bias)
    assert forms() == ["register_norm"]
    expected = function(*(t.double() for t in (x, other, weight, bias)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype, device: str) -> None:
    """What the backward pass wants of each group is stored once for each."""
    given = (images((2, 320, 16, 16), device, dtype), *affine(320, device, dtype))
    leaves = [t.requires_grad_() for t in given]
    result = compiled(norm(32))(*leaves)
    assert any("register_norm" in [k["form"] for k in program["kernels"]] for program in compiled_programs()[-2:])
    gradient = torch.randn_like(result)
    found = torch.autograd.grad(result, leaves, gradient)
    again = [t.detach().double().requires_grad_() for t in given]
    expected = torch.autograd.grad(norm(32)(*again), again, gradient.double())
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinities_and_what_is_no_number_stay_in_their_groups(dtype: torch.dtype, device: str) -> None:
    x, (weight, bias) = images((2, 96, 16, 16), device, dtype), affine(96, device, dtype)
    x[0, 3, 0, 0], x[0, 40, 7, 9], x[1, 95, 15, 15] = math.nan, math.inf, -math.inf
    x[1, :12] = 1 / 16  # no deviation at all, and no digits lost to what they are multiplied by
    found = compiled(norm(8))(x, weight, bias)
    assert forms() == ["register_norm"]
    expected = norm(8)(x.double(), weight.double(), bias.double())
    assert found.isnan().any()
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=16 * step, atol=16 * step, equal_nan=True)


@pytest.mark.parametrize("device", devices())
def test_a_mean_far_above_the_deviation(device: str) -> None:
    """Squares of elements would lose all digits of the deviation; distances from a row of them do not."""
    x, (weight, bias) = images((2, 96, 16, 16), device) + 1e4, affine(96, device)
    found = compiled(norm(8))(x, weight, bias)
    assert forms() == ["register_norm"]
    expected = norm(8)(x.double(), weight.double(), bias.double())
    eager = norm(8)(x, weight, bias).double()
    error, bound = (found.double() - expected).abs().max(), (eager - expected).abs().max()
    assert error <= max(4 * bound, 4e-3)


@pytest.mark.parametrize("device", devices())
def test_every_run_gives_the_same_bits(device: str) -> None:
    shape, groups = ((4, 320, 16, 16), 32) if device == "cuda" else ((2, 96, 16, 16), 8)
    given = (images(shape, device), *affine(shape[1], device))
    call = compiled(norm(groups))
    first = call(*given)
    assert all(torch.equal(call(*given), first) for _ in range(50 if device == "cuda" else 2))


@pytest.mark.parametrize("device", devices())
def test_results_may_lie_where_images_did(device: str) -> None:
    x, (weight, bias) = images((2, 96, 16, 16), device), affine(96, device)
    kernel = torch.randn(96, 96, 1, 1, device=device) / 10

    def function(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(F.conv2d(x, kernel), 8, weight, bias))

    found = compiled(function)(x, kernel, weight, bias)
    assert forms() == ["register_norm"]
    expected = function(*(t.double() for t in (x, kernel, weight, bias)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_volumes_and_slices_are_images(dtype: torch.dtype, device: str) -> None:
    volumes = images((2, 96, 16, 16), device, dtype).view(2, 96, 4, 4, 16)
    affines = affine(96, device, dtype)
    found = compiled(norm(8))(volumes, *affines)
    assert forms() == ["register_norm"]
    expected = norm(8)(*(t.double() for t in (volumes, *affines)))
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=4e-2 if dtype is torch.bfloat16 else 1e-5)
    wide = images((2, 96, 16, 16), device, dtype)
    sliced = compiled(lambda x: F.group_norm(x[:, :48], 4))(wide)
    assert forms() == ["register_norm"]
    expected = F.group_norm(wide[:, :48].double(), 4)
    torch.testing.assert_close(sliced.double(), expected, rtol=2e-2, atol=4e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_moments_that_are_results(dtype: torch.dtype, device: str) -> None:
    """In 16 bits, too: a mean is rounded for each group, while elements take it as it is.

    The op itself takes images whose channels lie beside each other on the CPU only.
    """

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return torch.native_group_norm(x, weight, bias, 2, 96, 256, 8, 1e-5)

    given = (images((2, 96, 16, 16), device, dtype), *affine(96, device, dtype))
    found = compiled(function)(*given)
    assert forms() == ["register_norm"]
    expected = function(*(t.double().cpu() for t in given))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            mine.double().cpu(), theirs, rtol=2e-2, atol=1e-5 if dtype is torch.float32 else 4e-2
        )


@pytest.mark.parametrize(
    ("shape", "groups", "changes"),
    [
        ((2, 24, 16, 16), 4, {}),  # fewer channels than a block has
        ((2, 96, 7, 9), 8, {}),  # an odd number of places
        ((2, 96, 16, 16), 96, {}),  # groups of one channel
        ((2, 96, 16, 16), 8, {"register_norms": False}),
        ((2, 96, 16, 16), 8, {"grid_reductions": False}),
    ],
)
def test_other_images_are_read_again(shape: Shape, groups: int, changes: dict[str, object]) -> None:
    given = (images(shape, "cpu"), *affine(shape[1], "cpu"))
    found = compiled(norm(groups), **changes)(*given)
    assert "register_norm" not in forms()
    torch.testing.assert_close(found, norm(groups)(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_streams_beside_each_other() -> None:
    """Kernels of four streams wait for their own programs only, and all of them end."""
    given = (images((16, 320, 64, 64), "cuda", torch.bfloat16), *affine(320, "cuda", torch.bfloat16))
    call = compiled(norm(32))
    expected = call(*given)
    assert forms() == ["register_norm"]
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                found.append(call(*given))
        found = found[-4:]
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in found)


@pytest.mark.parametrize("device", devices())
def test_calls_with_other_images(device: str) -> None:
    """What programs tell each other is never what those of the call before have told."""
    weight, bias = affine(320, device, torch.bfloat16)
    call = compiled(norm(32))
    for number in range(5):
        x = images((2, 320, 16, 16), device, torch.bfloat16) + number
        expected = norm(32)(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(call(x, weight, bias).double(), expected, rtol=0.125, atol=0.125)
    assert forms() == ["register_norm"]


@pytest.mark.gpu
def test_a_recorded_call_is_replayed_in_any_stream() -> None:
    """Beside calls that are not recorded, in the stream that it was recorded in and in another one."""
    weight, bias = affine(320, "cuda", torch.bfloat16)
    inputs = [images((4, 320, 32, 32), "cuda", torch.bfloat16) + number for number in range(4)]
    call = compiled(norm(32))
    expected = [call(x, weight, bias) for x in inputs]
    assert forms() == ["register_norm"]
    given, graph = inputs[0].clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(given, weight, bias)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for turn in range(12):
        x, wanted = inputs[turn % 4], expected[turn % 4]
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[turn % 2]):
            given.copy_(x)
            graph.replay()
            beside = call(x, weight, bias)
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, wanted)
        assert torch.equal(beside, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((16, 320, 64, 64), 32), ((2, 640, 32, 32), 32), ((8, 512, 64, 64), 32), ((2, 320, 128, 128), 32)],
)
def test_real_sizes(shape: Shape, groups: int, dtype: torch.dtype) -> None:
    given = (images(shape, "cuda", dtype), *affine(shape[1], "cuda", dtype))
    torch._dynamo.reset()
    call = torch.compile(norm(groups), backend="ferrite", dynamic=False)
    found = call(*given)
    assert forms() == ["register_norm"]
    expected = norm(groups)(*(t.double() for t in given))
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=16 * step, atol=16 * step)
    assert all(torch.equal(call(*given), found) for _ in range(100)), "whatever the timing"
