"""Configs of mixed combos: each part has the blocks that it would have alone, all have one number of warps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import Facts
from ferrite_runtime.formats.kernel_spec import MIXED_COMBO, name_in_whole
from ferrite_runtime.policies.blocks import tile_elements
from ferrite_runtime.policies.kernel_form import KernelForm, kernel_form
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import MIXED_COMBOS, REGISTERS


@dataclass(frozen=True, slots=True)
class _Part:
    """A part as its policy sees it, and the first config that it would have alone."""

    shape: Shape
    first: Config
    copies: int

    @property
    def bytes(self) -> int:
        """Returns the bytes that it moves, by its facts."""
        return (self.shape.spec.facts.bytes or 1) * self.copies

    def tile(self, config: Config) -> int:
        """Returns the points that a program takes at once."""
        spec = self.shape.spec
        return tile_elements(spec, dict(config.blocks))

    def least_warps(self, config: Config) -> int:
        """Returns the warps that its tile needs, so that the values alive at once fit in registers."""
        threads, warps = self.shape.device.target.warp_size, 1
        while self.tile(config) * self.shape.live > REGISTERS.live_per_thread * warps * threads:
            warps *= 2
        return min(warps, self.shape.device.max_warps)

    def widened(self, warps: int) -> Config:
        """Returns its config for so many warps: more rows, or points, to a program while there are programs enough."""
        spec, blocks = self.shape.spec, dict(self.first.blocks)
        enough = MIXED_COMBOS.programs * self.shape.device.multiprocessors
        for axis in self.shape.axes("grid"):
            if axis.block not in blocks:
                continue
            for _ in range(max(0, (warps // self.first.num_warps).bit_length() - 1)):
                wider = blocks | {axis.block: blocks[axis.block] * 2}
                if wider[axis.block] > self.shape.limit(axis) or spec.expected_programs(wider) * self.copies < enough:
                    break
                blocks = wider
            break
        return Config.of(blocks, warps, self.first.num_stages)


def mixed_combo_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the configs of a mixed combo, best guess first."""
    copies = [part.copies for part in shape.spec.parts]
    sized = [
        Shape.of(alone, shape.device, shape.spec.of_part(shape.sizes, number))
        for number, alone in enumerate(shape.spec.alone)
    ]
    # A part need not fill the device: the others do that with it.
    everything = sum(own.points * own.reduction * own.parts * n for own, n in zip(sized, copies, strict=True))
    shares = (max(1, everything // max(1, own.points * own.reduction)) for own in sized)
    sized = [replace(own, parts=share, shares_launch=True) for own, share in zip(sized, shares, strict=True)]
    parts = [_Part(own, kernel_form(own.spec).configs(own)[0], n) for own, n in zip(sized, copies, strict=True)]
    total = sum(part.bytes for part in parts)
    counting = [part.first.num_warps for part in parts if part.bytes * MIXED_COMBOS.counting_share >= total]
    warps = max(*counting, *(part.least_warps(part.first) for part in parts), 1)
    return tuple(_candidates(parts, warps, shape.device.max_warps))


def _candidates(parts: Sequence[_Part], warps: int, most: int) -> Iterator[Config]:
    yield _joined([part.widened(warps) for part in parts], warps)
    yield _joined([part.first for part in parts], warps)
    least = max(part.least_warps(part.first) for part in parts)
    for other in (warps // 2, warps * 2):
        if least <= other <= most:
            yield _joined([part.widened(other) for part in parts], other)


def _joined(configs: Sequence[Config], warps: int) -> Config:
    blocks = {name_in_whole(k, number): v for number, config in enumerate(configs) for k, v in config.blocks}
    return Config.of(blocks, warps, max(config.num_stages for config in configs))


FORMS = (
    # The parts have too many blocks to walk among.
    KernelForm(name=MIXED_COMBO, facts=Facts, configs=mixed_combo_configs, is_settled=True),
)
