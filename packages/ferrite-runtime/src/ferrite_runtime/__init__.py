"""Loads, tunes and runs compiled programs: Triton kernels with a data-only launch plan.

Importing this package imports neither torch nor Triton; both are imported when a program is loaded.
"""

from __future__ import annotations

from ferrite_runtime.compilation import choose_store
from ferrite_runtime.config import Config
from ferrite_runtime.cross import CrossReport, cross_compile
from ferrite_runtime.devices import DeviceFacts, known_devices
from ferrite_runtime.errors import (
    DeviceUnavailable,
    DriverError,
    ExternError,
    FerriteRuntimeError,
    IdentityMismatch,
    IndexOutOfBounds,
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
from ferrite_runtime.store import Store, load_record, save_record
from ferrite_runtime.target import Target
from ferrite_runtime.triton_adapter import triton_version

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
    "IndexOutOfBounds",
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
    "Store",
    "Target",
    "UnknownField",
    "UnknownFormat",
    "WorkerError",
    "choose_store",
    "configs",
    "cross_compile",
    "known_devices",
    "load_program",
    "load_record",
    "save_record",
    "triton_version",
    "warm_up",
]
