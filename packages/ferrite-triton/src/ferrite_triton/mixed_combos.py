"""Mixed combos: kernels of any forms, each written as if alone, as one tile program, one Triton text and one spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.size_polynomials import symbol
from ferrite_ir.language.sizes import is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.model.forms import MixedCombo
from ferrite_scheduler.model.identity import without_names
from ferrite_scheduler.model.lists import as_written, elements_of, single_members, with_elements
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.accesses import Condition
from ferrite_triton.analysis.flat import FlatKernel, name_params
from ferrite_triton.analysis.size_params import SizeParams
from ferrite_triton.bodies.grid import program_count
from ferrite_triton.bodies.indices import index_dtype
from ferrite_triton.facts.records import MixedComboFacts
from ferrite_triton.host.spec import Expr, KernelSpec
from ferrite_triton.printing.kernel import print_kernel
from ferrite_triton.single_kernels import (
    Way,
    access_overrides,
    describe_axis,
    describe_param,
    describe_sizes,
    describe_space,
    facts_of,
    grid_expression,
    main_operations,
    origin_texts,
    tensor_variables,
    tile_program,
    ways_of,
    with_params,
)
from ferrite_triton.tile.build import add, block_size, quotient, sub
from ferrite_triton.tile.language import Expression, Literal, Name, TileType, Variable
from ferrite_triton.tile.passes.join import Joined, join_programs
from ferrite_triton.tile.statements import TileProgram

MOST_NOTES = 8
"""Parts whose axes are told in the text."""
NAMED = 3
"""Operations that the name of a kernel tells."""
MOST_TERMS = 128
"""Terms of a sum in a spec, which may have twice as many."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Kernels that are written once.

    Attributes:
        kernel: what is written: one of them, or the kernel over tensors of any size.
        members: equal to it but for names, and sizes.
        sizes: how many elements the tensors of each have, where these differ.
        divisor: what the text knows to divide all sizes.
    """

    kernel: Kernel
    members: tuple[Kernel, ...]
    sizes: tuple[int, ...] = ()
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class ComboWay:
    """A way to write each part, with what all of them need to hold, and the width of all addresses.

    ``alike`` are, for each part, the kernels that it is written for.
    """

    conditions: tuple[Condition, ...]
    parts: tuple[Way, ...]
    alike: tuple[Alike, ...]
    width: int


def combo_ways(kernel: Kernel) -> list[ComboWay]:
    """Returns the ways to write a mixed combo, the best first; the last one is right for all sizes.

    Parts that have fewer ways than others keep their best one the longest.
    """
    alike = _alike(kernel)
    choices = [ways_of(each.kernel) for each in alike]
    found = []
    for rest in reversed(range(max(map(len, choices)))):
        parts = tuple(ways[max(0, len(ways) - 1 - rest)] for ways in choices)
        conditions = tuple(dict.fromkeys(condition for way in parts for condition in way.conditions))
        found.append(ComboWay(conditions, parts, alike, max(way.width for way in parts)))
    return found


def _alike(kernel: Kernel) -> tuple[Alike, ...]:
    """Returns the members of a combo, those together that are equal but for names and numbers of elements."""
    if _takes_turns(kernel):
        return tuple(Alike(member, (member,)) for member in kernel.members)
    groups: dict[Kernel, list[tuple[Kernel, int]]] = {}
    members = single_members(kernel)
    is_known = all(is_static(axis.size) for member in members for axis in member.axes)
    for member in members:
        size = (elements_of(member) if is_known else None) or 0
        key = as_written(member, divisor_of(member, size)) if size else without_names(member)
        groups.setdefault(key, []).append((member, size))
    return tuple(_group([member for member, _ in found], [size for _, size in found]) for found in groups.values())


def _group(members: Sequence[Kernel], sizes: Sequence[int]) -> Alike:
    """Returns kernels of one text: of tensors of one size, or of any."""
    if len(set(sizes)) == 1:
        return Alike(members[0], tuple(members))
    divisor = divisor_of(members[0], sizes[0])
    # What is expected of the size is the sum, so that configs and facts are those of all tensors.
    size = symbol("elements", high=max(sizes) // divisor, hint=sum(sizes) // divisor)
    return Alike(with_elements(members[0], size * divisor), tuple(members), tuple(sizes), divisor)


def divisor_of(kernel: Kernel, size: int) -> int:
    """Returns the elements of a vector of a thread, if tensors of a size have whole vectors, else 1."""
    vector = VECTOR_BYTES // min(param.type.dtype.bytes for param in kernel.params)
    return vector if vector > 1 and size % vector == 0 else 1


def combo_program(kernel: Kernel, way: ComboWay, params: SizeParams) -> TileProgram:
    """Returns what the programs of a mixed combo do."""
    flats = _flats(kernel, way, params)
    return _joined(kernel, way, flats, [tile_program(flat, way.width) for flat in flats])


def write_combo(kernel: Kernel, way: ComboWay, params: SizeParams) -> KernelSpec:
    """Returns the spec of a mixed combo, which takes all sizes named so far and names those that it needs."""
    flats = _flats(kernel, way, params)
    programs = [tile_program(flat, way.width) for flat in flats]
    joined = _joined(kernel, way, flats, programs)
    parts = tuple(
        _describe_part(flat, each, program, alike, _whole_names(kernel, alike.members))
        for flat, each, program, alike in zip(flats, way.parts, programs, way.alike, strict=True)
    )
    described = _describe_params(kernel, way, flats)
    operations = list(dict.fromkeys(name for flat in flats for name in main_operations(flat)))[:NAMED]
    source, name = print_kernel(joined, _notes(kernel, way, flats), "_".join([MixedCombo.name, *operations]))
    return KernelSpec(
        name=name,
        source=source,
        form=MixedCombo.name,
        params=(*described, *describe_sizes(params, way.width)),
        axes=tuple(_numbered(axis, number) for number, part in enumerate(parts) for axis in part["axes"]),
        blocks={
            f"{name}_{number}": block for number, part in enumerate(parts) for name, block in part["blocks"].items()
        },
        grid=_grid(kernel, parts),
        mutated=tuple(param["name"] for param in described if param.get("access") in ("readwrite", "atomic")),
        index_width=way.width,
        facts=_joined_facts(parts),
        origin=origin_texts(kernel),
        sizes=tuple(params.names),
        parts=parts,
    )


def _flats(kernel: Kernel, way: ComboWay, params: SizeParams) -> list[FlatKernel]:
    """Returns the parts as they are written, with params for sizes in common."""
    found: list[FlatKernel] = []
    for part, alike in zip(way.parts, way.alike, strict=True):
        flat = with_params(part.flat, SizeParams() if alike.sizes else params)  # sizes of lists are no params
        found.append(flat)
        for axis in flat.space.axes:
            flat.space.params.expression(axis.size)  # the sizes of the axes get the first names
    return found


def _whole_names(kernel: Kernel, alike: Sequence[Kernel]) -> tuple[dict[str, str], ...]:
    """Returns for each of some members what its params are called in the whole, by what it calls them itself."""
    named = name_params(kernel)
    return tuple({own.text: named[name].text for name, own in name_params(member).items()} for member in alike)


def _joined(kernel: Kernel, way: ComboWay, flats: Sequence[FlatKernel], programs: Sequence[TileProgram]) -> TileProgram:
    dtype: DType = index_dtype(way.width)
    types: dict[str, TileType] = {}
    parts: list[Joined] = []
    for flat, program, alike in zip(flats, programs, way.alike, strict=True):
        names = _whole_names(kernel, alike.members)
        parts.append(_join(flat, program, alike, names, dtype))
        for own in tensor_variables(flat):
            types |= dict.fromkeys((each[own.name] for each in names), own.type)
    tensors = (Variable(param.text, types[param.text]) for param in name_params(kernel).values())
    named = (name for f, each in zip(flats, way.alike, strict=True) if not each.sizes for name in _size_names(f))
    sizes = (Variable(name, TileType(dtype)) for name in named)
    parameters = tuple(dict.fromkeys((*tensors, *sizes)))
    return join_programs(MixedCombo.name, parts, parameters, dtype, takes_turns=_takes_turns(kernel))


def _join(
    flat: FlatKernel, program: TileProgram, alike: Alike, names: Sequence[Mapping[str, str]], dtype: DType
) -> Joined:
    """Returns a part as it is joined with others: for the params, and the sizes, of each of its kernels."""
    count = program_count(flat.space, dtype)
    params: list[dict[str, Name | Literal]] = [{own: Name(whole) for own, whole in each.items()} for each in names]
    if not alike.sizes:
        return Joined(program, (count,) * len(params), tuple(params))
    (size_name,), axis = _size_names(flat), flat.space.grid[0]
    counts: list[Expression] = []
    for size, given in zip(alike.sizes, params, strict=True):
        given[size_name] = Literal(size // alike.divisor, dtype)
        block = block_size(axis.constant, dtype)
        counts.append(quotient(sub(add(Literal(size, dtype), block), Literal(1, dtype)), block))
    return Joined(program, tuple(counts), tuple(params))


def _size_names(flat: FlatKernel) -> tuple[str, ...]:
    return tuple(flat.space.params.names.values())


def _takes_turns(kernel: Kernel) -> bool:
    return isinstance(kernel.form, MixedCombo) and kernel.form.takes_turns


def _notes(kernel: Kernel, way: ComboWay, flats: Sequence[FlatKernel]) -> list[str]:
    """Returns comments: what the parts are, and the types of the params."""
    lines = [_note(alike, flat) for alike, flat in zip(way.alike, flats, strict=True)]
    rest = len(lines) - MOST_NOTES
    shown = lines if rest <= 0 else [*lines[:MOST_NOTES], f"and {rest} more"]
    texts = {param.text: param.dtype for param in name_params(kernel).values()}
    return [
        *(f"part {number}: {line}" for number, line in enumerate(shown)),
        ", ".join(f"{n}: {d}" for n, d in texts.items()),
    ]


def _note(alike: Alike, flat: FlatKernel) -> str:
    times, form = len(alike.members), flat.kernel.form.name
    if alike.sizes:
        return f"{times} times {form} x: {min(alike.sizes)} to {max(alike.sizes)}"
    return f"{f'{times} times ' if times > 1 else ''}{form} {describe_space(flat.space)}"


def _describe_params(kernel: Kernel, way: ComboWay, flats: Sequence[FlatKernel]) -> list[dict[str, Any]]:
    """Returns the params of the spec but for sizes, in call order."""
    written: dict[str, str] = {}
    for flat, alike in zip(flats, way.alike, strict=True):
        own = access_overrides(flat)
        for names in _whole_names(kernel, alike.members):
            written |= {names[name]: access for name, access in own.items()}
    named = name_params(kernel)
    return [describe_param(named[param.name], written) for param in kernel.params]


def _describe_part(
    flat: FlatKernel, way: Way, program: TileProgram, alike: Alike, names: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Returns what the spec says of a part: its form, axes, grid and facts as if it were alone, and how often it is.

    A list of tensors of several sizes is one kernel, over all of their elements.
    """
    space = flat.space
    texts = [flat.params[param.name].text for param in flat.kernel.params]
    axes = [describe_axis(axis, space.params, space.least if axis.is_reduction else 0) for axis in space.axes]
    return {
        "form": flat.kernel.form.name,
        "copies": 1 if alike.sizes else len(names),
        "params": list(dict.fromkeys(each[text] for each in names for text in texts)),
        "axes": [axis | {"size": sum(alike.sizes)} for axis in axes] if alike.sizes else axes,
        "blocks": {axis.constant: axis.block for axis in space.axes if axis.block is not None},
        "grid": _list_grid(alike.sizes, axes[0]["block"]) if alike.sizes else grid_expression(space),
        "facts": facts_of(flat, way.accesses, program).to_mapping(),
    }


def _list_grid(sizes: Sequence[int], block: str) -> Expr:
    """Returns the number of programs of a list of tensors, none of which has elements of two."""
    times = Counter(sizes)
    terms: list[Expr] = [["mul", ["ceildiv", size, block], count] for size, count in times.items()]
    while len(terms) > 1:
        sums = (terms[at : at + MOST_TERMS] for at in range(0, len(terms), MOST_TERMS))
        terms = [some[0] if len(some) == 1 else ["add", *some] for some in sums]
    return terms[0]


def _numbered(axis: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns an axis of a part as one of the whole: its name and its block constant end in the part's number."""
    return {**axis, "name": f"{axis['name']}_{number}", "block": f"{axis['block']}_{number}"}


def _grid(kernel: Kernel, parts: Sequence[dict[str, Any]]) -> Expr:
    """Returns the number of programs: of all parts, or, where they take turns, as often as the largest part needs."""
    grids = []
    for number, part in enumerate(parts):
        own = {name for axis in part["axes"] for name in (axis["name"], axis["block"])}
        grid = _with_suffix(part["grid"], own, number)
        grids.append(grid if part["copies"] == 1 else ["mul", grid, part["copies"]])
    if len(grids) == 1:
        return grids[0]
    return ["mul", ["max", *grids], len(grids)] if _takes_turns(kernel) else ["add", *grids]


def _with_suffix(grid: Expr, names: set[str], number: int) -> Expr:
    if isinstance(grid, list):
        return [grid[0], *(_with_suffix(each, names, number) for each in grid[1:])]
    return f"{grid}_{number}" if grid in names else grid


def _joined_facts(parts: Sequence[dict[str, Any]]) -> MixedComboFacts:
    """Returns the facts of the whole: sums of those of the parts."""
    facts = [(part["facts"], part["copies"]) for part in parts]
    summed = ("loads", "stores", "reductions", "ops", "flops", "bytes", "numel")
    return MixedComboFacts(
        **{name: sum(each[name] * copies for each, copies in facts) for name in summed},
        element_bytes=max(each["element_bytes"] for each, _ in facts),
        atomics=any(each["atomics"] for each, _ in facts),
        random=any(each["random"] for each, _ in facts),
        asserts=any(each.get("asserts", False) for each, _ in facts) or None,
    )
