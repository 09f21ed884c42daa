"""Tile programs: what one program instance of a kernel does, on blocks of values.

In comes what `bodies` make of a scheduled kernel; out goes a program for the passes over tiles and the printers.
Bodies write with it; facts and the modules that put kernels together read it.
"""

from .evaluate import run_program
from .language import Expression, Literal, Name, TileType, Variable, names_in, parts_of
from .parse import parse_tile
from .statements import Carried, Do, For, If, Let, Statement, TileProgram, expressions_of
from .text import tile_text
from .tile_values import UNDEFINED, EvaluationError
from .types import types_of
from .verify import TileError, require_valid, verify

__all__ = [
    "UNDEFINED",
    "Carried",
    "Do",
    "EvaluationError",
    "Expression",
    "For",
    "If",
    "Let",
    "Literal",
    "Name",
    "Statement",
    "TileError",
    "TileProgram",
    "TileType",
    "Variable",
    "expressions_of",
    "names_in",
    "parse_tile",
    "parts_of",
    "require_valid",
    "run_program",
    "tile_text",
    "types_of",
    "verify",
]
