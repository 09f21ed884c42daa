"""What config policies look at: a kernel's axes with their sizes, and the facts that decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ComboFacts, ReductionFacts, facts_as
from ferrite_runtime.formats.kernel_spec import Axis, KernelSpec
from ferrite_runtime.policies.blocks import block_limit, expected_points, next_power_of_two, previous_power_of_two
from ferrite_runtime.policies.thresholds import REGISTERS

VECTOR_BYTES = 16
"""The widest access of a thread."""

# Triton refuses tiles of more elements.
MAX_TILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A kernel as its policy sees it: ``sizes`` by axis name; element width in bytes.

    Programs of a combo kernel, of several ``parts``, touch their share of its buffers. A part of a mixed combo has as
    many as there would be if the whole kernel were like it, and ``shares_launch`` with the others.
    """

    spec: KernelSpec
    device: DeviceFacts
    sizes: Mapping[str, int]
    element_bytes: int
    contiguous: str | None
    buffers: int
    live: int
    parts: int = 1
    shares_launch: bool = False

    @classmethod
    def of(cls, spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None) -> Shape:
        """Returns the shape of a kernel with axes of ``sizes``, or of the expected sizes."""
        facts = spec.facts
        widths = [param_bytes(param.dtype) for param in spec.params if param.role == "tensor"]
        parts = facts.parts if isinstance(facts, ComboFacts) else 1
        return cls(
            spec,
            device,
            dict(spec.hint_sizes() if sizes is None else sizes),
            facts.element_bytes or max(widths, default=4),
            facts.contiguous_axis,
            (facts.loads + facts.stores) // parts,
            facts.live_values if isinstance(facts, ReductionFacts) else 1,
            parts,
        )

    @property
    def reduction_facts(self) -> ReductionFacts:
        """Facts of a kernel that has a reduction axis."""
        return facts_as(self.spec.facts, ReductionFacts)

    def axes(self, kind: str) -> tuple[Axis, ...]:
        """Returns the axes of a kind, x first."""
        return tuple(axis for axis in self.spec.axes if axis.kind == kind)

    @property
    def points(self) -> int:
        """Number of points of the grid axes."""
        product = 1
        for axis in self.axes("grid"):
            product *= max(1, self.sizes[axis.name])
        return product

    @property
    def reduction(self) -> int:
        """Number of points of the reduction axes."""
        product = 1
        for axis in self.axes("reduction"):
            product *= max(1, self.sizes[axis.name])
        return product

    @property
    def reduction_is_known(self) -> bool:
        """Whether the extents of the reduction axes are known while compiling."""
        return all(isinstance(axis.size, int) for axis in self.axes("reduction"))

    @property
    def reads_narrow(self) -> bool:
        """Whether a kernel reads nothing as wide as what it writes: sums of half types, say, in single precision."""
        widths = {
            access: [param_bytes(p.dtype) for p in self.spec.params if p.role == "tensor" and p.access == access]
            for access in ("read", "write")
        }
        return max(widths["read"], default=0) < max(widths["write"], default=0)

    @property
    def narrowest_read(self) -> int:
        """Bytes of an element of the narrowest tensor that is read; of the widest of all where nothing is.

        Truth values count where nothing else is read: what they say is said of elements beside them.
        """
        read = [p.dtype for p in self.spec.params if p.role == "tensor" and p.access == "read"]
        counted = [dtype for dtype in read if dtype != "bool"] or read
        return min(map(param_bytes, counted), default=self.element_bytes)

    @property
    def reads_16_bit(self) -> bool:
        """Whether a kernel reads elements of 16 bits or fewer: a thread has twice as many of them in as many bytes."""
        return self.narrowest_read <= 2

    @property
    def only_reduces(self) -> bool:
        """Whether a kernel reads one tensor with a reduction axis, and stores less than half as many bytes."""
        read = self.expected_points * self.narrowest_read
        return self.spec.facts.bytes is not None and self.spec.facts.bytes * 2 < read * 3

    @property
    def has_odd_rows(self) -> bool:
        """Whether rows begin at odd places, so that a thread reads an element at a time."""
        return self.reduction_is_known and self.reduction % 2 == 1

    @property
    def is_ragged(self) -> bool:
        """Whether lines that lie one behind the other begin between vectors of 16 bytes, which a thread reads at once.

        Of reductions whose extent only a call knows it is assumed that they do not.
        """
        if self.contiguous is None or not self.reduction_is_known:
            return False
        length = self.reduction if self.contiguous == "r" else self.sizes.get(self.contiguous, 0)
        return length * self.narrowest_read % VECTOR_BYTES > 0

    @property
    def expected_points(self) -> int:
        """Number of points of all axes at the expected sizes, which are those that the kernel's facts are of."""
        return expected_points(self.spec)

    @property
    def vector(self) -> int:
        """Elements in the widest access of a thread."""
        return max(1, VECTOR_BYTES // max(1, self.element_bytes))

    def limit(self, axis: Axis) -> int:
        """Returns the largest sensible block of an axis."""
        return block_limit(axis, self.sizes[axis.name])

    def fit(self, blocks: Mapping[str, int], num_warps: int, num_stages: int = 1) -> Config:
        """Returns the config with blocks cut to what the axes allow, and warps to what the tile can use.

        Args:
            blocks: a block for each axis, by axis name; 1 for those that are missing.
            num_warps: warps for a tile of these blocks; cut when the tile is.
            num_stages: pipeline stages.
        """
        chosen, tile, wanted = {}, 1, 1
        for axis in self.spec.axes:
            ask = previous_power_of_two(blocks.get(axis.name, 1))
            if axis.block in self.spec.blocks:
                tile *= self.spec.blocks[axis.block]
                wanted *= self.spec.blocks[axis.block]
                continue
            chosen[axis.block] = min(ask, self.limit(axis))
            tile, wanted = tile * chosen[axis.block], wanted * ask
        while tile > MAX_TILE and any(block > 1 for block in chosen.values()):
            widest = max(chosen, key=lambda name: chosen[name])
            chosen[widest] //= 2
            tile //= 2
        return Config.of(chosen, self._fit_warps(num_warps, tile, wanted), num_stages)

    def _fit_warps(self, num_warps: int, tile: int, wanted: int) -> int:
        threads = self.device.target.warp_size
        warps = previous_power_of_two(max(1, num_warps * tile // max(1, wanted)))
        # Neither threads without an element, nor more elements per thread than there are registers for.
        warps = min(warps, next_power_of_two(max(1, tile // threads)))
        while warps < self.device.max_warps and tile * self.live > REGISTERS.live_per_thread * warps * threads:
            warps *= 2
        return min(warps, self.device.max_warps)


def param_bytes(dtype: str) -> int:
    """Returns the size of an element type in bytes."""
    from ferrite_runtime.formats.dtypes import DTYPES

    return DTYPES[dtype].itemsize
