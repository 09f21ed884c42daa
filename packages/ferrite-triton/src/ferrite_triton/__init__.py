"""Writes Triton kernels, their specs and a launch plan from a schedule. Text only: needs neither torch nor Triton."""

from ferrite_triton.errors import EmitError, ScheduleMismatch, UnsupportedDefinition, UnsupportedSize, UnsupportedUpdate
from ferrite_triton.host.spec import KernelSpec
from ferrite_triton.kernels import emit_kernel, tile_programs
from ferrite_triton.program import Program, emit_program

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
