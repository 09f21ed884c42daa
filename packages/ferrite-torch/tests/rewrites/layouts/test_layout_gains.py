"""Which convolutions the table of measured gains has, by precision, window, stride and channels."""

from __future__ import annotations

import pytest
import torch

from ferrite_torch.rewrites.layouts import convolution_layouts, layout_gains
from ferrite_torch.rewrites.layouts.convolution_layouts import Effect
from ferrite_torch.rewrites.layouts.layout_gains import HALF, TF32, Convolution, is_faster_channels_last

MEASURED = [  # rows of measurements: microseconds row-major and channels-last, on H200s
    (Convolution(HALF, (3, 3), (1, 1), (96, 128)), 41, 25),
    (Convolution(HALF, (3, 3), (1, 1), (3, 512)), 82, 49),
    (Convolution(HALF, (5, 5), (1, 1), (8, 96)), 17, 10),
    (Convolution(HALF, (3, 3), (2, 2), (512, 8)), 77, 29),
    (Convolution(HALF, (1, 1), (2, 2), (3, 1024)), 4, 15),
    (Convolution(HALF, (2, 2), (2, 2), (320, 8)), 53, 153),
    (Convolution(HALF, (1, 1), (2, 2), (64, 96)), 9, 4),
    (Convolution(HALF, (3, 3, 3), (2, 2, 2), (320, 64)), 128, 91),
    (Convolution(HALF, (1, 1, 1), (2, 2, 2), (64, 96)), 44, 16),
    (Convolution(TF32, (3, 3), (1, 1), (96, 128)), 64, 32),
    (Convolution(TF32, (4, 4), (2, 2), (32, 96)), 16, 8),
    (Convolution(TF32, (3, 3), (1, 1), (160, 8)), 20, 11),
    (Convolution(TF32, (2, 2), (1, 1), (8, 64)), 31, 39),
    (Convolution(TF32, (7, 7), (1, 1), (96, 32)), 27, 99),
    (Convolution(TF32, (1, 1), (2, 2), (1024, 256)), 39, 17),
    (Convolution(TF32, (1, 1), (2, 2), (64, 96)), 7, 8),
    (Convolution(TF32, (3, 3, 3), (2, 2, 2), (320, 64)), 124, 37),
    (Convolution(TF32, (1, 1, 1), (2, 2, 2), (64, 96)), 44, 55),
    (Convolution(TF32, (4, 4, 4), (2, 2, 2), (24, 128)), 52, 58),
    (Convolution(HALF, (2, 2), (2, 2), (64, 8), is_transposed=True), 83, 6),
    (Convolution(HALF, (3, 3), (1, 1), (3, 512), is_transposed=True), 25, 16),
    (Convolution(TF32, (3, 3), (1, 1), (8, 128), is_transposed=True, gflop=0.46), 32, 19),
    (Convolution(TF32, (3, 3), (1, 1), (8, 128), is_transposed=True, gflop=0.01), 7, 9),
    (Convolution(TF32, (7, 7), (2, 2), (8, 256), is_transposed=True, gflop=26.3), 815, 488),
    (Convolution(TF32, (4, 4), (2, 2), (3, 64), is_transposed=True, gflop=2.47), 631, 270),
    (Convolution(TF32, (3, 3), (1, 1), (3, 32), is_transposed=True, gflop=0.01), 6, 18),
    (Convolution(TF32, (3, 3, 3), (2, 2, 2), (8, 8), is_transposed=True, gflop=2.43), 944, 670),
    (Convolution(TF32, (4, 4, 4), (2, 2, 2), (3, 128), is_transposed=True, gflop=0.01), 13, 21),
    (Convolution(TF32, (3, 3, 3), (1, 1, 1), (4, 32), gflop=2.43), 109, 245),
    (Convolution(TF32, (2, 2), (2, 2), (1024, 128), is_transposed=True), 46, 68),
    (Convolution(TF32, (1, 1), (2, 2), (48, 96), is_transposed=True), 6, 10),
    # of one dim, which are of images of one row
    (Convolution(HALF, (1, 3), (1, 1), (512, 32), is_line=True), 30, 9),
    (Convolution(HALF, (1, 3), (1, 1), (3, 512), is_line=True), 7, 16),
    (Convolution(HALF, (1, 2), (1, 1), (64, 16), is_transposed=True, is_line=True), 13, 5),
    (Convolution(TF32, (1, 3), (1, 1), (128, 512), is_line=True), 20, 9),
    (Convolution(TF32, (1, 7), (1, 1), (8, 24), is_line=True), 6, 15),
    (Convolution(TF32, (1, 2), (1, 1), (64, 16), is_transposed=True, is_line=True), 8, 16),
]


@pytest.mark.parametrize("channels", [3, 8, 15])
def test_images_of_few_channels_are_as_exact_as_eagers(channels: int) -> None:
    """Row-major the library computes them without TF32: 667 us where channels-last takes 362, and rounds."""
    assert not is_faster_channels_last(Convolution(TF32, (3, 3), (1, 1), (channels, 64), gflop=37.7))
    assert not is_faster_channels_last(Convolution(TF32, (5, 5), (1, 1), (6, 64), is_transposed=True, gflop=2.4))
    assert is_faster_channels_last(Convolution(TF32, (3, 3), (1, 1), (16, 64), gflop=37.7))


@pytest.mark.parametrize(("convolution", "row_major", "channels_last"), MEASURED)
def test_what_was_measured_is_in_the_table(convolution: Convolution, row_major: int, channels_last: int) -> None:
    assert is_faster_channels_last(convolution) == (channels_last < row_major)


def test_sizes_that_are_not_known_gain_nothing() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    weight = mode.from_tensor(torch.empty(64, 64, 3, 3))
    size = mode.shape_env.create_unbacked_symint()
    assert is_faster_channels_last(Convolution(HALF, (3, 3), (1, 1), tuple(weight.shape[:2])))
    assert not is_faster_channels_last(Convolution(HALF, (1, 1), (1, 1), (size, 64)))
    assert not is_faster_channels_last(Convolution(HALF, (size, 3), (1, 1), (64, 64)))


@pytest.mark.parametrize(("groups", "effect"), [(1, Effect.GAIN), (2, Effect.NONE), (32, Effect.NONE)])
@pytest.mark.parametrize("is_backward", [False, True])
def test_channels_of_transposed_and_backward_convolutions(
    monkeypatch: pytest.MonkeyPatch, groups: int, effect: Effect, *, is_backward: bool
) -> None:
    """The images of a transposed convolution have the channels of the weight's first axis."""
    monkeypatch.setattr(convolution_layouts, "_has_library", lambda: True)
    graph = torch.fx.Graph()
    seen: list[Convolution] = []

    def noted(convolution: Convolution) -> bool:
        seen.append(convolution)
        return layout_gains.is_faster_channels_last(convolution)

    monkeypatch.setattr(convolution_layouts, "is_faster_channels_last", noted)
    image, weight, grad = (graph.placeholder(name) for name in ("image", "weight", "grad"))
    image.meta["val"] = torch.empty(1, 32, 8, 8, dtype=torch.bfloat16, device="meta")
    weight.meta["val"] = torch.empty(32, 48 // groups, 3, 3, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(convolution_layouts, "_is_cuda", lambda _: True)
    grad.meta["val"] = torch.empty(1, 48, 8, 15, dtype=torch.bfloat16, device="meta")
    common = ([1, 2], [1, 1], [1, 1], True, [0, 0], groups)
    aten = torch.ops.aten
    if is_backward:
        call = graph.call_function(
            aten.convolution_backward.default, (grad, image, weight, None, *common, (True, True, False))
        )
    else:
        call = graph.call_function(aten.convolution.default, (image, weight, None, *common))
        call.meta["val"] = grad.meta["val"]
    assert convolution_layouts.measured_effect(call) is effect
    assert [(each.channels, each.stride, each.window, each.is_transposed, each.dims) for each in seen] == (
        [((32, 48), [1, 2], [3, 3], True, 2)] if groups == 1 else []
    )
    assert [each.gflop for each in seen] == ([pytest.approx(2e-9 * 8 * 8 * 32 * 48 * 9)] if groups == 1 else [])
