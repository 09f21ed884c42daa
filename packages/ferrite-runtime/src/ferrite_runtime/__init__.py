"""Loads, tunes and runs compiled programs: Triton kernels with a data-only launch plan.

Importing this package imports neither torch nor Triton, and next to nothing of its own: every name is imported when it
is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrite_runtime.bundle import Bundle
    from ferrite_runtime.bundling import bundle_kernels, prebuild
    from ferrite_runtime.compilation import choose_store
    from ferrite_runtime.config import Config
    from ferrite_runtime.cross import CrossReport, cross_compile
    from ferrite_runtime.devices import DeviceFacts, known_devices, typical_device
    from ferrite_runtime.entries import Backward, Entry, Variant, Weight
    from ferrite_runtime.errors import (
        KINDS,
        CacheUnwritable,
        CheckFailed,
        CompileFailed,
        DeviceUnavailable,
        DriverError,
        ExternError,
        FerriteRuntimeError,
        FileUnreadable,
        FileUnwritable,
        GuardFailed,
        IdentityMismatch,
        IndexOutOfBounds,
        InputError,
        KernelCompileError,
        KernelRunError,
        LaunchFailed,
        MemoryOutOfBounds,
        NoExport,
        NoPackage,
        NotPinned,
        NoValidVariant,
        NoVariantForTarget,
        OptionError,
        OutOfResources,
        PackageInvalid,
        ProgramFailed,
        SettingWarning,
        SpecError,
        StoreWarning,
        TrustNeeded,
        UnknownField,
        UnknownFormat,
        UserKernelCompileError,
        UserKernelError,
        UserKernelSpecError,
        ValueRefused,
        VersionUnsupported,
        WorkerError,
    )
    from ferrite_runtime.kernel import Kernel
    from ferrite_runtime.loaded import LoadedProgram, load_program
    from ferrite_runtime.model import LoadedBundle, load
    from ferrite_runtime.options import Options
    from ferrite_runtime.policy import configs
    from ferrite_runtime.program import Program
    from ferrite_runtime.spec import KernelSpec
    from ferrite_runtime.starting import warm_up
    from ferrite_runtime.steps import Layout
    from ferrite_runtime.store import Store, load_record, save_record
    from ferrite_runtime.structure import describe
    from ferrite_runtime.target import Target
    from ferrite_runtime.triton_adapter import triton_version
    from ferrite_runtime.tuner import TuningReport, tune
    from ferrite_runtime.user import user_kernel

__version__ = "0.1.0"

_MODULES = {
    "bundle": ("Bundle",),
    "bundling": ("bundle_kernels", "prebuild"),
    "compilation": ("choose_store",),
    "config": ("Config",),
    "cross": ("CrossReport", "cross_compile"),
    "devices": ("DeviceFacts", "known_devices", "typical_device"),
    "entries": ("Backward", "Entry", "Variant", "Weight"),
    "errors": (
        "KINDS",
        "CacheUnwritable",
        "CheckFailed",
        "CompileFailed",
        "DeviceUnavailable",
        "DriverError",
        "ExternError",
        "FerriteRuntimeError",
        "FileUnreadable",
        "FileUnwritable",
        "GuardFailed",
        "IdentityMismatch",
        "IndexOutOfBounds",
        "InputError",
        "KernelCompileError",
        "KernelRunError",
        "LaunchFailed",
        "NoExport",
        "NoPackage",
        "MemoryOutOfBounds",
        "NoValidVariant",
        "NoVariantForTarget",
        "NotPinned",
        "OptionError",
        "OutOfResources",
        "PackageInvalid",
        "SettingWarning",
        "SpecError",
        "StoreWarning",
        "ProgramFailed",
        "TrustNeeded",
        "UnknownField",
        "UnknownFormat",
        "UserKernelError",
        "UserKernelSpecError",
        "UserKernelSpecError",
        "UserKernelCompileError",
        "ValueRefused",
        "VersionUnsupported",
        "WorkerError",
    ),
    "kernel": ("Kernel",),
    "loaded": ("LoadedProgram", "load_program"),
    "model": ("LoadedBundle", "load"),
    "options": ("Options",),
    "policy": ("configs",),
    "program": ("Program",),
    "spec": ("KernelSpec",),
    "starting": ("warm_up",),
    "steps": ("Layout",),
    "store": ("Store", "load_record", "save_record"),
    "structure": ("describe",),
    "target": ("Target",),
    "triton_adapter": ("triton_version",),
    "tuner": ("TuningReport", "tune"),
    "user": ("user_kernel",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "KINDS",
    "Backward",
    "Bundle",
    "CacheUnwritable",
    "CheckFailed",
    "CompileFailed",
    "Config",
    "CrossReport",
    "DeviceFacts",
    "DeviceUnavailable",
    "DriverError",
    "Entry",
    "ExternError",
    "FerriteRuntimeError",
    "FileUnreadable",
    "FileUnwritable",
    "GuardFailed",
    "IdentityMismatch",
    "IndexOutOfBounds",
    "InputError",
    "Kernel",
    "KernelCompileError",
    "KernelRunError",
    "KernelSpec",
    "LaunchFailed",
    "Layout",
    "LoadedBundle",
    "LoadedProgram",
    "MemoryOutOfBounds",
    "NoExport",
    "NoPackage",
    "NoValidVariant",
    "NoVariantForTarget",
    "NotPinned",
    "OptionError",
    "Options",
    "OutOfResources",
    "PackageInvalid",
    "Program",
    "ProgramFailed",
    "SettingWarning",
    "SpecError",
    "Store",
    "StoreWarning",
    "Target",
    "TrustNeeded",
    "TuningReport",
    "UnknownField",
    "UnknownFormat",
    "UserKernelCompileError",
    "UserKernelError",
    "UserKernelSpecError",
    "ValueRefused",
    "Variant",
    "VersionUnsupported",
    "Weight",
    "WorkerError",
    "bundle_kernels",
    "choose_store",
    "configs",
    "cross_compile",
    "describe",
    "known_devices",
    "load",
    "load_program",
    "load_record",
    "prebuild",
    "save_record",
    "triton_version",
    "tune",
    "typical_device",
    "user_kernel",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
