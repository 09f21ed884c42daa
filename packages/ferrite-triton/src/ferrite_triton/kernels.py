"""One scheduled kernel as Triton text with its spec."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ferrite_ir.graph import Contract, Fold, Loop, Scan, Update, bodies_of
from ferrite_ir.ops import OPS
from ferrite_ir.scalar import postorder
from ferrite_ir.sizes import Size, floordiv, hint, is_static
from ferrite_scheduler.contractions import fits_axes
from ferrite_scheduler.schedule import Kernel
from ferrite_scheduler.softmax import part_softmax

from .body import KernelBody, branch_axis
from .cooperation import REGISTERS, REGISTERS_OF_HALVES
from .errors import UnsupportedDefinition
from .facts import collect_facts
from .flat import FlatKernel, flatten
from .groups import needed_multiple
from .halves import holds_only_halves
from .held_images import THREADS, image_lines, pieces_of, registers_of
from .memory import Access, Condition, contiguous_axis, find_accesses, is_strewn, narrow_conditions
from .positions import position_lines
from .scans import PIECES, PIECES_REGISTERS, SERIAL, look_back_scans, scans_serially, waits_in_pieces
from .size_text import SizeParams
from .skew import skew_of
from .space import POSITION, AxisText, Space, build_space, pieced_space, walked_space
from .spec import Expr, KernelSpec
from .updates import needs_atomics
from .walked import is_walked

ALIGNMENT = 16
FOLLOW = "fmath.follow()"
"""What a kernel begins with: it may have been started before what comes before it has ended (decision 0014)."""
_PLACEHOLDER = "kernel"


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel as texts that all take the same arguments.

    Attributes:
        spec: the one that is right for all sizes.
        alternatives: better ones, each with what must hold for it to be right, the best first.
    """

    spec: KernelSpec
    alternatives: tuple[tuple[tuple[Condition, ...], KernelSpec], ...] = ()


def emit_kernel(kernel: Kernel) -> KernelSpec:
    """Returns the text of a kernel that is right for all sizes, and its spec; see `emit_alternatives`."""
    return emit_alternatives(kernel).spec


def emit_alternatives(kernel: Kernel) -> Emitted:
    """Returns the texts of a kernel and their specs. Equal kernels give equal specs, but for their origins.

    Where addresses fit in 32 bits for some sizes only, there is a text for those beside that for all.

    Raises:
        UnsupportedDefinition: something in the body has no kernel text.
        UnsupportedUpdate: an update needs an atomic instruction that does not exist.
        ScheduleMismatch: the kernel breaks the iteration model of the schedule.
    """
    forms: list[_Form] = []
    least = 0
    flat, accesses = _flattened(kernel)
    conditions = narrow_conditions(flat, accesses)
    if kernel.persistent_up_to and kernel.fold is not None:
        held = _flattened(part_softmax(replace(kernel, strategy="persistent")))
        own = narrow_conditions(*held)
        if own is not None:
            forms.append(_Form(((kernel.fold.size, kernel.persistent_up_to), *own), *held, 32))
            least = kernel.persistent_up_to + 1 if conditions is not None and set(own) <= set(conditions) else 0
    if conditions is not None:
        forms += _looped_forms(replace(flat, space=replace(flat.space, least=least)), accesses, conditions)
    if conditions is None or conditions:
        forms.append(_Form((), flat, accesses, 64))
    params = SizeParams()
    specs = [_write(form, params) for form in forms]
    if any(spec.sizes != tuple(params.names) for spec in specs):
        # All forms take the sizes that any of them needs.
        specs = [_write(form, params) for form in forms]
    return Emitted(specs[-1], tuple((form.conditions, spec) for form, spec in zip(forms, specs, strict=True))[:-1])


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to write a kernel: what it needs to hold, the kernel, and the width of its addresses."""

    conditions: tuple[Condition, ...]
    flat: FlatKernel
    accesses: tuple[Access, ...]
    width: int


def _looped_forms(flat: FlatKernel, accesses: tuple[Access, ...], conditions: tuple[Condition, ...]) -> Iterator[_Form]:
    """Yields the forms with 32-bit addresses: first that for rows all of which begin at multiples of a vector."""
    multiple, fold = needed_multiple(flat), flat.space.fold
    rest: Size = 1
    if multiple > 1 and fold is not None:
        rest = fold.size - floordiv(fold.size, multiple) * multiple
        aligned = replace(flat, space=replace(flat.space, multiple=multiple))
        if rest == 0:
            yield _Form(conditions, aligned, accesses, 32)
        elif not is_static(rest):
            yield _Form(((rest, 0), *conditions), aligned, accesses, 32)
    if rest != 0:
        yield _Form(conditions, flat, accesses, 32)


def _flattened(kernel: Kernel) -> tuple[FlatKernel, tuple[Access, ...]]:
    if not fits_axes(kernel.body, kernel.axes):
        raise UnsupportedDefinition(
            f"{kernel.name} holds a contraction that is not of half types or f32 with its rows on y, its columns on x; "
            "write it as a fold of products"
        )
    space = build_space(kernel)
    flat = flatten(kernel, space)
    accesses = find_accesses(flat)
    is_across = space.folds_tile and "y" not in space.order and contiguous_axis(flat, accesses) == "x"
    if is_across and not is_strewn(flat, accesses):
        # Neighbouring threads take neighbouring x: the fold axis, and its blocks, become the slow ones of the tile.
        flat = replace(flat, space=build_space(kernel, ("b", "r", "x")))
        if scans_serially(flat):
            flat = replace(flat, space=replace(flat.space, serial=SERIAL))
    if waits_in_pieces(flat):
        flat = replace(flat, space=pieced_space(flat.space, PIECES))
    elif kernel.columns:
        flat = replace(flat, space=pieced_space(flat.space, pieces_of(flat)))
    if is_walked(flat, accesses):
        return replace(flat, space=walked_space(flat.space)), accesses
    return replace(flat, space=replace(flat.space, skew=skew_of(flat))), accesses


def _write(form: _Form, params: SizeParams) -> KernelSpec:
    """Returns the spec of a kernel in one form, which takes all sizes named so far and names those that it needs."""
    flat, accesses, width = form.flat, form.accesses, form.width
    kernel = flat.kernel
    space = replace(flat.space, params=params)
    flat = replace(flat, space=space)
    for axis in space.axes:
        params.expression(axis.size)  # the sizes of the axes get the first names
    body = KernelBody(flat, width).write()
    source, name = assemble(flat, width, body)
    return KernelSpec(
        name=name,
        source=source,
        family=kernel.strategy,
        params=(*describe_params(flat), *_describe_sizes(params, width)),
        axes=tuple(describe_axis(axis, params, space.least if axis.is_fold else 0) for axis in space.axes),
        blocks={axis.constant: axis.block for axis in space.axes if axis.block is not None},
        grid=grid_expression(space),
        mutated=mutated_params(flat),
        index_width=width,
        facts=_facts(flat, accesses, body),
        origin=origin_texts(kernel),
        sizes=tuple(params.names),
    )


def origin_texts(kernel: Kernel) -> tuple[str, ...]:
    """Returns where a kernel came from, without repeats."""
    return tuple(dict.fromkeys(str(origin) for origin in kernel.origins if str(origin)))


def _describe_sizes(params: SizeParams, width: int) -> list[dict[str, Any]]:
    described = {"role": "size", "dtype": f"i{width}"}
    return [{"name": name, **described, "hint": hint(size)} for size, name in params.names.items()]


def header_lines(flat: FlatKernel, width: int, body: list[str]) -> list[str]:
    """Returns the lines that place a program in the grid, the x blocks run fastest, and what the body needs of them."""
    space = flat.space
    wide = ".to(tl.int64)" if width == 64 else ""
    if flat.kernel.columns:
        return image_lines(space, flat.param_of(flat.kernel.status).text, wide)
    if look_back_scans(flat):
        return part_lines(flat, width)
    return grid_lines(flat, wide, body)


def grid_lines(flat: FlatKernel, wide: str, body: list[str]) -> list[str]:
    """Returns these lines of a kernel whose programs wait for no others, or for those of a row."""
    space, lines = flat.space, list[str]()
    grid = [axis for axis in reversed(space.grid) if axis.size != 1 and not axis.is_whole]
    rest = f"(tl.num_programs(0) - 1 - tl.program_id(0){wide})" if flat.kernel.backwards else f"tl.program_id(0){wide}"
    if space.parts:
        status = flat.param_of(flat.kernel.status).text
        function = "part_in_order" if holds_only_halves(flat) else "draw_part"
        lines.append(f"program = fmath.{function}({status}, tl.num_programs(0))")
        lines += [f"member = program % {space.parts}{wide}", f"group = program // {space.parts}{wide}"]
        rest = "group"
    if space.runs:  # the loop over the rows of the run says where they lie
        lines.append(f"program = {rest}")
        grid = []
    if (len(grid) > 1 and not space.parts) or space.branches > 1:
        lines.append(f"program = {rest}")
        rest = "program"
    for number, axis in enumerate(grid):
        mine = rest
        if number < len(grid) - 1 or space.branches > 1:
            size = space.params.operand(axis.size)
            blocks = f"{axis.name}blocks" if axis.tiled else size
            if axis.tiled:
                lines.append(f"{blocks} = ({size} + {axis.constant} - 1) // {axis.constant}")
            if not is_static(axis.size):
                # What a division by a variable takes half the instructions for, and a program begins with waiting for.
                lines.append(f"tl.assume({blocks} > 0)")
            mine, rest = f"{rest} % {blocks}", f"{rest} // {blocks}"
        if axis is branch_axis(space):
            lines.append(f"{axis.name}first = {mine} * {axis.constant}")  # each branch counts on from here
        elif axis.tiled:
            lines += position_lines(space, axis, f"{mine} * {axis.constant} + tl.arange(0, {axis.constant})")
            lines += quarter_lines(space, axis, mine, body)
        else:
            lines.append(f"{axis.name} = {mine}")
    if space.branches > 1:
        lines.append(f"branch = {rest}")
    return [*lines, *tile_lines(space, wide, body)]


def tile_lines(space: Space, wide: str, body: list[str]) -> list[str]:
    """Returns the lines with the positions of the axes that a tile holds whole."""
    lines: list[str] = []
    fold = space.fold
    for axis in space.axes:
        if axis.is_whole or axis is space.blocks:
            lines += position_lines(space, axis, f"tl.arange(0, {axis.constant}){wide}")
    if fold is not None and fold.tiled and not space.loops:
        lanes = "tl.arange(0, RBLOCK)"
        if space.walked:
            if any(POSITION in line for line in body):
                lines.append(f"{POSITION} = {lanes}{wide}{space.expand('r')}")
            lanes = f"fmath.hide({lanes})"
        lines += position_lines(space, fold, f"member * RBLOCK + {lanes}" if space.parts else f"{lanes}{wide}")
        lines += quarter_lines(space, fold, "member" if space.parts else "", body)
    return lines


def part_lines(flat: FlatKernel, width: int) -> list[str]:
    """Returns the lines that place a program in the grid of a scan whose programs wait for each other.

    They take parts in the order in which they begin, those of all lines in turn.
    """
    space, (scan, *_) = flat.space, look_back_scans(flat)
    grid = [axis for axis in space.grid if axis.size != 1]
    lines = math.prod(int(axis.size) for axis in grid)
    text = [f"program = fmath.part_in_order({flat.param_of(scan.status).text}, {lines * space.parts})"]
    text += [f"line = program % {lines}", f"part = program // {lines}"]
    rest = "line"
    for axis in reversed(grid):
        outermost = axis is grid[0]
        text.append(f"{axis.name} = {rest}" if outermost else f"{axis.name} = {rest} % {axis.size}")
        rest = f"({rest} // {axis.size})"
    fold = space.fold
    if fold is None:
        raise AssertionError("a scan without a fold axis")
    if space.pieces > 1:
        return text  # the body says where each piece lies
    wide = ".to(tl.int64)" if width == 64 else ""
    return [*text, *position_lines(space, fold, f"part{wide} * RBLOCK + tl.arange(0, RBLOCK)")]


def quarter_lines(space: Space, axis: AxisText, program: str, body: list[str]) -> list[str]:
    """Returns the line that counts quartets along an axis, if the body draws random numbers by them."""
    name = f"{axis.name}_quarter"
    if not any(name in line for line in body):
        return []
    lane, suffix = f"tl.arange(0, {axis.constant} // 4)", space.expand(axis.name)
    position = f"{program} * ({axis.constant} // 4) + {lane}" if program else lane
    return [f"{name} = ({position}){suffix}" if suffix and program else f"{name} = {position}{suffix}"]


def describe_space(space: Space) -> str:
    """Returns a comment that says what the axes are."""
    return "# " + ", ".join(f"{axis.name}: {space.params.text(axis.size)}" for axis in space.axes)


def assemble(flat: FlatKernel, width: int, body: list[str]) -> tuple[str, str]:
    """Returns the module text and the name of the kernel function, which holds a digest of the text."""
    tensors = {param.text: param for param in flat.params.values()}
    kinds = ", ".join(f"{name}: {param.dtype}" for name, param in tensors.items())
    constants = [f"{axis.constant}: tl.constexpr" for axis in flat.space.axes]
    head = (describe_space(flat.space), f"# {kinds}", FOLLOW, *header_lines(flat, width, body))
    text = "\n".join([*(f"    {line}" for line in head), *body])
    imports = ["import triton", "import triton.language as tl", "from ferrite_runtime import fmath"]
    signature = ", ".join([*tensors, *flat.space.params.names.values(), *constants])
    template = "\n".join([*imports, "", "", "@triton.jit", f"def {_PLACEHOLDER}({signature}):", text, ""])
    digest = hashlib.sha256(f"{flat.kernel.strategy}\n{template}".encode()).hexdigest()[:8]
    name = "_".join([flat.kernel.strategy, *main_operations(flat), digest])
    return template.replace(f"def {_PLACEHOLDER}(", f"def {name}(", 1), name


def main_operations(flat: FlatKernel) -> list[str]:
    """Returns up to three names that say what a kernel computes: folds and scans, then the dearest operations."""
    combines = [definition.combine for definition in flat.definitions if isinstance(definition, (Fold, Scan))]
    combines += ["product" for definition in flat.definitions if isinstance(definition, Contract)]
    updates = [definition.mode for definition in flat.definitions if isinstance(definition, Update)]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    dear = sorted((node.op for node in nodes if node.op in OPS), key=lambda op: -OPS[op].cost)
    names = list(dict.fromkeys([*combines, *updates, *dear]))[:3]
    if names:
        return names
    return ["copy"] if any(isinstance(definition, Loop) for definition in flat.definitions) else []


def describe_params(flat: FlatKernel) -> list[dict[str, Any]]:
    """Returns the params of the spec, in call order."""
    written = access_overrides(flat)
    described: list[dict[str, Any]] = []
    for name, access in ((param.name, param.access) for param in flat.kernel.params):
        param = flat.params[name]
        if param.param.host_scalar:
            described.append({"name": param.text, "role": "scalar", "dtype": param.dtype.name})
            continue
        tensor = {"name": param.text, "role": "tensor", "dtype": param.dtype.name}
        described.append({**tensor, "access": written.get(param.text, access), "align": ALIGNMENT})
    return described


def access_overrides(flat: FlatKernel) -> dict[str, str]:
    """Returns the access of updated params: ``atomic`` or, where points cannot meet, ``readwrite``."""
    overrides: dict[str, str] = {}
    for definition in flat.definitions:
        if isinstance(definition, Update):
            text = flat.param_of(definition.result.name).text
            access = "atomic" if needs_atomics(flat, definition) else "readwrite"
            overrides[text] = "atomic" if "atomic" in (overrides.get(text), access) else access
    overrides.update((flat.param_of(scan.status).text, "atomic") for scan in look_back_scans(flat))
    return overrides


def mutated_params(flat: FlatKernel) -> tuple[str, ...]:
    """Returns the names of params whose old contents matter and are overwritten."""
    return tuple(param["name"] for param in describe_params(flat) if param.get("access") in ("readwrite", "atomic"))


def _facts(flat: FlatKernel, accesses: tuple[Access, ...], body: list[str]) -> dict[str, Any]:
    """Returns the facts of a kernel, for the sizes that its spec expects."""
    facts, fold, least = collect_facts(flat, accesses, body), flat.space.fold, flat.space.least
    if fold is not None and least > (expected := hint(fold.size)):
        facts["bytes"] = facts["bytes"] * least // max(1, expected)
    if flat.kernel.columns:
        facts |= {"registers": registers_of(flat), "threads": THREADS}
    elif flat.kernel.points:
        facts["registers"] = REGISTERS_OF_HALVES if holds_only_halves(flat) else REGISTERS
    elif flat.space.pieces > 1:
        facts["registers"] = PIECES_REGISTERS
    return facts


def describe_axis(axis: AxisText, params: SizeParams, least: int = 0) -> dict[str, Any]:
    """Returns an axis of the spec; its expected size is ``least`` where the kernel is launched for no smaller one."""
    described: dict[str, Any] = {
        "name": axis.name,
        "kind": "fold" if axis.is_fold else "grid",
        "size": params.expression(axis.size),
        "hint": max(hint(axis.size), least),
        "block": axis.constant,
    }
    if axis.max_block is not None:
        described["max_block"] = axis.max_block
    return described


def grid_expression(space: Space) -> Expr:
    """Returns the number of programs in the integer mini-language."""
    if space.runs:
        return space.runs
    factors: list[Expr] = [["ceildiv", axis.name, axis.constant] for axis in space.grid]
    if space.branches > 1:
        factors.append(space.branches)
    if space.parts:
        factors.append(["ceildiv", "r", ["mul", "RBLOCK", space.pieces] if space.pieces > 1 else "RBLOCK"])
    return factors[0] if len(factors) == 1 else ["mul", *factors]
