"""Accesses to memory: what a kernel reads and writes, along which axes, and how many bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from ferrite_ir.language.graph import Update, bodies_of
from ferrite_ir.language.index import Dim, FloorDiv, Index, Mod
from ferrite_ir.language.scalar import Scalar, indirects_of, postorder
from ferrite_ir.language.sizes import Size, hint, is_provably_at_most, is_static
from ferrite_scheduler.model.forms import PersistentReduction
from ferrite_triton.analysis.flat import FlatKernel, KernelParam
from ferrite_triton.analysis.index_reach import INDEX_LIMIT, reaches_of
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import REDUCTION_AXES, Axes

INDEX_BITS = 31

Condition: TypeAlias = "tuple[Size, int]"
"""A size and what it may be at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """One distinct position in the body that reads or writes a parameter at ``offset`` elements from its first one."""

    param: KernelParam
    offset: Index
    writes: bool

    @property
    def axes(self) -> Axes:
        """Returns the axes that the position depends on."""
        return frozenset(dim.name for dim in self.offset.dims)


def find_accesses(flat: FlatKernel) -> tuple[Access, ...]:
    """Returns every distinct access of the kernel, loads first, in order."""
    found: dict[Access, None] = {}
    for node in postorder(_scalar_roots(flat)):
        if node.op == "load" and node.source not in flat.producers:
            found[Access(flat.param_of(node.source), flat.offset(node.source, node.indices), False)] = None
    for definition in flat.definitions:
        if isinstance(definition, Update):
            name = definition.result.name
            found[Access(flat.param_of(name), flat.offset(name, definition.indices), True)] = None
    for name in stored_values(flat):
        found[Access(flat.param_of(name), flat.offset(name, flat.homes[name]), True)] = None
    return tuple(found)


def stored_values(flat: FlatKernel) -> tuple[str, ...]:
    """Returns the values that a plain store writes: all that are stored, except the results of updates."""
    return tuple(name for name in flat.kernel.stored if not isinstance(flat.producers[name][0], Update))


def _scalar_roots(flat: FlatKernel) -> list[Scalar]:
    roots = [body for definition in flat.definitions for body in bodies_of(definition)]
    for definition in flat.definitions:
        if isinstance(definition, Update):
            roots.extend((*definition.scalars_beside, *indirects_of(definition.indices)))
    return roots


def narrow_conditions(flat: FlatKernel, accesses: tuple[Access, ...]) -> tuple[Condition, ...] | None:
    """Returns what must hold for every offset, position and index value to fit in 32 bits, lanes past the end included.

    Nothing where it holds for all sizes; None where it holds for none.
    """
    wanted = [_axis_condition(axis.size) for axis in flat.space.axes]
    indices = [access.offset for access in accesses]
    indices += [node.args[0] for node in postorder(_scalar_roots(flat)) if node.op == "index"]
    reaches = dict.fromkeys(reach for index in dict.fromkeys(indices) for reach in reaches_of(index))
    wanted += [(reach, INDEX_LIMIT - 1) for reach in reaches]
    open_: dict[Condition, None] = {}
    for size, limit in wanted:
        if is_provably_at_most(limit + 1, size):
            return None
        if not is_provably_at_most(size, limit):
            open_[size, limit] = None
    return tuple(
        (size, limit)
        for size, limit in open_
        if not any(other is not size and most <= limit and is_provably_at_most(size, other) for other, most in open_)
    )


def _axis_condition(size: Size) -> Condition:
    limit = (1 << INDEX_BITS) - LOWERING.largest_block * 16 - 1
    # The last position of a symbolic axis is at most that of a tensor it walks over, which makes this test needless.
    return (size, limit) if is_static(size) else (size - 1, min(limit, INDEX_LIMIT - 1))


def unit_stride_axis(offset: Index) -> str | None:
    """Returns the axis along which neighbouring positions are neighbours in memory, or None."""
    axis, stride = nearest_axis(offset)
    return axis if stride == 1 else None


def nearest_axis(offset: Index) -> tuple[str | None, int]:
    """Returns the axis along which neighbouring positions are nearest in memory, and how many elements apart.

    Of strides that are not known while compiling nothing is said, nor of neighbours where a position wraps.
    """
    nearest: tuple[str | None, int] = None, 0
    for atom, coefficient in offset.terms:
        inner: tuple[str | None, int] = None, 0
        if isinstance(atom, Dim):
            inner = atom.name, 1
        elif isinstance(atom, Mod):
            inner = nearest_axis(atom.numerator)
        if inner[0] is not None and is_static(coefficient) and coefficient > 0:
            apart = inner[1] * int(coefficient)
            if nearest[0] is None or apart < nearest[1]:
                nearest = inner[0], apart
    return nearest


def unit_stride_run(offset: Index) -> int | None:
    """Returns how many positions of that axis are neighbours before one wraps; None where none does, or one may.

    Of a wrap at a size that is not known while compiling nothing is said.
    """
    for atom, coefficient in offset.terms:
        if coefficient == 1 and isinstance(atom, Mod) and unit_stride_axis(atom.numerator) is not None:
            return int(atom.divisor) if is_static(atom.divisor) else None
    return None


def shortest_run(flat: FlatKernel, accesses: tuple[Access, ...]) -> int | None:
    """Returns the shortest of the runs of neighbours that a tenth or more of the bytes lie in; None if they do not.

    Those along the axis that most bytes lie along, or, in a kernel that transposes, along the others.
    """
    runs = {access: run for access in accesses if (run := unit_stride_run(access.offset)) is not None}
    if not runs:
        return None
    along, others = contiguous_axis(flat, accesses), is_transposed(flat, accesses)
    total = sum(touched_bytes(flat, access) for access in accesses)
    counted = (
        run
        for access, run in runs.items()
        if (unit_stride_axis(access.offset) != along) == others and 10 * touched_bytes(flat, access) >= total
    )
    return min(counted, default=None)


def is_noncoalesced(flat: FlatKernel, accesses: tuple[Access, ...]) -> bool:
    """Returns whether whole columns are held of which few, an odd number, lie beside each other.

    Threads that take neighbouring columns would read as many pieces of memory at once as there are groups of them; a
    few columns of one group, with all of their rows, are one piece.
    """
    if not isinstance(flat.kernel.form, PersistentReduction) or contiguous_axis(flat, accesses) != "x":
        return False
    run = shortest_run(flat, accesses)
    return run is not None and run < LOWERING.few_neighbours and run % 2 == 1


def percent_apart(flat: FlatKernel, accesses: tuple[Access, ...]) -> int:
    """Returns which part of the bytes, in percent, is read where no neighbours of an axis lie next to each other.

    Such as every second element of rows, or each of them several times; but not one of each pair for both of its
    positions.
    """
    apart = (a for a in accesses if not a.writes and a.axes and unit_stride_axis(a.offset) is None)
    apart = (a for a in apart if not _is_of_its_group(a))
    percent = 100 * sum(touched_bytes(flat, access) for access in apart)
    return percent and percent // max(1, sum(touched_bytes(flat, access) for access in accesses))


def touched_elements(flat: FlatKernel, access: Access) -> int:
    """Returns how many elements an access touches at most: one per point of its axes, no more than there are."""
    points = 1
    for axis in (*flat.space.axes, *flat.space.inner):
        if axis.name in access.axes:
            points *= hint(axis.size)
    return min(points, max(access.param.elements, 0))


def touched_bytes(flat: FlatKernel, access: Access) -> int:
    """Returns the bytes of these elements."""
    return touched_elements(flat, access) * access.param.dtype.bytes


def contiguous_axis(flat: FlatKernel, accesses: tuple[Access, ...]) -> str | None:
    """Returns the axis along which most bytes lie next to each other, of those that are read where some are reduced.

    Elements that are read a few apart, such as every second one of a row, count by the part of a line that they are.
    What is written counts as well where less than a tenth of what is read lies so. None where nothing does.
    """
    votes: dict[str, int] = {}
    if flat.space.reduction is not None:
        reads = tuple(access for access in accesses if not access.writes)
        votes = _near_bytes(flat, reads)
        if 10 * sum(votes.values()) < sum(touched_bytes(flat, access) for access in reads):
            votes = {}
    votes = votes or _unit_stride_bytes(flat, accesses)
    # Of equals the innermost grid axis wins.
    return max(votes, key=lambda name: (votes[name], "dezyrx".find(name))) if votes else None


def is_transposed(flat: FlatKernel, accesses: tuple[Access, ...]) -> bool:
    """Returns whether a tenth of the bytes or more lie next to each other along another grid axis than most do."""
    votes = _unit_stride_bytes(flat, accesses)
    grid = sorted(count for name, count in votes.items() if name != "r")
    return len(grid) > 1 and 10 * sum(grid[:-1]) >= sum(grid)


def _unit_stride_bytes(flat: FlatKernel, accesses: tuple[Access, ...]) -> dict[str, int]:
    votes: dict[str, int] = {}
    for access in accesses:
        axis = unit_stride_axis(access.offset)
        if axis is not None:
            axis = "r" if axis in REDUCTION_AXES else axis
            votes[axis] = votes.get(axis, 0) + touched_bytes(flat, access)
    return votes


def _near_bytes(flat: FlatKernel, accesses: tuple[Access, ...]) -> dict[str, int]:
    """Returns the bytes that lie near each other along each axis: a part of them where elements are some apart."""
    votes: dict[str, int] = {}
    for access in accesses:
        axis, stride = nearest_axis(access.offset)
        if axis is not None and stride * access.param.dtype.bytes <= LOWERING.near_bytes:
            axis = "r" if axis in REDUCTION_AXES else axis
            votes[axis] = votes.get(axis, 0) + touched_bytes(flat, access) // stride
    return votes


def window_loads(accesses: tuple[Access, ...]) -> int:
    """Returns how many loads of one tensor, at most, a point takes of which a thread reads each element by itself.

    As those of a window are: they begin at any element, or those of neighbouring points lie apart. Points of a group
    that all read one element of it do so from the same lines as others of the group.
    """
    single = Counter(
        a.param.text
        for a in accesses
        if not a.writes and a.axes and not (begins_at_even_elements(a.offset) or _is_of_its_group(a))
    )
    return max(single.values(), default=0)


def _is_of_its_group(access: Access) -> bool:
    """Returns whether positions of small groups of neighbours read one element of as many in memory: ``x // 2 * 2``."""
    for atom, coefficient in access.offset.terms:
        inside = atom.numerator.terms if isinstance(atom, Mod) else ((atom, 1),)
        for group, factor in inside:
            if isinstance(group, FloorDiv) and coefficient * factor == group.divisor and is_static(group.divisor):
                is_near = int(group.divisor) * access.param.dtype.bytes <= LOWERING.near_bytes
                return is_near and unit_stride_axis(group.numerator) is not None
    return False


def begins_at_even_elements(offset: Index) -> bool:
    """Returns whether neighbouring positions are neighbours in memory, from multiples of two elements on.

    Of what is not known while compiling nothing is said: it counts as such a multiple.
    """
    if unit_stride_axis(offset) is None:
        return False
    numbers = [offset.const]
    for atom, coefficient in offset.terms:
        if coefficient != 1:
            numbers.append(coefficient)
        elif isinstance(atom, Mod):
            numbers += [atom.divisor, atom.numerator.const]
        elif not isinstance(atom, Dim):
            return False
    return gcd(*(int(number) for number in numbers if is_static(number))) % 2 == 0
