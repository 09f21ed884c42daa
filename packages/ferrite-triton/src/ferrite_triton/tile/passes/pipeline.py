"""The passes over tile programs, in order: a tuple that prints, as the passes over graphs and the rewrites do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ferrite_triton.tile.passes.delayed_stores import delay_stores
from ferrite_triton.tile.passes.last_block import peel_last_block
from ferrite_triton.tile.passes.packed_residency import keep_packed
from ferrite_triton.tile.passes.unswitched_loops import unswitch_loops
from ferrite_triton.tile.passes.unused import drop_unused
from ferrite_triton.tile.passes.vector_loads import load_vectors_in_one_dim
from ferrite_triton.tile.statements import TileProgram


@dataclass(frozen=True, slots=True)
class TilePass:
    """One step between a kernel's body and its text.

    Attributes:
        name: of the module that has it.
        reason: why it changes what it changes.
        apply: returns a program that does the same, given how many stores may wait for the loads behind them.
    """

    name: str
    reason: str
    apply: Callable[[TileProgram, int], TileProgram] = field(repr=False)

    def __str__(self) -> str:
        return self.name


TILE_PASSES: tuple[TilePass, ...] = (
    TilePass(
        "packed_residency",
        "a compiler keeps 16-bit elements that wait as floats, in twice the registers",
        lambda program, _: keep_packed(program),
    ),
    TilePass("delayed_stores", "a compiler moves no load before a store", delay_stores),
    TilePass(
        "vector_loads",
        "a vector that is loaded as a tile wins the compiler's choice of a layout",
        lambda program, _: load_vectors_in_one_dim(program),
    ),
    TilePass(
        "last_block",
        "only the last program of a flat kernel needs a mask",
        lambda program, _: peel_last_block(program),
    ),
    TilePass(
        "unswitched_loops",
        "a compiler multiplies by zeros, and waits for loads that a mask of the whole program hides",
        lambda program, _: unswitch_loops(program),
    ),
    TilePass("unused", "nothing reads it", lambda program, _: drop_unused(program)),
)
"""What every tile program goes through before it is printed."""


def run_passes(program: TileProgram, waiting: int) -> TileProgram:
    """Returns the program after all passes.

    Args:
        program: as a kernel's body has written it.
        waiting: most stores that wait for loads; 0 where what is stored may be what is loaded behind it.
    """
    for each in TILE_PASSES:
        program = each.apply(program, waiting)
    return program
