"""Loads, tunes and runs compiled programs: Triton kernels with a data-only launch plan.

Importing this package imports neither torch nor Triton; both are imported when a program is loaded.
"""

from __future__ import annotations

from ferrite_runtime.config import Config
from ferrite_runtime.cross import CrossReport, cross_compile
from ferrite_runtime.devices import DeviceFacts, known_devices
from ferrite_runtime.errors import (
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
from ferrite_runtime.kernel import Kernel
from ferrite_runtime.loaded import LoadedProgram, load_program
from ferrite_runtime.options import Options
from ferrite_runtime.policy import configs
from ferrite_runtime.pool import warm_up
from ferrite_runtime.program import Program
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.target import Target

__version__ = "0.1.0"

__all__ = [
    "Config",
    "CrossReport",
    "DeviceFacts",
    "DeviceUnavailable",
    "DriverError",
    "ExternError",
    "FerriteRuntimeError",
    "IdentityMismatch",
    "InputError",
    "Kernel",
    "KernelCompileError",
    "KernelRunError",
    "KernelSpec",
    "LoadedProgram",
    "NoUsableConfig",
    "OptionError",
    "Options",
    "OutOfResources",
    "Program",
    "SpecError",
    "Target",
    "UnknownField",
    "UnknownFormat",
    "WorkerError",
    "configs",
    "cross_compile",
    "known_devices",
    "load_program",
    "warm_up",
]
