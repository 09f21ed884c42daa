"""Configs of kernels that compute a product of matrices tile by tile, on tensor cores.

A program adds up one tile of the result in registers, while the blocks of the factors that it multiplies next come into
shared memory, as many as it has stages. Wide tiles read less for each multiplication; narrow ones are more, where a
result has few, and a multiprocessor with no tile waits for the others. Of few rows the other factor comes from memory
for longer than it is multiplied. Factors of float32 are rounded to TF32 in registers: where tensor cores read the right
one from shared memory, it goes back there, which takes as long as multiplying some rows by it. What reads the result is
computed while nothing is multiplied, the faster the more warps there are. `_seconds` weighs all that.

Blocks come by pointers, or through tensor descriptors (TMA), which are made by each program before its first tile: one
thread asks for a block, no thread has addresses, and more registers are left for sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import DESCRIPTORS, ROUNDS, Config
from ferrite_runtime.formats.facts import TiledContractionFacts, facts_as
from ferrite_runtime.formats.kernel_spec import Axis, KernelSpec
from ferrite_runtime.policies.blocks import (
    RESERVED,
    axis_problem,
    factor_block,
    free_axes,
    scratch_programs,
    shared_problem,
)
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.resources import registers_of
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import PRODUCTS

MANY_STAGES = 1 << 10
"""Of a sum whose length only a call tells: no bound."""
SINGLE = 4
"""Bytes of factors that are rounded to TF32 before they are multiplied."""
FACTORS = 2
"""Of a product."""
SHARED_ROWS = 64
"""Rows from which on tensor cores since Hopper read the right factor from shared memory (``wgmma``)."""
STORED_BYTES = 2
"""Of an element of a result that is laid out anew for its stores."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of the result, a block of the reduction axis, and who computes it.

    Attributes:
        y, x, r: rows, columns, and points of a block.
        warps, stages: of a program.
        share: of the rate of the fastest tile, where there are enough of them.
    """

    y: int
    x: int
    r: int
    warps: int
    stages: int
    share: float


HALF = 2
"""Bytes of the factors that `TILES` and the rates of devices are of; others have blocks of as many bytes."""
TILES = (
    Tile(128, 256, 64, 8, 3, 1.00),
    Tile(128, 256, 64, 16, 3, 0.99),
    Tile(256, 128, 64, 8, 3, 0.98),
    Tile(128, 256, 64, 8, 4, 0.97),
    Tile(128, 128, 64, 4, 4, 0.90),
    Tile(128, 128, 64, 8, 4, 0.88),
    Tile(128, 128, 128, 8, 3, 0.86),
    Tile(64, 256, 64, 4, 4, 0.84),
    Tile(64, 128, 64, 4, 5, 0.72),
    Tile(128, 64, 64, 4, 5, 0.72),
    Tile(64, 128, 128, 4, 3, 0.70),
    Tile(64, 64, 128, 4, 4, 0.52),
    Tile(64, 64, 64, 4, 6, 0.50),
    Tile(64, 32, 128, 4, 5, 0.32),
    Tile(32, 64, 128, 4, 5, 0.26),
    Tile(32, 128, 128, 4, 4, 0.32),
    Tile(16, 128, 128, 4, 4, 0.20),
    Tile(16, 64, 256, 4, 4, 0.14),
)
"""What was found to be fast on Hopper for 16-bit factors; shares are first guesses that only order the candidates."""
PART_TILES = (
    Tile(128, 64, 64, 4, 4, 0.80),
    Tile(128, 128, 64, 8, 3, 0.78),
    Tile(64, 128, 64, 4, 4, 0.63),
    Tile(64, 64, 64, 4, 4, 0.50),
)
"""The same for factors of float32 that are multiplied in three parts, of which the left ones are made in registers.

Measured on an H200, 4096 x 4096 x 4096: 106, 104 and 83 TFLOP/s, counted once, where the library's reach 50.
"""
ELEMENT_TILES = (
    Tile(64, 64, 128, 8, 2, 0.52),
    Tile(64, 32, 128, 8, 2, 0.32),
    Tile(32, 64, 128, 8, 2, 0.26),
    Tile(32, 32, 256, 8, 2, 0.20),
    Tile(32, 32, 128, 4, 2, 0.20),
    Tile(32, 16, 128, 4, 2, 0.14),
    Tile(16, 32, 128, 4, 2, 0.14),
    Tile(16, 16, 256, 4, 2, 0.10),
)
"""The same where threads load elements of factors one by one: of these they have registers for about 64 at a time."""
LEAST_TILE = Tile(16, 16, 64, 4, 2, 0.05)
"""For factors that are computed of several tensors, of which shared memory has no room for larger blocks."""


def tiled_contraction_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a product of matrices, best guess first."""
    known = PART_TILES if facts_as(shape.spec.facts, TiledContractionFacts).part_products > 1 else TILES
    tiles = (*known, *ELEMENT_TILES) if _single_elements(shape, 1, 1) else known
    fitting = [pair for tile in tiles for pair in _fitted(shape, tile)]
    fitting = fitting or [pair for tile in (*ELEMENT_TILES, LEAST_TILE) for pair in _fitted(shape, tile)]
    fitting += [(persistent, tile) for config, tile in fitting if (persistent := _persistent(shape, config, tile))]
    fitting += [(described, tile) for config, tile in fitting if (described := _described(shape, config))]
    ordered = sorted(fitting, key=lambda pair: (_spills(shape, pair[0]), _seconds(shape, *pair)))
    return tuple(dict.fromkeys(config for config, _ in ordered))


def _fitted(shape: Shape, tile: Tile) -> Iterator[tuple[Config, Tile]]:
    """Yields a tile as a config of a kernel: with fewer stages, where shared memory has no room for all of them.

    Nor does it have more than a sum has blocks, and one: all of them are on their way from the start then, and more
    programs fit a multiprocessor.
    """
    blocks = {axis.block: _block(shape, axis, tile) for axis in shape.spec.axes if axis.block not in shape.spec.blocks}
    config = _in_fewer_stages(shape, Config.of(blocks, tile.warps, min(tile.stages, _most_stages(shape, blocks))))
    if config is not None:
        yield config, tile


def _most_stages(shape: Shape, blocks: Mapping[str, int]) -> int:
    """Returns the stages of which all blocks of a sum are on their way at once, if its length is known."""
    sizes = [axis.size for axis in shape.axes("reduction") if axis.block == "RBLOCK"]
    numbers = [size for size in sizes if isinstance(size, int)]
    if "RBLOCK" not in blocks or len(numbers) < len(sizes):
        return MANY_STAGES
    points = _points(math.prod(numbers), facts_as(shape.spec.facts, TiledContractionFacts))
    return max(2, 1 + -(-points // blocks["RBLOCK"]))


def _in_fewer_stages(shape: Shape, config: Config) -> Config | None:
    """Returns a config with as many of its stages as fit the device; None where two are too many."""
    for stages in range(config.num_stages, 1, -1):
        fewer = replace(config, num_stages=stages)
        if tile_problem(shape.spec, fewer, shape.device) is None:
            return fewer
    return None


def _persistent(shape: Shape, config: Config, tile: Tile) -> Config | None:
    """Returns a config of large tiles with no more programs than run at once, each of which takes several tiles.

    Blocks of the next tile are on their way meanwhile, so it has all stages of the tile.
    """
    if not any(axis.kind == "rounds" for axis in shape.spec.axes):
        return None
    if config.block("YBLOCK") * config.block("XBLOCK") < PRODUCTS.persistent_tile:
        return None
    config = _in_fewer_stages(shape, replace(config, num_stages=tile.stages)) or config
    programs = shape.device.multiprocessors * max(
        1, shape.device.shared_per_program // shared_bytes(shape.spec, config)
    )
    rounds = -(-_tiles(shape, config) // programs)
    if rounds == 1:
        return None
    blocks = dict(config.blocks) | {ROUNDS: rounds}
    return _in_fewer_stages(shape, Config.of(blocks, config.num_warps, config.num_stages))


def _described(shape: Shape, config: Config) -> Config | None:
    """Returns a config of large tiles with blocks that are loaded through descriptors; None where there are none."""
    if not free_axes(shape.spec, "descriptors"):
        return None
    if config.block("YBLOCK") * config.block("XBLOCK") < PRODUCTS.described_tile:
        return None
    described = replace(config, blocks=tuple(sorted({**dict(config.blocks), DESCRIPTORS: 2}.items())))
    return described if tile_problem(shape.spec, described, shape.device) is None else None


def _block(shape: Shape, axis: Axis, tile: Tile) -> int:
    """Returns the block of an axis in a tile, see `factor_block`."""
    facts = facts_as(shape.spec.facts, TiledContractionFacts)
    points, size = tile.r * HALF // facts.factor_bytes, shape.sizes[axis.name]
    return factor_block(
        axis,
        _points(size, facts) if axis.name == "r" else size,
        {"y": tile.y, "x": tile.x, "r": points}.get(axis.name, 1),
    )


def tile_problem(spec: KernelSpec, config: Config, device: DeviceFacts) -> str | None:
    """Returns why a config is not worth compiling for a device, None if it may be."""
    if problem := axis_problem(spec, config) or descriptor_problem(spec, config, device):
        return problem
    sums = accumulated(spec, config, device)
    if sums > PRODUCTS.sums:
        return f"{sums} sums per thread do not fit in its registers"
    return shared_problem(shared_bytes(spec, config), device.shared_per_program)


def descriptor_problem(spec: KernelSpec, config: Config, device: DeviceFacts) -> str | None:
    """Returns why a config cannot have the descriptors that it has; None where it can, or has none."""
    if config.block(DESCRIPTORS) == 1:
        return None
    if not device.target.has_descriptors:
        return f"{device.target} has no tensor descriptors"
    programs, most = spec.expected_programs(dict(config.blocks)), scratch_programs(spec)
    return f"{programs} programs, {most} have memory for their descriptors" if programs > most else None


def accumulated(spec: KernelSpec, config: Config, device: DeviceFacts) -> int:
    """Returns how many sums a thread holds: its part of a tile of each product."""
    facts = facts_as(spec.facts, TiledContractionFacts)
    tile = config.block("YBLOCK") * config.block("XBLOCK") * (facts.product + facts.partial_sums)
    return -(-tile // (config.num_warps * device.target.warp_size))


def shared_bytes(spec: KernelSpec, config: Config) -> int:
    """Returns the bytes of shared memory that a config takes, about: blocks of all factors, for each stage.

    Of a program of several tiles also a tile on its way to memory.
    """
    facts = facts_as(spec.facts, TiledContractionFacts)
    y, x, r = (config.block(name) for name in ("YBLOCK", "XBLOCK", "RBLOCK"))
    # A tile is laid out anew for its stores, in memory that blocks on their way have where there is no further tile.
    stored = y * x * STORED_BYTES if config.block(ROUNDS) > 1 else 0
    return config.num_stages * r * (y * facts.left_bytes + x * facts.right_bytes) + stored + RESERVED


def _spills(shape: Shape, config: Config) -> bool:
    """Returns whether a thread has no registers for its sums and what else it holds.

    That is elements of factors that it loads one by one, and then what is computed with the result of other tensors.
    """
    facts = facts_as(shape.spec.facts, TiledContractionFacts)
    threads = config.num_warps * shape.device.target.warp_size
    y, x, r = (config.block(name) for name in ("YBLOCK", "XBLOCK", "RBLOCK"))
    elements = r * _single_elements(shape, y, x) // threads
    registers = registers_of(config, shape.device)
    sums = accumulated(shape.spec, config, shape.device)
    read = facts.loads - FACTORS * facts.product
    finishing = PRODUCTS.address_registers + sums * (1 + PRODUCTS.read_share * read)
    loading = sums + PRODUCTS.element_registers * elements
    return (elements > 0 and loading > registers) or (read > 0 and finishing > registers)


def _seconds(shape: Shape, config: Config, tile: Tile) -> tuple[float, float]:
    """Returns about what a config should take: what computing its tiles takes, at least what loading the factors does.

    Factors are loaded at the rate of the multiprocessors that have a tile, and no faster than their elements come one
    by one, where they do. Of equal configs of rows in groups those whose tiles are computed faster go first: of few
    rows that a group has, large ones hold nothing for the most part.
    """
    tiles = _tiles(shape, config)
    computed = _computed(shape, config, tile, tiles)
    loaded = _loaded(shape, config, tiles) * max(1.0, shape.device.multiprocessors / tiles)
    is_grouped = facts_as(shape.spec.facts, TiledContractionFacts).row_groups > 0
    return max(computed, loaded, _loaded_singly(shape, config, tiles)), computed if is_grouped else 0.0


def _single_elements(shape: Shape, y: int, x: int) -> int:
    """Returns how many elements that are loaded one by one a tile of these sides has at each point of the reduction."""
    facts = facts_as(shape.spec.facts, TiledContractionFacts)
    left = 0 if _come_by_themselves(shape, facts.left_elements, facts.left_bytes) else facts.left_elements
    right = 0 if _come_by_themselves(shape, facts.right_elements, facts.right_bytes) else facts.right_elements
    return y * left + x * right


def _come_by_themselves(shape: Shape, elements: int, loaded: int) -> bool:
    """Returns whether elements come to shared memory without a thread, as vectors do: of four bytes (``cp.async``)."""
    return shape.device.target.backend == "cuda" and loaded >= SINGLE * elements


def _loaded_singly(shape: Shape, config: Config, tiles: int) -> float:
    """Returns the seconds that loading elements one by one takes: no block is on its way while another is multiplied.

    So each block takes the latency of memory, and the loads of all programs of a multiprocessor after each other.
    """
    y, x, r = (config.block(name) for name in ("YBLOCK", "XBLOCK", "RBLOCK"))
    loads = r * _single_elements(shape, y, x) / shape.device.target.warp_size
    if not loads:
        return 0.0
    blocks = -(-_points(shape.reduction, facts_as(shape.spec.facts, TiledContractionFacts)) // r)
    rounds = -(-tiles // shape.device.multiprocessors)
    return blocks * (PRODUCTS.block_latency + rounds * loads * PRODUCTS.warp_load_seconds)


def _computed(shape: Shape, config: Config, tile: Tile, tiles: int) -> float:
    """Returns the seconds that rounds of tiles take, by the multiplications and the epilogue of each."""
    facts = facts_as(shape.spec.facts, TiledContractionFacts)
    rounds = -(-tiles // shape.device.multiprocessors)
    is_described = config.block(DESCRIPTORS) > 1
    is_faster = is_described and facts.factor_bytes >= HALF
    share = tile.share * PRODUCTS.described_rate if is_faster else tile.share
    if facts.factor_bytes == SINGLE and facts.part_products == 1 and shape.device.target.has_descriptors:
        share = _rounded_share(share, config.block("YBLOCK"))
    rate = shape.device.tensor_operations * share * HALF / facts.factor_bytes
    products = 2.0 * _points(shape.reduction, facts) * facts.product * facts.part_products / rate
    epilogue = facts.flops / max(1, facts.numel) * PRODUCTS.epilogue_seconds
    epilogue *= 1 + PRODUCTS.idle_warps / config.num_warps
    computed = rounds * tile.y * tile.x * (products + epilogue)
    if is_described:
        computed += rounds / config.block(ROUNDS) * PRODUCTS.describe_seconds
    return computed


def _rounded_share(share: float, rows: int) -> float:
    """Returns the share of the fastest rate that a tile has whose factors are rounded, given its share without."""
    if rows >= SHARED_ROWS:
        return share / (1 + PRODUCTS.rounded_rows / rows)
    return max(share, PRODUCTS.rounded_share) if rows == SHARED_ROWS // 2 else share


def _tiles(shape: Shape, config: Config) -> int:
    """Returns how many tiles have rows, about: of groups of rows each has one, and half of its last one is empty."""
    groups = facts_as(shape.spec.facts, TiledContractionFacts).row_groups
    counts = {axis.name: -(-shape.sizes[axis.name] // config.block(axis.block)) for axis in shape.axes("grid")}
    if groups:
        counts["y"] = max(min(groups, shape.sizes["y"]), counts["y"] + groups // 2)
    return math.prod(max(1, count) for count in counts.values())


def _points(reduction: int, facts: TiledContractionFacts) -> int:
    """Returns over how many points a tile is summed, about: those of one group, where they are in groups."""
    return -(-reduction // max(1, facts.sum_groups))


def _loaded(shape: Shape, config: Config, tiles: int) -> float:
    """Returns the seconds that loading the factors takes: from memory once, from the cache for each tile."""
    facts = facts_as(shape.spec.facts, TiledContractionFacts)
    sizes, widths = shape.sizes, {"y": facts.left_bytes, "x": facts.right_bytes}
    # Groups of rows have right factors of their own; those of what is summed over have their own part of both.
    batches = {"y": 1 if facts.sum_groups else sizes.get("z", 1)}
    batches["x"] = batches["y"] * max(1, facts.row_groups)
    once = sum(batches[name] * sizes.get(name, 1) * width for name, width in widths.items())
    strips = tiles * sum(config.block(f"{name.upper()}BLOCK") * width for name, width in widths.items())
    often = strips / max(1, facts.sum_groups)
    return shape.reduction * max(once, often / PRODUCTS.cache_rate) / shape.device.bandwidth


def product_seconds(spec: KernelSpec, device: DeviceFacts) -> float:
    """Returns the seconds that tensor cores take, tile by tile: in the last round some have no tile."""
    shape, sizes = Shape.of(spec, device), spec.hint_sizes()
    config = tiled_contraction_configs(shape)[0]
    blocks = dict(config.blocks)
    tiles = -(-_tiles(shape, config) // device.multiprocessors) * device.multiprocessors
    facts = facts_as(spec.facts, TiledContractionFacts)
    points = tiles * blocks.get("YBLOCK", 1) * blocks.get("XBLOCK", 1) * _points(max(1, sizes["r"]), facts)
    operations = 2.0 * points * facts.product
    if facts.part_products > 1:
        operations *= facts.part_products * facts.factor_bytes / HALF / PART_TILES[0].share
    return operations / (device.multiprocessors * device.tensor_operations)


FORMS = (
    KernelForm(
        name="tiled_contraction",
        facts=TiledContractionFacts,
        configs=tiled_contraction_configs,
        has_loops=True,
        held=accumulated,
        problem=tile_problem,
        seconds=product_seconds,
    ),
)
