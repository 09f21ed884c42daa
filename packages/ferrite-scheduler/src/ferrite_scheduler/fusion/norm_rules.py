"""Why three clusters may not, or should not, be one register-resident norm: rules as those for pairs (`rules`).

`NORM_LEGALITY` is correctness, `NORM_PROFITABILITY` asks the policy whether rows fit in registers, and whether programs
that hold them would wait for few enough others.
"""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import F32
from ferrite_scheduler.kernels.norm_dims import reduction_at
from ferrite_scheduler.model.group_blocks import COLUMNS, slots_of, spans_of
from ferrite_scheduler.model.norm_spaces import NormSpace

from .norm_proposal import NormProposal
from .rules import Refusal, Rule, first_refusal, refuse


def _between(norm: NormProposal) -> Refusal | None:
    if norm.between is None:
        return refuse("they are too far apart to see whether something must run between them")
    return refuse(f"{norm.between} must run between them") if norm.between else None


def _groups(norm: NormProposal) -> Refusal | None:
    if norm.levels is not None:
        return None
    return refuse("moments are not those of groups of channels that lie side by side")


def _homes(norm: NormProposal) -> Refusal | None:
    if norm.space is not None:
        return None
    return refuse("the result reads other elements than the moments do, or moments of another group")


def _elements(norm: NormProposal) -> Refusal | None:
    space = space_of(norm)
    part = reduction_at(space.parts, norm.setting.dependences)
    if space.images.dtype.bytes in (2, 4) and part.bodies[0].dtype.compute is F32:
        return None
    return refuse("elements are of another type", bytes=space.images.dtype.bytes)


def _channels(norm: NormProposal) -> Refusal | None:
    least, (members, channels) = norm.setting.policy.norm_members, _sizes(norm)
    if members >= least and channels >= COLUMNS:
        return None
    return refuse("too few channels", group=members, needed=least, image=channels, block=COLUMNS)


def _positions(norm: NormProposal) -> Refusal | None:
    count, least = _block_of(norm), norm.setting.policy.norm_least_points
    return refuse("parts of whole images are too short", positions=count, needed=least) if count < least else None


def _waits(norm: NormProposal) -> Refusal | None:
    members, channels = _sizes(norm)
    parts = int(space_of(norm).position.size) // _block_of(norm) * spans_of(members, channels)
    words = parts * slots_of(members, channels)
    most, limit = norm.setting.target.processors, norm.setting.policy.norm_words
    if parts > most:
        return refuse("more programs than multiprocessors", programs=parts, multiprocessors=most)
    return refuse("a program would wait for too many words", words=words, limit=limit) if words > limit else None


NORM_LEGALITY: tuple[Rule[NormProposal], ...] = (
    Rule("N01", "no path through another kernel", _between),
    Rule("N02", "moments of groups of neighbouring channels", _groups),
    Rule("N03", "values are read where they are computed", _homes),
    Rule("N04", "elements of two or four bytes", _elements),
)
NORM_PROFITABILITY: tuple[Rule[NormProposal], ...] = (
    Rule("N05", "groups and blocks have enough channels", _channels),
    Rule("N06", "parts have enough positions", _positions),
    Rule("N07", "programs that wait for each other run at once", _waits),
)
NORM_RULES: dict[str, str] = {rule.number: rule.title for rule in (*NORM_LEGALITY, *NORM_PROFITABILITY)}
"""The titles of the rules, by number."""


def judge_norm(norm: NormProposal) -> tuple[str, Refusal] | int:
    """Returns the number and refusal of the first rule that refuses, or how many positions a program holds."""
    return first_refusal((*NORM_LEGALITY, *NORM_PROFITABILITY), norm) or _block_of(norm)


def space_of(norm: NormProposal) -> NormSpace:
    """Returns the space of a norm that rules of values have let pass."""
    assert norm.space is not None, "rules are asked in order"
    return norm.space


def _sizes(norm: NormProposal) -> tuple[int, int]:
    """Returns how many channels a group has, and an image."""
    x = space_of(norm).axes[-2]
    return int(x.dims[1].size), int(x.size)


def _block_of(norm: NormProposal) -> int:
    """Returns how many positions a program holds, a power of two: fewer where that leaves multiprocessors idle."""
    space, policy, target = space_of(norm), norm.setting.policy, norm.setting.target
    size = int(space.position.size)
    count = min(size & -size, policy.norm_points)
    rows = math.prod(int(axis.size) for axis in space.axes[:-2]) * size
    blocks = -(-int(space.axes[-2].size) // COLUMNS)
    while count > policy.norm_least_points and rows // count * blocks < policy.norm_programs * target.processors:
        count //= 2
    return count
