"""What a config would ask of a device, before it is compiled, and what its binary asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.errors import OutOfResources
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ContractionFacts
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import block_limit, parts_of, scratch_programs, scratch_used
from ferrite_runtime.policies.kernel_form import kernel_form
from ferrite_runtime.policies.shape import MAX_TILE, param_bytes
from ferrite_runtime.policies.thresholds import REGISTERS

MAX_THREADS = 1024
REGISTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Usage:
    """What a compiled config uses: registers and stack bytes per thread (None where unknown), shared memory bytes."""

    registers: int | None = None
    local_bytes: int | None = None
    shared: int = 0


def foresee_problem(spec: KernelSpec, config: Config, device: DeviceFacts, sizes: Mapping[str, int]) -> str | None:
    """Returns why a config is not worth compiling for a device, None if it may be."""
    threads = config.num_warps * device.target.warp_size
    if threads > MAX_THREADS:
        return f"{threads} threads per program, {MAX_THREADS} are possible"
    own_rule = kernel_form(spec).problem
    if own_rule is not None:
        return own_rule(spec, config, device)
    if spec.parts:
        own = [
            foresee_problem(part, alone, device, spec.of_part(sizes, number))
            for number, (part, alone) in enumerate(parts_of(spec, config))
        ]
        return next(filter(None, own), None)
    tile, blocks = 1, {}
    for axis in spec.axes:
        block = spec.blocks.get(axis.block) or config.block(axis.block)
        if axis.block not in spec.blocks and block > block_limit(axis, sizes[axis.name]):
            return f"{axis.block} {block} is more than axis {axis.name} has or allows"
        tile *= block
        blocks[axis.name] = block
    if isinstance(spec.facts, ContractionFacts) and spec.facts.product:
        # No tile has all three axes: two are multiplied, and one is what they come to.
        tile = sum(tile // block for block in blocks.values())
    if tile > MAX_TILE:
        return f"a tile of {tile} elements, {MAX_TILE} are possible"
    width = max(4, spec.facts.element_bytes or 4)
    if tile * width > 4 * REGISTERS.elements_per_thread * threads:
        return f"{tile // threads} elements of {width} bytes per thread do not fit in its registers"
    return None


def check_usage(name: str, binary: Binary, device: DeviceFacts) -> None:
    """Checks what a binary asks of a device.

    Raises:
        OutOfResources: if a program of it needs more threads, registers or shared memory than the device has.
    """
    limits = (
        ("threads per program", binary.threads, MAX_THREADS),
        ("shared memory bytes", binary.shared, device.shared_per_program),
        ("registers per program", (binary.registers or 0) * binary.threads, device.registers_per_multiprocessor),
    )
    for kind, need, have in limits:
        if need > have:
            raise OutOfResources(name, kind, need, have)


def scratch_problem(spec: KernelSpec, binary: Binary, blocks: Mapping[str, int], *, aligned: bool = True) -> str | None:
    """Returns why launches with these block constants do not give a binary the scratch memory that it asks for.

    None if they do, or if it asks for none. Descriptors are made there, of addresses that are ``aligned``.
    """
    if not binary.scratch:
        return None
    if not aligned:
        return "an address that it is given is no multiple of 16 bytes, and it makes tensor descriptors"
    param = spec.scratch
    given = 0 if param is None else (param.each or 0) * param_bytes(param.dtype)
    if binary.scratch > given:
        return f"a program needs {binary.scratch} bytes of scratch memory, and has {given}"
    programs, most = scratch_used(spec, blocks), scratch_programs(spec)
    return f"there is scratch memory for {most} programs, not for {programs}" if programs > most else None


def registers_of(config: Config, device: DeviceFacts) -> int:
    """Returns the registers that a thread of a config may have, whose program has a multiprocessor for itself."""
    return min(REGISTERS.most, device.registers_per_multiprocessor // (config.num_warps * device.target.warp_size))


def usage_of(binary: Binary) -> Usage:
    """Returns what a binary uses, as far as it says."""
    return Usage(binary.registers, binary.local_bytes, binary.shared)


def without_spills(usages: Mapping[Config, Usage], keep: Sequence[Config] = ()) -> list[Config]:
    """Returns the configs that do not spill; those that spill least, if every one does; and those to ``keep``."""
    spilled = {config: usage.local_bytes or 0 for config, usage in usages.items()}
    least = min(spilled.values(), default=0)
    return [config for config, size in spilled.items() if size <= max(REGISTERS.spilled_bytes, least) or config in keep]
