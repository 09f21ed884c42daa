"""Configs of kernels of attention.

A program keeps its rows of the left factors, and what it sums up, while blocks of the other factors come into shared
memory, as many as it has stages: with three of them one is on its way while another is computed with. More rows to a
program read these blocks less often; more columns of scores to a round mean fewer rounds, each of which scales what was
summed up before. Both take registers, which heads of many elements leave few of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import AttentionFacts, facts_as
from ferrite_runtime.formats.kernel_spec import Axis, KernelSpec
from ferrite_runtime.policies.blocks import LEAST_EXTENT, RESERVED, axis_problem, factor_block, shared_problem
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import PRODUCTS

NARROW = 2
"""Bytes of an element of a factor that tensor cores multiply."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of a program, columns of scores of a round, and who computes them.

    Attributes:
        y, r: rows and columns.
        warps, stages: of a program.
        share: of the rate of the fastest tile, where there are programs enough.
    """

    y: int
    r: int
    warps: int
    stages: int
    share: float


SOFTMAX: dict[int, tuple[Tile, ...]] = {
    64: (
        Tile(64, 64, 4, 3, 1.00),
        Tile(128, 64, 8, 4, 0.97),
        Tile(128, 64, 4, 3, 0.92),
        Tile(64, 128, 4, 3, 0.91),
        Tile(128, 128, 8, 3, 0.78),
        Tile(128, 32, 4, 3, 0.70),
    ),
    128: (
        Tile(128, 128, 8, 3, 1.00),
        Tile(128, 64, 8, 3, 0.98),
        Tile(128, 128, 8, 2, 0.90),
        Tile(64, 128, 4, 2, 0.85),
        Tile(64, 64, 4, 3, 0.80),
        Tile(128, 32, 8, 4, 0.78),
        Tile(64, 32, 4, 4, 0.70),
    ),
    256: (
        Tile(128, 64, 8, 2, 1.00),
        Tile(64, 64, 4, 2, 0.95),
        Tile(128, 32, 8, 3, 0.90),
        Tile(64, 32, 4, 3, 0.80),
        Tile(32, 32, 4, 2, 0.60),
    ),
}
"""For lanes of a head up to so many, what is fast on Hopper for 16-bit factors; shares only order candidates.

Measured on an H200 for heads of 64, and for gradients of heads of 192 and 256 (`benchmarks/RESULTS.md`, Attention)."""
SUMS: dict[int, tuple[Tile, ...]] = {
    64: (
        Tile(128, 64, 8, 3, 1.00),
        Tile(64, 64, 4, 3, 0.95),
        Tile(64, 128, 8, 3, 0.92),
        Tile(128, 64, 8, 2, 0.90),
        Tile(64, 32, 4, 3, 0.80),
    ),
    128: (
        Tile(128, 64, 8, 3, 1.00),
        Tile(64, 64, 4, 2, 0.95),
        Tile(128, 64, 8, 2, 0.92),
        Tile(128, 32, 8, 4, 0.85),
        Tile(64, 32, 4, 3, 0.80),
    ),
    256: (
        Tile(64, 32, 4, 2, 1.00),
        Tile(128, 32, 8, 2, 0.98),
        Tile(64, 64, 8, 2, 0.80),
        Tile(64, 32, 8, 2, 0.60),
        Tile(32, 32, 4, 2, 0.50),
    ),
}
"""The same for gradients, which have two products in each round."""
PAIRS = SUMS | {
    256: (
        Tile(64, 64, 8, 2, 1.00),
        Tile(32, 64, 4, 2, 0.98),
        Tile(64, 32, 8, 2, 0.70),
        Tile(32, 32, 4, 2, 0.65),
        Tile(32, 64, 8, 1, 0.50),
    ),
}
"""The same for gradients of keys and values in one kernel: two sums for each row."""
WIDE: dict[int, tuple[Tile, ...]] = {
    64: (Tile(64, 32, 8, 2, 0.20), Tile(32, 32, 4, 2, 0.15), Tile(32, 16, 8, 2, 0.12), Tile(16, 32, 8, 2, 0.10)),
    128: (Tile(32, 16, 8, 2, 0.20), Tile(16, 32, 8, 2, 0.15)),
    256: (Tile(64, 16, 8, 2, 0.20), Tile(32, 32, 8, 2, 0.18), Tile(32, 16, 8, 2, 0.15), Tile(16, 32, 8, 2, 0.10)),
}
"""The same for factors of 32 bits, which are multiplied without tensor cores; others spill (sm_90)."""
FEW_ROWS = (
    Tile(64, 64, 4, 2, 0.60),
    Tile(64, 32, 4, 2, 0.50),
    Tile(32, 64, 4, 3, 0.45),
    Tile(32, 32, 4, 2, 0.40),
    Tile(16, 64, 4, 3, 0.30),
    Tile(16, 128, 4, 2, 0.29),
    Tile(16, 128, 4, 3, 0.28),
    Tile(16, 64, 2, 4, 0.27),
    Tile(16, 32, 4, 4, 0.20),
)
"""For all lengths of 16-bit factors: where there are few rows, or no room for more.

Of sixteen rows, keys are read about as fast as memory gives them: two programs of a multiprocessor have room for three
blocks each on their way (decision 0058)."""
LAST = Tile(16, 16, 4, 1, 0.10)
"""What is taken where nothing else fits."""


def attention_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel of attention, best guess first."""
    facts = facts_as(shape.spec.facts, AttentionFacts)
    lanes = max(facts.depth // max(1, facts.products), shape.spec.blocks.get("XBLOCK", LEAST_EXTENT))
    gradients = PAIRS if facts.sums > 1 else SUMS
    tables = WIDE if facts.factor_bytes > NARROW else SOFTMAX if facts.softmax else gradients
    known = next((table for limit, table in tables.items() if lanes <= limit), ())
    tiles = known if facts.factor_bytes > NARROW else (*known, *FEW_ROWS)
    fitting = [config for tile in tiles for config in _fitted(shape, tile)]
    ordered = sorted(fitting, key=lambda pair: _rounds(shape, *pair))
    return tuple(dict.fromkeys((*(config for config, _ in ordered), _config(shape, LAST, LAST.stages))))


def _fitted(shape: Shape, tile: Tile) -> Iterator[tuple[Config, Tile]]:
    """Yields a tile as a config of a kernel: with fewer stages, where shared memory has no room for all of them.

    None where an axis has fewer points than the tile: its warps would have nothing to do.
    """
    rows, points = _blocks(shape.spec, _config(shape, tile, tile.stages), "YBLOCK", "RBLOCK")
    if (rows, points) != (tile.y, tile.r):
        return
    for stages in range(tile.stages, 0, -1):
        config = _config(shape, tile, stages)
        if attention_problem(shape.spec, config, shape.device) is None:
            yield config, tile
            return


def _config(shape: Shape, tile: Tile, stages: int) -> Config:
    blocks = {axis.block: _block(shape, axis, tile) for axis in shape.spec.axes if axis.block not in shape.spec.blocks}
    return Config.of(blocks, tile.warps, stages)


def _block(shape: Shape, axis: Axis, tile: Tile) -> int:
    """Returns the block of an axis in a tile, see `factor_block`."""
    return factor_block(axis, shape.sizes[axis.name], {"y": tile.y, "r": tile.r}.get(axis.name, 1))


def attention_problem(spec: KernelSpec, config: Config, device: DeviceFacts) -> str | None:
    """Returns why a config is not worth compiling for a device, None if it may be."""
    if problem := axis_problem(spec, config):
        return problem
    held = accumulated(spec, config, device)
    if held > PRODUCTS.sums_and_scores:
        return f"{held} sums and scores per thread do not fit in its registers"
    return shared_problem(shared_bytes(spec, config), device.shared_per_program)


def accumulated(spec: KernelSpec, config: Config, device: DeviceFacts) -> int:
    """Returns how many sums and scores a thread holds: its part of a tile of each."""
    facts = facts_as(spec.facts, AttentionFacts)
    rows, columns = _blocks(spec, config, "YBLOCK", "XBLOCK")
    (points,) = _blocks(spec, config, "RBLOCK")
    scores = points * facts.products * (PRODUCTS.score_copies if facts.factor_bytes <= NARROW else 1)
    tile = rows * (columns * facts.sums + scores)
    return math.ceil(tile / (config.num_warps * device.target.warp_size))


def shared_bytes(spec: KernelSpec, config: Config) -> int:
    """Returns the bytes of shared memory that a config takes, about: left factors, and blocks of others by stage."""
    facts = facts_as(spec.facts, AttentionFacts)
    rows, columns = _blocks(spec, config, "YBLOCK", "XBLOCK")
    (points,) = _blocks(spec, config, "RBLOCK")
    block = points * (facts.depth + columns * facts.factors)
    return (rows * facts.depth + config.num_stages * block) * facts.factor_bytes + RESERVED


def _blocks(spec: KernelSpec, config: Config, *names: str) -> tuple[int, ...]:
    return tuple(spec.blocks.get(name) or config.block(name) for name in names)


def _rounds(shape: Shape, config: Config, tile: Tile) -> float:
    """Returns about what a config should take, in rows of scores that the fastest tile makes meanwhile."""
    (rows,) = _blocks(shape.spec, config, "YBLOCK")
    sizes = shape.sizes
    programs = math.prod(-(-sizes[name] // block) for name, block in (("z", 1), ("y", rows)) if name in sizes)
    waves = -(-programs // shape.device.multiprocessors)
    stages = 1.0 if config.num_stages > 1 else 2.0
    return waves * rows * stages / tile.share


def attention_seconds(spec: KernelSpec, device: DeviceFacts) -> float:
    """Returns the seconds that tensor cores take for all blocks of scores: how many are masked nobody knows yet."""
    facts = facts_as(spec.facts, AttentionFacts)
    scores = math.prod(max(1, size) for name, size in spec.hint_sizes().items() if name != "x")
    lanes = facts.depth + facts.sums * spec.blocks.get("XBLOCK", 1)
    return 2.0 * scores * lanes / (device.multiprocessors * device.tensor_operations)


FORMS = (
    KernelForm(
        name="attention",
        facts=AttentionFacts,
        configs=attention_configs,
        has_loops=True,
        held=accumulated,
        problem=attention_problem,
        seconds=attention_seconds,
    ),
)
