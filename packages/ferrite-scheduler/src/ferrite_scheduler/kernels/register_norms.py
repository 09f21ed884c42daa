"""Register-resident group norm: one kernel, whose programs hold what they have read until the moments are known.

A group norm of channels-last images reduces the positions (height by width) of each channel in parts, combines the
parts and the channels of each group and says what every channel is to be multiplied by, and reads the images again. As
three kernels it would read them twice. As one it reads them once: a program holds some positions of a block of channels
in registers, publishes their moments for each group, waits for those of all other positions of its groups, and goes on
with what it holds.

    image of 2 x 3 programs       channels 0..31  32..63  64..95
                  positions 0..63       P0          P1      P2      each publishes mean and squares of its part,
                          64..127       P3          P4      P5      P0 and P3 combine both, and so on

The kernel has the form `forms.RegisterNorm`: images on ``y``, groups and their channels on ``x``, positions on the
reduction axis. Its reduction is over the channels of a group and the positions. Fusion proposes it
(`fusion.norm_fusion`); see decisions 0023 and 0072.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Computed, Graph, Loop, Reduction, loads_of
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, substitute_dims
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.model.forms import Form
from ferrite_scheduler.model.norm_spaces import NormSpace, Positions
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel

from .affine_factors import join_factors
from .kernel_names import kernel_name
from .kernel_params import params_of
from .norm_dims import homes_of, loop_at, reduction_at


def build_register_norm(
    space: NormSpace, dependences: Dependences, graph: Graph, stored: Collection[str], form: Form, policy: Policy
) -> Kernel:
    """Returns the kernel of a norm; ``stored`` names the values made in it that something outside reads.

    Results are stored with streaming stores.
    """
    moments = _moments(space, dependences)
    numbers = (*space.channels, *space.elements)
    loops = [_over(loop_at(number, dependences), space, space.positions[number]) for number in numbers]
    homes = homes_of(space, dependences)
    definitions: tuple[Reduction | Loop, ...] = (moments, *loops)
    reads = dict.fromkeys(load.source for d in definitions for load in loads_of(d) if load.source not in homes)
    kept = tuple(name for name in homes if name in stored)
    of_elements = {name for number in space.elements for name in dependences.nodes[number].result_names}
    params = tuple(
        replace(param, is_streaming=True) if param.name in of_elements else param
        for param in params_of((), tuple(reads), kept, graph, dependences)
    )
    body: tuple[Computed, ...] = (moments, *_with_joined_factors(loops, space.position, policy))
    return Kernel(kernel_name(form, body), form, space.axes, body, homes, kept, params)


def _moments(space: NormSpace, dependences: Dependences) -> Reduction:
    """Returns the reduction of all positions and channels of each group."""
    part, whole = (reduction_at(number, dependences) for number in (space.parts, space.moments))
    body = substitute_dims(part.bodies[0], space.positions[space.parts], {})
    x, r = space.axes[-2:]
    grid = (*(dim for axis in space.axes[:-2] for dim in axis.dims), x.dims[0])
    origins = tuple(dict.fromkeys((*part.origins, *whole.origins)))
    return Reduction(whole.results, "welford", grid, (x.dims[1], *r.dims), (body,), origins)


def _over(loop: Loop, space: NormSpace, positions: Positions) -> Loop:
    """Returns a loop over those dims of the kernel that its own are made of, in order."""
    memo: dict[Scalar, Scalar] = {}
    used = {dim for old in loop.dims for dim in positions[old].dims}
    dims = tuple(dim for axis in space.axes for dim in axis.dims if dim in used)
    return replace(loop, dims=dims, bodies=tuple(substitute_dims(body, positions, memo) for body in loop.bodies))


def _with_joined_factors(loops: Sequence[Loop], position: Dim, policy: Policy) -> list[Loop]:
    """Returns loops over elements that multiply and add as little as they can; see `affine_factors`."""
    made = {result.name for loop in loops if position in loop.dims for result in loop.results}

    def is_element(node: Scalar) -> bool:
        return position in node.dims or any(load.source in made for load in node.loads)

    def joined(loop: Loop) -> Loop:
        return replace(loop, bodies=tuple(join_factors(body, is_element, policy) for body in loop.bodies))

    return [joined(loop) if position in loop.dims else loop for loop in loops]
