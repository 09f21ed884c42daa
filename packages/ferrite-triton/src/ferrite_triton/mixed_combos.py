"""Mixed combos: kernels of any forms, each written as if alone, as one tile program, one Triton text and one spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_scheduler.model.forms import MixedCombo
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.accesses import Condition
from ferrite_triton.analysis.flat import FlatKernel, name_params
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.size_params import SizeParams
from ferrite_triton.facts.records import MixedComboFacts
from ferrite_triton.forms.grid import program_count
from ferrite_triton.forms.indices import index_dtype
from ferrite_triton.host.identity import without_names
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
from ferrite_triton.tile.language import TileType, Variable
from ferrite_triton.tile.passes.join import Joined, join_programs
from ferrite_triton.tile.statements import TileProgram

MOST_NOTES = 8
"""Parts whose axes are told in the text."""
NAMED = 3
"""Operations that the name of a kernel tells."""


@dataclass(frozen=True, slots=True)
class ComboWay:
    """A way to write each part, with what all of them need to hold, and the width of all addresses.

    ``alike`` are, for each part, the kernels that it is written for: equal but for names.
    """

    conditions: tuple[Condition, ...]
    parts: tuple[Way, ...]
    alike: tuple[tuple[Kernel, ...], ...]
    width: int


def combo_ways(kernel: Kernel) -> list[ComboWay]:
    """Returns the ways to write a mixed combo, the best first; the last one is right for all sizes.

    Parts that have fewer ways than others keep their best one the longest.
    """
    alike = _alike(kernel)
    choices = [ways_of(members[0]) for members in alike]
    found = []
    for rest in reversed(range(max(map(len, choices)))):
        parts = tuple(ways[max(0, len(ways) - 1 - rest)] for ways in choices)
        conditions = tuple(dict.fromkeys(condition for way in parts for condition in way.conditions))
        found.append(ComboWay(conditions, parts, alike, max(way.width for way in parts)))
    return found


def _alike(kernel: Kernel) -> tuple[tuple[Kernel, ...], ...]:
    """Returns the members of a mixed combo, those together that are equal but for names, a few at a time."""
    if _takes_turns(kernel):
        return tuple((member,) for member in kernel.members)
    groups: dict[Kernel, list[list[Kernel]]] = {}
    order: list[list[Kernel]] = []
    for member in kernel.members:
        known = groups.setdefault(without_names(member), [])
        if not known or len(known[-1]) == LOWERING.combo_copies:
            known.append([])
            order.append(known[-1])
        known[-1].append(member)
    return tuple(map(tuple, order))


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
        _describe_part(flat, each, program, _whole_names(kernel, alike))
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
    found = [with_params(part.flat, params) for part in way.parts]
    for flat in found:
        for axis in flat.space.axes:
            params.expression(axis.size)  # the sizes of the axes get the first names
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
        names = _whole_names(kernel, alike)
        parts.append(Joined(program, program_count(flat.space, dtype), names))
        for own in tensor_variables(flat):
            types |= dict.fromkeys((copy[own.name] for copy in names), own.type)
    tensors = (Variable(param.text, types[param.text]) for param in name_params(kernel).values())
    sizes = (Variable(name, TileType(dtype)) for name in flats[0].space.params.names.values())
    parameters = tuple(dict.fromkeys((*tensors, *sizes)))
    return join_programs(MixedCombo.name, parts, parameters, dtype, takes_turns=_takes_turns(kernel))


def _takes_turns(kernel: Kernel) -> bool:
    return isinstance(kernel.form, MixedCombo) and kernel.form.takes_turns


def _notes(kernel: Kernel, way: ComboWay, flats: Sequence[FlatKernel]) -> list[str]:
    """Returns comments: what the parts are, and the types of the params."""
    times = [f"{len(alike)} times " if len(alike) > 1 else "" for alike in way.alike]
    lines = [
        f"{count}{flat.kernel.form.name} {describe_space(flat.space)}" for count, flat in zip(times, flats, strict=True)
    ]
    rest = len(lines) - MOST_NOTES
    shown = lines if rest <= 0 else [*lines[:MOST_NOTES], f"and {rest} more"]
    texts = {param.text: param.dtype for param in name_params(kernel).values()}
    return [
        *(f"part {number}: {line}" for number, line in enumerate(shown)),
        ", ".join(f"{n}: {d}" for n, d in texts.items()),
    ]


def _describe_params(kernel: Kernel, way: ComboWay, flats: Sequence[FlatKernel]) -> list[dict[str, Any]]:
    """Returns the params of the spec but for sizes, in call order."""
    written: dict[str, str] = {}
    for flat, alike in zip(flats, way.alike, strict=True):
        own = access_overrides(flat)
        for names in _whole_names(kernel, alike):
            written |= {names[name]: access for name, access in own.items()}
    named = name_params(kernel)
    return [describe_param(named[param.name], written) for param in kernel.params]


def _describe_part(
    flat: FlatKernel, way: Way, program: TileProgram, names: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Returns what the spec says of a part: its form, axes, grid and facts as if it were alone, and how often it is."""
    space = flat.space
    texts = [flat.params[param.name].text for param in flat.kernel.params]
    return {
        "form": flat.kernel.form.name,
        "copies": len(names),
        "params": list(dict.fromkeys(copy[text] for copy in names for text in texts)),
        "axes": [describe_axis(axis, space.params, space.least if axis.is_reduction else 0) for axis in space.axes],
        "blocks": {axis.constant: axis.block for axis in space.axes if axis.block is not None},
        "grid": grid_expression(space),
        "facts": facts_of(flat, way.accesses, program).to_mapping(),
    }


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
    )
