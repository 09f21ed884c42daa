"""Tile programs of the golden kernels, and how one of them is run in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.rounding import round_to
from ferrite_scheduler.model.schedule import Schedule
from ferrite_triton.kernels import emit_kernel, tile_programs
from ferrite_triton.tile import TileProgram, run_program
from hand_written import schedule_text

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
GIVES = "# gives\n"


def read_golden(path: Path) -> tuple[str, Schedule]:
    """Returns the graph of a golden file as text, and the schedule that its first line asks for."""
    header, text = path.read_text().split(GIVES)[0].split("\n", 1)
    words = header.removeprefix("# kernel:").split()
    placed = {place: name for name, place in (word.split("=") for word in words[1:])}
    return text, schedule_text(text, words[0], placed)


def programs_of(path: Path) -> tuple[TileProgram, ...]:
    """Returns the tile programs of the kernel of a golden file."""
    return tile_programs(read_golden(path)[1].kernels[0])


def grid_size(expression: Any, names: dict[str, int]) -> int:
    """Returns the value of an expression of the integer mini-language, as far as grids use it."""
    match expression:
        case int():
            return expression
        case str():
            return names[expression]
        case ["mul", *factors]:
            return math.prod(grid_size(factor, names) for factor in factors)
        case ["add", *terms]:
            return sum(grid_size(term, names) for term in terms)
        case ["floordiv", value, divisor]:
            return grid_size(value, names) // grid_size(divisor, names)
        case ["ceildiv", value, divisor]:
            return -(-grid_size(value, names) // grid_size(divisor, names))
    raise ValueError(f"no grid: {expression}")


def run_kernel(
    schedule: Schedule,
    memory: dict[str, list[Number]],
    blocks: int = 8,
    run: Callable[..., None] = run_program,
    descriptors: int = 1,
) -> None:
    """Runs the only kernel of a schedule of known sizes, by a function that takes what `run_program` does.

    ``memory`` holds what each of the kernel's parameters points to. With 2 ``descriptors`` blocks are loaded through
    them, if there are any.
    """
    (kernel,) = schedule.kernels
    spec = emit_kernel(kernel)
    program = tile_programs(kernel)[-1]
    names = {axis["name"]: int(axis["size"]) for axis in spec.axes}
    chosen = {axis["block"]: min(blocks, axis.get("max_block", blocks)) for axis in spec.axes} | spec.blocks
    chosen |= {axis["block"]: descriptors for axis in spec.axes if axis["kind"] == "descriptors"}
    given = (param["name"] for param in spec.params if param.get("access") != "scratch")
    arguments = dict(zip(given, memory.values(), strict=True))
    arguments |= {param["name"]: [] for param in spec.params if param.get("access") == "scratch"}
    run(program, arguments, chosen, (grid_size(spec.grid, names | chosen),))


def draw(generator: random.Random, count: int, dtype: DType) -> list[Number]:
    """Returns numbers of a type; floats are small multiples of a quarter, so that sums of them are exact."""
    return [
        round_to(generator.randint(-8, 8) / 4 if dtype.is_float else generator.randint(0, 3), dtype)
        for _ in range(count)
    ]


def flat(nested: Any) -> Sequence[Number]:
    """Returns the numbers of nested lists, in order."""
    return [number for part in nested for number in flat(part)] if isinstance(nested, list) else [nested]
