"""Writes Triton kernels, their specs and a launch plan from a schedule. Text only: needs neither torch nor Triton."""

from .errors import EmitError, ScheduleMismatch, UnsupportedDefinition, UnsupportedSize, UnsupportedUpdate
from .kernels import emit_kernel, tile_programs
from .program import Program, emit_program
from .spec import KernelSpec

__all__ = [
    "EmitError",
    "KernelSpec",
    "Program",
    "ScheduleMismatch",
    "UnsupportedDefinition",
    "UnsupportedSize",
    "UnsupportedUpdate",
    "emit_kernel",
    "emit_program",
    "tile_programs",
]
