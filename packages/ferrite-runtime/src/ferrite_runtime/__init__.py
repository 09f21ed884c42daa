"""Loads, tunes and runs compiled programs: Triton kernels with a data-only launch plan.

Importing this package imports neither torch nor Triton; both are imported when a program is loaded.
"""

from __future__ import annotations

from .config import Config
from .errors import (
    DeviceUnavailable,
    DriverError,
    ExternError,
    FerriteRuntimeError,
    IdentityMismatch,
    InputError,
    KernelCompileError,
    KernelRunError,
    NoUsableConfig,
    OptionError,
    OutOfResources,
    SpecError,
    UnknownField,
    UnknownFormat,
    WorkerError,
)
from .loaded import LoadedProgram, load_program
from .options import Options
from .program import Program
from .spec import KernelSpec

__version__ = "0.1.0"

__all__ = [
    "Config",
    "DeviceUnavailable",
    "DriverError",
    "ExternError",
    "FerriteRuntimeError",
    "IdentityMismatch",
    "InputError",
    "KernelCompileError",
    "KernelRunError",
    "KernelSpec",
    "LoadedProgram",
    "NoUsableConfig",
    "Options",
    "OptionError",
    "OutOfResources",
    "Program",
    "SpecError",
    "UnknownField",
    "UnknownFormat",
    "WorkerError",
    "load_program",
]
