"""Which convolutions NVIDIA's library computes faster from channels-last (NHWC) operands: a measured table.

``benchmarks/kernels/convolution_layouts.py`` measures it with convolutions drawn at random; ``benchmarks/RESULTS.md``
has what it gave. A row stands for all convolutions of a precision, a number of spatial dims, and windows of some
extents, from so many channels on. What no row is about is as fast from either layout, or faster row-major (NCHW):
TF32 kernels for windows of seven and more, or in three dims for even ones, convert their operands in either layout,
and a product with single elements (1x1, stride 1) is a matrix product that reads both. Of images of fewer than 16
channels the library has kernels without TF32 for one layout and with it, faster ones, for the other: eager mode's
results are exact, and so are ours. Transposed convolutions of such images are those that it rounds in either layout,
and gain where they are much work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_torch.torch_private.symbolic_shapes import is_known

HALF, TF32 = "half", "tf32"
"""What the library computes in: types of 16 bits, or float32 rounded to TF32."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """What the table looks at.

    Attributes:
        precision: `HALF` or `TF32`.
        window: extents of the kernel, one for each spatial dim.
        stride: of the window, one for each spatial dim.
        channels: of the images that go in and come out; sizes may be symbolic.
        is_transposed: whether it spreads what comes in, as the gradient of a convolution does.
        is_line: whether images have one row: a convolution of one dim.
        gflop: 1e9 operations of it, two for each product; 0 where sizes are symbolic.
    """

    precision: str
    window: Sequence[int]
    stride: Sequence[int]
    channels: tuple[Any, Any]
    is_transposed: bool = False
    is_line: bool = False
    gflop: float = 0.0

    @property
    def dims(self) -> int:
        """Returns the number of spatial dims that the window goes along."""
        return 1 if self.is_line else len(self.window)


@dataclass(frozen=True, slots=True)
class Gain:
    """A row: convolutions of these gain from channels-last operands.

    Attributes:
        windows: extents that the longest side of the kernel may have.
        channels: fewest channels in and out.
        stride: least stride, of any dim.
        transposed: of transposed convolutions only, or of others only; None for both.
        few: fewer channels in than this; None for any number.
        gflop: least work, 1e9 operations; of symbolic sizes it is not known to suffice.
    """

    precision: str
    dims: int
    windows: range | tuple[int, ...]
    channels: tuple[int, int] = (1, 1)
    stride: int = 1
    transposed: bool | None = None
    few: int | None = None
    gflop: float = 0.0

    def covers(self, convolution: Convolution) -> bool:
        """Returns whether a row is about a convolution; a symbolic number of channels has to be known to suffice."""
        return (
            self.precision == convolution.precision
            and self.dims == convolution.dims
            and self.transposed in (None, convolution.is_transposed)
            and max(convolution.window) in self.windows
            and max(convolution.stride) >= self.stride
            and (self.few is None or is_known(convolution.channels[0] < self.few))
            and convolution.gflop >= self.gflop
            and all(is_known(size >= least) for size, least in zip(convolution.channels, self.channels, strict=True))
        )


ANY = 1 << 31
"""Longer than any window."""
GAINS = (
    Gain(HALF, 1, range(1, ANY), channels=(16, 1)),
    Gain(HALF, 2, range(1, 3), channels=(16, 16)),
    Gain(HALF, 2, range(1, 3), stride=2, transposed=True),
    Gain(HALF, 2, range(3, ANY)),
    Gain(HALF, 3, range(1, ANY), channels=(16, 16)),
    Gain(TF32, 1, range(3, 6), channels=(32, 32)),
    Gain(TF32, 2, (1,), channels=(128, 1), stride=2, transposed=False),
    Gain(TF32, 2, range(2, 6), channels=(16, 1), transposed=False),
    Gain(TF32, 2, range(3, 6), channels=(16, 1), transposed=True),
    Gain(TF32, 2, range(3, 8), channels=(8, 1), few=16, transposed=True, gflop=0.1),
    Gain(TF32, 2, range(3, 8), channels=(3, 1), few=5, transposed=True, gflop=0.1),
    Gain(TF32, 3, (3, 5), channels=(16, 16)),
    Gain(TF32, 3, range(3, 8), channels=(3, 1), few=16, transposed=True, gflop=0.3),
)
"""Measured with torch 2.11 and cuDNN 9 on an H200."""


def is_faster_channels_last(convolution: Convolution) -> bool:
    """Returns whether the library computes a convolution faster from channels-last operands.

    A window of symbolic extents is none that was measured.
    """
    is_measured = all(isinstance(size, int) for size in (*convolution.window, *convolution.stride))
    return is_measured and any(gain.covers(convolution) for gain in GAINS)
