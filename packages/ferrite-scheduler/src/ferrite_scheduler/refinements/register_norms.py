"""Register-resident group norm: one kernel, whose programs hold what they have read until the moments are known.

A group norm of channels-last images is three kernels: one reduces the positions (height by width) of each channel in
parts, one combines the parts and the channels of each group and says what every channel is to be multiplied by, and one
reads the images again. As one kernel they read them once: a program holds some positions of a block of channels in
registers, publishes their moments for each group, waits for those of all other positions of its groups, and goes on
with what it holds.

    image of 2 x 3 programs       channels 0..31  32..63  64..95
                  positions 0..63       P0          P1      P2      each publishes mean and squares of its part,
                          64..127       P3          P4      P5      P0 and P3 combine both, and so on

The kernel has the form `forms.RegisterNorm`: images on ``y``, groups and their channels on ``x``, positions on the
reduction axis. Its reduction is over the channels of a group and the positions. See decision 0023.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Computed, Loop, Reduction, bodies_of
from ferrite_ir.language.index import Dim, FloorDiv, Index, Mod
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.ops import RANDOM, REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, postorder, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.fusion.rules import refuse
from ferrite_scheduler.kernels.kernel_names import kernel_name
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.forms import Form, LoopedReduction, PersistentReduction, Pointwise, RegisterNorm
from ferrite_scheduler.model.group_blocks import COLUMNS, slots_of, spans_of
from ferrite_scheduler.model.intermediates import fresh_dim
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Decision, Kernel, Param
from ferrite_scheduler.model.target import Target

from .affine_factors import join_factors

STATE = ("mean", "sum of squared distances", "weight")
"""What a reduction of moments keeps."""
OPAQUE = ("masked", *RANDOM, *REQUIREMENTS)
"""Operations that no register-resident norm has: reads under conditions, random numbers, checks."""

REDUCING = (LoopedReduction, PersistentReduction)
"""Forms of the kernels that reduce."""

Positions: TypeAlias = "dict[Dim, Index]"


class _Apart(Exception):
    """Three kernels that stay three, for a reason.

    Attributes:
        rule: its number in `NORM_RULES`.
        refusal: the reason.
    """

    def __init__(self, rule: str, reason: str, **numbers: int) -> None:
        super().__init__(rule)
        self.rule, self.refusal = rule, refuse(reason, **numbers)


def merge_norms(
    work: Sequence[Work], dependences: Dependences, target: Target, policy: Policy
) -> tuple[list[Work], tuple[Decision, ...]]:
    """Returns the work with the three kernels of each norm made one, where that can be and pays, and what was decided.

    A decision names the moments and the result.
    """
    if not policy.grid_reductions or not policy.register_norms:
        return list(work), ()
    found: list[Work | None] = list(work)
    decisions: list[Decision] = []
    for position, item in enumerate(work):
        norm = _norm_of(position, item, work, dependences)
        if norm is None:
            continue
        names = norm.moments.results[0].name, norm.points.stored[0]
        try:
            merged = _merged(norm, work, dependences, target, policy)
        except _Apart as apart:
            refusal = apart.refusal
            decisions.append(Decision(*names, False, apart.rule, refusal.reason, refusal.numbers))
            continue
        found[norm.positions[0]] = found[norm.positions[1]] = None
        found[norm.positions[2]] = merged
        decisions.append(Decision(*names, True, "", "images are read once"))
    return [item for item in found if item is not None], tuple(decisions)


@dataclass(frozen=True, slots=True)
class _Norm:
    """Three kernels that normalise images, and where they stand in the work.

    Attributes:
        positions: of the three.
        parts: reduces the positions of each channel, in parts.
        groups: combines what groups are made of.
        points: computes a result for each element.
        kept: names of results of ``groups`` that others read, too.
    """

    positions: tuple[int, int, int]
    parts: Kernel
    groups: Kernel
    points: Kernel
    kept: tuple[str, ...]

    @property
    def reduction(self) -> Reduction:
        """Returns what is reduced of each part."""
        (reduction,) = self.parts.body
        assert isinstance(reduction, Reduction)
        return reduction

    @property
    def moments(self) -> Reduction:
        """Returns what combines the parts and channels of a group."""
        return next(definition for definition in self.groups.body if isinstance(definition, Reduction))


def _norm_of(position: int, item: Work, work: Sequence[Work], dependences: Dependences) -> _Norm | None:
    """Returns the three kernels of which this one reduces channels, if they are such."""
    if not isinstance(item, Kernel) or not _is_plain(item, REDUCING):
        return None
    if len(item.body) != 1 or not _reduces_moments(item.body[0]):
        return None
    readers = _readers(item.stored, position, work)
    if len(readers) != 1 or not dependences.kept.isdisjoint(item.stored):
        return None
    second = readers[0]
    groups = work[second]
    if not isinstance(groups, Kernel) or not _is_plain(groups, REDUCING):
        return None
    reductions = [definition for definition in groups.body if isinstance(definition, Reduction)]
    if len(reductions) != 1 or not _combines(reductions[0], item):
        return None
    others = _readers(groups.stored, second, work)
    third = next((p for p in others if _is_reader_of_images(work[p], item)), None)
    if third is None or any(p < third for p in others):
        return None
    points = work[third]
    assert isinstance(points, Kernel)
    later = {name for p in others if p != third for name in _reads(work[p])}
    kept = tuple(name for name in groups.stored if name in later or name in dependences.kept)
    return _Norm((position, second, third), item, groups, points, kept)


def _is_plain(kernel: Kernel, forms: tuple[type[Form], ...]) -> bool:
    """Returns whether a kernel of one of these forms only reads and writes, the same for all sizes."""
    nodes = postorder(body for definition in kernel.body for body in bodies_of(definition))
    is_special = bool(kernel.skip_guard) or any(node.op in OPAQUE for node in nodes)
    accesses = {param.access for param in kernel.params}
    has_loops = all(isinstance(definition, (Reduction, Loop)) for definition in kernel.body)
    is_known = all(is_static(axis.size) for axis in kernel.axes)
    return (
        isinstance(kernel.form, forms) and not is_special and has_loops and is_known and accesses <= {"read", "write"}
    )


def _reduces_moments(definition: Computed) -> bool:
    return isinstance(definition, Reduction) and definition.combine == "welford" and len(definition.bodies) == 1


def _combines(moments: Reduction, parts: Kernel) -> bool:
    """Returns whether a reduction combines what a kernel has of each part, all of which have as many positions."""
    if moments.combine != "welford" or len(moments.bodies) != len(STATE) or parts.reduction is None:
        return False
    mean, squares, weight = moments.bodies
    (reduction,) = parts.body
    names = [result.name for result in reduction.results]
    count = math.prod(int(dim.size) for dim in parts.reduction.dims)
    is_whole = [body.source for body in (mean, squares) if body.op == "load"] == names[:2]
    is_known = weight.op == "const" and weight.value == count
    return is_whole and (is_known or (weight.op == "load" and weight.source == names[2]))


def _reads(item: Work) -> set[str]:
    if isinstance(item, Kernel):
        return {param.name for param in item.params if param.access != "write"}
    return set(item.reads)


def _overwritten(item: Work, dependences: Dependences) -> set[str]:
    """Returns the storages that a kernel or a call writes to, or may: one kernel for three reads later than two did."""
    if isinstance(item, Kernel):
        names = [param.name for param in item.params if param.access != "read"]
    else:
        names = [*item.result_names, *(item.reads if getattr(item.definition, "mutates", True) else ())]
    return {dependences.storage[name] for name in names}


def _readers(names: Sequence[str], position: int, work: Sequence[Work]) -> list[int]:
    """Returns which of the later work reads any of these names."""
    return [p for p in range(position + 1, len(work)) if not _reads(work[p]).isdisjoint(names)]


def _is_reader_of_images(item: Work, parts: Kernel) -> bool:
    """Returns whether a kernel computes results for each element of what ``parts`` reduces."""
    if not isinstance(item, Kernel) or not _is_plain(item, (Pointwise,)):
        return False
    return _points_in(item) == _points_in(parts) and not _reads(item).isdisjoint(_reads(parts))


def _points_in(kernel: Kernel) -> int:
    return math.prod(int(axis.size) for axis in kernel.axes)


def _require_unchanged(norm: _Norm, work: Sequence[Work], dependences: Dependences) -> None:
    """Raises `_Apart` if something between the kernels writes to what they read, which one kernel reads later."""
    first, second, third = norm.positions
    read = {dependences.storage[name] for kernel in (norm.parts, norm.groups) for name in _reads(kernel)}
    between = (work[position] for position in range(first + 1, third) if position != second)
    if any(not read.isdisjoint(_overwritten(other, dependences)) for other in between):
        raise _Apart("N01", "something between them writes to what they read")


def _merged(norm: _Norm, work: Sequence[Work], dependences: Dependences, target: Target, policy: Policy) -> Kernel:
    """Returns one kernel in the place of three.

    Raises:
        _Apart: that cannot be, or would not pay.
    """
    _require_unchanged(norm, work, dependences)
    parts, groups, points, axes = _common_dims(norm)
    reduction, moments = norm.reduction, norm.moments
    images, x, r = axes[:-2], axes[-2], axes[-1]
    grid = (*(dim for axis in images for dim in axis.dims), x.dims[0])
    body = substitute_dims(reduction.bodies[0], parts, {})
    origins = tuple(dict.fromkeys((*reduction.origins, *moments.origins)))
    merged = Reduction(moments.results, "welford", grid, (x.dims[1], *r.dims), (body,), origins)
    order = [dim for axis in axes for dim in axis.dims]
    channels = [_over(d, groups, order) for d in norm.groups.body if isinstance(d, Loop)]
    elements = [_over(d, points, order) for d in norm.points.body if isinstance(d, Loop)]
    elements = _with_joined_factors(elements, r.dims[0], policy)
    definitions: tuple[Computed, ...] = (merged, *channels, *elements)
    homes = {name: _placed(home, groups) for name, home in norm.groups.homes.items()}
    homes |= {name: _placed(home, points) for name, home in norm.points.homes.items()}
    params = _params(norm)
    form = _form_of(merged, axes, params, target, policy)
    stored = (*norm.kept, *norm.points.stored)
    return Kernel(kernel_name(form, definitions), form, axes, definitions, homes, stored, params)


def _params(norm: _Norm) -> tuple[Param, ...]:
    """Returns what one kernel reads and writes in the place of three; results are stored with streaming stores."""
    made = {*norm.parts.stored, *norm.groups.stored}
    params: dict[str, Param] = {}
    for kernel in (norm.parts, norm.groups, norm.points):
        params |= {p.name: p for p in kernel.params if p.access == "read" and p.name not in made | params.keys()}
    params |= {p.name: p for p in norm.groups.params if p.name in norm.kept}
    written = (p for p in norm.points.params if p.access == "write")
    return (*params.values(), *(replace(param, is_streaming=True) for param in written))


def _over(loop: Loop, positions: Positions, order: Sequence[Dim]) -> Loop:
    """Returns a loop over other dims, those that its own are made of, in order."""
    memo: dict[Scalar, Scalar] = {}
    used = {dim for old in loop.dims for dim in positions[old].dims}
    dims = tuple(dim for dim in order if dim in used)
    return replace(loop, dims=dims, bodies=tuple(substitute_dims(body, positions, memo) for body in loop.bodies))


def _with_joined_factors(loops: Sequence[Loop], position: Dim, policy: Policy) -> list[Loop]:
    """Returns loops over elements that multiply and add as little as they can; see `affine_factors`."""
    made = {result.name for loop in loops if position in loop.dims for result in loop.results}

    def is_element(node: Scalar) -> bool:
        return position in node.dims or any(load.source in made for load in node.loads)

    def joined(loop: Loop) -> Loop:
        return replace(loop, bodies=tuple(join_factors(body, is_element, policy) for body in loop.bodies))

    return [joined(loop) if position in loop.dims else loop for loop in loops]


def _placed(home: Sequence[Index], positions: Positions) -> tuple[Index, ...]:
    return tuple(substitute(index, positions) for index in home)


# --- the dims of one kernel for those of three ------------------------------------------------------------------------


def _common_dims(norm: _Norm) -> tuple[Positions, Positions, Positions, tuple[Axis, ...]]:
    """Returns what the dims of the three kernels are over the axes of one, and these.

    Raises:
        _Apart: they do not fit.
    """
    moments = norm.moments
    state = moments.bodies[0]
    home = norm.parts.homes[state.source]
    split = _split((*moments.dims, *moments.reduction_dims), state.indices)
    of_parts = _solved(zip(home, _placed(state.indices, split), strict=True))
    x_axis = norm.parts.axes[-2]
    if of_parts is None or norm.parts.reduction is None or x_axis.name != "x" or not {*x_axis.dims} <= of_parts.keys():
        raise _Apart("N02", "the dims of the parts do not follow from those of the groups")
    grid = [dim for old in moments.dims for dim in _counted(split[old]) or ()]
    reduced = [dim for old in moments.reduction_dims for dim in _counted(split[old]) or ()]
    group, member = (*(_counted(_flat(x_axis.dims, of_parts)) or ()), None, None)[:2]
    if group not in grid or member not in reduced or len(_flat(x_axis.dims, of_parts).terms) != 2:
        raise _Apart("N02", "no axis of the kernel that reduces positions counts over groups and their channels alone")
    parts_dims = [dim for dim in reduced if dim is not member]
    images = [dim for dim in grid if dim is not group]
    own = norm.parts.reduction.dims
    position = Dim("r0", math.prod(int(dim.size) for dim in (*parts_dims, *own)))
    x0, x1 = Dim("x0", group.size), Dim("x1", member.size)
    positions = _cut(position.index, (*parts_dims, *own))
    new: Positions = {dim: Dim(f"y{number}", dim.size).index for number, dim in enumerate(images)}
    new |= {group: x0.index, member: x1.index} | {dim: positions[dim] for dim in parts_dims}
    groups = {dim: substitute(index, new) for dim, index in split.items()}
    parts = {dim: substitute(index, new) for dim, index in of_parts.items()} | {dim: positions[dim] for dim in own}
    if not {dim for axis in norm.parts.axes for dim in axis.dims if dim.size != 1} <= parts.keys():
        raise _Apart("N02", "the dims of the parts do not follow from those of the groups")
    points = _dims_of_points(norm, groups, parts, position)
    counted = math.prod(int(dim.size) for dim in (*images, group, member, position))
    if points is None or counted != _points_in(norm.parts):
        raise _Apart("N03", "the result reads other elements than the moments do, or moments of another group")
    axes = [Axis("y", tuple(Dim(f"y{n}", dim.size) for n, dim in enumerate(images)))] if images else []
    return parts, groups, points, (*axes, Axis("x", (x0, x1)), Axis("r", (position,)))


def _dims_of_points(norm: _Norm, groups: Positions, parts: Positions, position: Dim) -> Positions | None:
    """Returns what the dims of the last kernel are, by where it reads the images.

    None if it reads results of the others elsewhere than these have them: a program has what its own elements need.
    """
    loads = {load for definition in norm.points.body for body in bodies_of(definition) for load in body.loads}
    reduced = {substitute_dims(load, parts, {}) for load in norm.reduction.bodies[0].loads}
    images = [load for load in reduced if any(position in index.dims for index in load.indices)]
    if len(images) != 1:
        return None
    again = [load for load in loads if load.source == images[0].source]
    found = None if len(again) != 1 else _solved(zip(again[0].indices, images[0].indices, strict=True))
    dims = {dim for axis in norm.points.axes for dim in axis.dims if dim.size != 1}
    if found is None or found.keys() != dims:
        return None
    found |= {dim: ix.constant(0) for axis in norm.points.axes for dim in axis.dims if dim.size == 1}
    homes = norm.groups.homes
    read = [load for load in loads if load.source in norm.groups.stored]
    fits = all(_placed(load.indices, found) == _placed(homes[load.source], groups) for load in read)
    return found if fits and _placed(again[0].indices, found) == images[0].indices else None


def _split(dims: Sequence[Dim], indices: Sequence[Index]) -> Positions:
    """Returns dims over dims of which indices take no quotients and remainders."""
    positions: Positions = {dim: dim.index for dim in dims}
    taken = list(dims)
    while True:
        atoms = (atom for index in _placed(indices, positions) for atom, _ in index.terms)
        divided = next((found for atom in atoms if (found := _divided(atom)) is not None), None)
        if divided is None or int(divided[0].size) % divided[1]:
            return positions
        dim, divisor = divided
        outer = fresh_dim("s", int(dim.size) // divisor, taken)
        inner = fresh_dim("s", divisor, (*taken, outer))
        taken += [outer, inner]
        change = {dim: outer.index * divisor + inner.index}
        positions = {old: substitute(index, change) for old, index in positions.items()}


def _counted(index: Index) -> list[Dim] | None:
    """Returns the dims of an index that counts over them, the outermost first; None for another index."""
    terms = sorted(index.terms, key=lambda term: -int(term[1]))
    dims = [atom for atom, _ in terms if isinstance(atom, Dim)]
    steps = [math.prod(int(dim.size) for dim in dims[number + 1 :]) for number in range(len(dims))]
    return dims if index.const == 0 and [step for _, step in terms] == steps else None


def _solved(pairs: Iterable[tuple[Index, Index]]) -> Positions | None:
    """Returns what dims are, if indices of them are those beside them; None where that does not say it.

    Of an index that neither counts over dims nor is a quotient or a remainder of one nothing is understood.
    """
    found: Positions = {}
    quotients: dict[tuple[Dim, int], Index] = {}
    remainders: dict[tuple[Dim, int], Index] = {}
    for index, wanted in pairs:
        dims = _counted(index)
        if dims is not None:
            found |= _cut(wanted, dims)
            continue
        atom = index.terms[0][0] if len(index.terms) == 1 and index.terms[0][1] == 1 and index.const == 0 else None
        divided = _divided(atom)
        if divided is None:
            return None
        (quotients if isinstance(atom, FloorDiv) else remainders)[divided] = wanted
    if quotients.keys() != remainders.keys():
        return None
    whole = {divided: quotient * divided[1] + remainders[divided] for divided, quotient in quotients.items()}
    return found | {dim: index for (dim, _), index in whole.items()}


def _divided(atom: object) -> tuple[Dim, int] | None:
    """Returns the dim that a quotient or a remainder is of, and the divisor."""
    if not isinstance(atom, (FloorDiv, Mod)) or not is_static(atom.divisor) or len(atom.numerator.terms) != 1:
        return None
    (dim, step), rest = atom.numerator.terms[0], atom.numerator.const
    return (dim, int(atom.divisor)) if isinstance(dim, Dim) and step == 1 and rest == 0 else None


def _flat(dims: Sequence[Dim], positions: Mapping[Dim, Index]) -> Index:
    """Returns the position along an axis of these dims."""
    flat = ix.constant(0)
    for dim in dims:
        flat = flat * int(dim.size) + positions[dim]
    return flat


def _cut(position: Index, dims: Sequence[Dim]) -> Positions:
    """Returns dims, outermost first, as what they are of a position that counts over all of them."""
    found: Positions = {}
    inner = 1
    for number, dim in reversed(list(enumerate(dims))):
        outer = ix.floordiv(position, inner)
        found[dim] = ix.mod(outer, int(dim.size)) if number else outer
        inner *= int(dim.size)
    return found


# --- parts ------------------------------------------------------------------------------------------------------------


def _form_of(
    moments: Reduction, axes: tuple[Axis, ...], params: tuple[Param, ...], target: Target, policy: Policy
) -> RegisterNorm:
    """Returns how many positions (a power of two) of how many channels a program holds.

    Raises:
        _Apart: there is no kernel for that, or it would not pay.
    """
    x, reduction = axes[-2], axes[-1]
    position = reduction.dims[0]
    (body,) = bodies_of(moments)
    (images,) = {load for load in body.loads if any(position in index.dims for index in load.indices)}
    strides = next(param.type.strides for param in params if param.name == images.source)
    offset = ix.linearize(images.indices, strides)
    channel = substitute(offset, {position: ix.constant(0)})
    lies_beside = [atom for atom, step in channel.terms if step == 1] == [x.dims[1]]
    element = images.dtype.bytes
    if not lies_beside or element not in (2, 4) or body.dtype.compute is not F32:
        raise _Apart("N04", "the channels of an element do not lie side by side, or are of another type")
    members, channels = int(x.dims[1].size), int(x.size)
    if members < policy.norm_members or channels < COLUMNS:
        raise _Apart(
            "N05", "too few channels", group=members, needed=policy.norm_members, image=channels, block=COLUMNS
        )
    count = min(int(reduction.size) & -int(reduction.size), policy.norm_points)
    rows = math.prod(int(axis.size) for axis in axes[:-2]) * int(reduction.size)
    blocks = -(-int(x.size) // COLUMNS)
    while count > policy.norm_least_points and rows // count * blocks < policy.norm_programs * target.processors:
        count //= 2
    if count < policy.norm_least_points:
        raise _Apart("N06", "parts of whole images are too short", positions=count, needed=policy.norm_least_points)
    parts = int(reduction.size) // count * spans_of(members, channels)
    words = parts * slots_of(members, channels)
    if parts > target.processors:
        raise _Apart("N07", "more programs than multiprocessors", programs=parts, multiprocessors=target.processors)
    if words > policy.norm_words:
        raise _Apart("N07", "a program would wait for too many words", words=words, limit=policy.norm_words)
    return RegisterNorm(count, COLUMNS)


def words_of_images(kernel: Kernel) -> int:
    """Returns the words of such a kernel's workspace: a counter, then one for each image, group, block and part."""
    x = kernel.axes[-2]
    images = math.prod(int(axis.size) for axis in kernel.axes[:-2])
    groups, members = (int(dim.size) for dim in x.dims)
    return 1 + images * groups * spans_of(members, int(x.size)) * kernel.splits
