"""Shapes of matrix products in public models, and such as nobody tuned for, drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

KINDS = ("plain", "gelu", "residual", "gate")
"""What reads the product: nothing; a bias and a GELU; a bias and a residual; the gate that a second product is."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A product ``[rows, depth] @ [depth, columns]``, and what reads it, one of `KINDS`."""

    name: str
    rows: int
    depth: int
    columns: int
    kind: str

    def __str__(self) -> str:
        return f"{self.name} {self.rows}x{self.depth}x{self.columns} {self.kind}"

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * (2 if self.kind == "gate" else 1)


MODELS: dict[str, tuple[tuple[int, int, str], ...]] = {
    "llama-3-8b": ((4096, 6144, "plain"), (4096, 14336, "gate"), (14336, 4096, "residual"), (4096, 4096, "residual")),
    "llama-3-70b": ((8192, 10240, "plain"), (8192, 28672, "gate"), (28672, 8192, "residual")),
    "qwen2.5-7b": ((3584, 4608, "plain"), (3584, 18944, "gate"), (18944, 3584, "residual")),
    "gemma-2-9b": ((3584, 8192, "plain"), (3584, 14336, "gate"), (14336, 3584, "residual")),
    "phi-3-mini": ((3072, 9216, "plain"), (3072, 8192, "gate"), (8192, 3072, "residual")),
    "gpt2": ((768, 2304, "plain"), (768, 3072, "gelu"), (3072, 768, "residual"), (768, 50257, "plain")),
    "gpt2-xl": ((1600, 4800, "plain"), (1600, 6400, "gelu"), (6400, 1600, "residual")),
    "bert-large": ((1024, 3072, "plain"), (1024, 4096, "gelu"), (4096, 1024, "residual")),
    "vit-large": ((1024, 3072, "plain"), (1024, 4096, "gelu"), (4096, 1024, "residual")),
    "whisper-large": ((1280, 3840, "plain"), (1280, 5120, "gelu"), (5120, 1280, "residual")),
    "deepseek-v3": ((7168, 2112, "plain"), (7168, 4096, "gate"), (2048, 7168, "residual"), (7168, 129280, "plain")),
}
"""Depth, columns and what reads the result, of the products of a layer."""
ROWS = {"vit-large": (197 * 16, 197 * 64), "deepseek-v3": (128, 4096)}
USUAL_ROWS = (512, 8192)
SQUARES = (1024, 2048, 4096, 8192)


def model_shapes() -> Iterator[Shape]:
    """Yields the products of models, and square ones."""
    for size in SQUARES:
        yield Shape("square", size, size, size, "plain")
    for name, layers in MODELS.items():
        for rows in ROWS.get(name, USUAL_ROWS):
            for depth, columns, kind in layers:
                yield Shape(name, rows, depth, columns, kind)


FEW_ROWS = (1, 8, 16, 32, 64, 128)
DECODED = ((4096, 6144, "plain"), (4096, 4096, "residual"), (4096, 14336, "gate"), (14336, 4096, "residual"))
NARROW = ((8192, 512, 8192), (128, 2112, 7168), (512, 4608, 3584), (1024, 256, 16384))


def decode_shapes() -> Iterator[Shape]:
    """Yields the products of a layer for few rows (decoding), and others with few tiles for their long sums."""
    for rows in FEW_ROWS:
        for depth, columns, kind in DECODED:
            yield Shape("decode", rows, depth, columns, kind)
    for rows, columns, depth in NARROW:
        yield Shape("narrow", rows, depth, columns, "plain")


def random_shapes(seed: int, count: int) -> Iterator[Shape]:
    """Yields products of any sizes: extents spread evenly over their logarithms, most of them multiples of eight."""
    draw = Random(seed)

    def extent(least: int, most: int) -> int:
        found = math.exp(draw.uniform(math.log(least), math.log(most)))
        step = draw.choice((1, 8, 8, 64, 64, 128))
        return max(least, round(found / step) * step)

    for number in range(count):
        rows, depth, columns = extent(17, 16384), extent(64, 16384), extent(64, 32768)
        yield Shape(f"random:{seed}:{number}", rows, depth, columns, draw.choice(KINDS))
