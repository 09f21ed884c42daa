"""Coordinate descent: from a config to better ones beside it, a block or the number of warps at a time.

PyTorch's compiler tunes its kernels so, too (``coordinate_descent_tuning``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.kernel_form import kernel_form
from ferrite_runtime.policies.resources import foresee_problem
from ferrite_runtime.policies.thresholds import SEARCH


def neighbours(spec: KernelSpec, device: DeviceFacts, config: Config, sizes: Mapping[str, int]) -> tuple[Config, ...]:
    """Returns the configs beside one, in a fixed order.

    A step doubles or halves a block or the warps, both at once (a thread then has as much to do as before), or trades
    one block for another. No step touches a constant that the source fixes, or the block of a tile that holds a whole
    reduction axis; none leaves what the axes and the device allow. Programs that wait for each other wait for nothing
    in a launch that comes after another one with the same workspace, so that measuring them says nothing.
    """
    form = kernel_form(spec)
    if form.is_settled or form.waits:
        return ()
    found = [
        step
        for step in _steps(spec, config)
        if step != config and foresee_problem(spec, step, device, sizes) is None and step.num_warps <= device.max_warps
    ]
    return tuple(dict.fromkeys(found))


def _steps(spec: KernelSpec, config: Config) -> Iterator[Config]:
    blocks = dict(config.blocks)
    reductions = {axis.block for axis in spec.axes if axis.kind == "reduction"}
    free = [name for name in blocks if not (spec.known_form.holds_rows and name in reductions)]
    for warps in (config.num_warps * 2, config.num_warps // 2):
        if warps:
            yield Config.of(blocks, warps, config.num_stages)
    for name in free:
        yield Config.of(blocks | {name: blocks[name] * 2}, config.num_warps, config.num_stages)
        yield Config.of(blocks | {name: blocks[name] * 2}, config.num_warps * 2, config.num_stages)
        if blocks[name] > 1:
            yield Config.of(blocks | {name: blocks[name] // 2}, config.num_warps, config.num_stages)
            if config.num_warps > 1:
                yield Config.of(blocks | {name: blocks[name] // 2}, config.num_warps // 2, config.num_stages)
    for more in free:
        for less in free:
            if more != less and blocks[less] > 1:
                yield Config.of(
                    blocks | {more: blocks[more] * 2, less: blocks[less] // 2}, config.num_warps, config.num_stages
                )


def descend(
    start: Config,
    beside: Callable[[Config], tuple[Config, ...]],
    better: Callable[[Config, tuple[Config, ...]], Config],
) -> Config:
    """Returns the config where no step leads to a better one.

    Args:
        start: where to begin.
        beside: the configs one step from a config.
        better: given a config and some that were not tried before, the best of them all, measured; the config itself
            where none is better by more than noise, or the time is up.
    """
    tried, current = {start}, start
    for _ in range(SEARCH.moves):
        near = tuple(config for config in beside(current) if config not in tried)
        if not near:
            break
        tried.update(near)
        best = better(current, near)
        if best == current or best not in near:
            break
        current = best
    return current
