"""Loads, tunes and runs compiled programs: Triton kernels with a data-only launch plan.

Importing this package imports neither torch nor Triton, and next to nothing of its own: every name is imported when it
is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrite_runtime.ahead_of_time.program_tuning import TuningReport, tune
    from ferrite_runtime.bundles.building import bundle_kernels, prebuild
    from ferrite_runtime.bundles.bundle import Bundle
    from ferrite_runtime.bundles.entries import Backward, Entry, Variant, Weight
    from ferrite_runtime.bundles.structure import describe
    from ferrite_runtime.compilation.compiler import choose_store
    from ferrite_runtime.compilation.cross_compilation import CrossReport, cross_compile
    from ferrite_runtime.compilation.triton_adapter import triton_version
    from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices, typical_device
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
        IndexCheckFailed,
        IndexOutOfBounds,
        InputError,
        InterpreterUnavailable,
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
        UserKernelRunError,
        UserKernelSpecError,
        ValueRefused,
        VersionUnsupported,
        WeightMissing,
        WorkerError,
    )
    from ferrite_runtime.formats.config import Config
    from ferrite_runtime.formats.kernel_spec import KernelSpec
    from ferrite_runtime.formats.layouts import Layout
    from ferrite_runtime.formats.program import Program
    from ferrite_runtime.formats.target import Target
    from ferrite_runtime.kernel_source.user_kernels import user_kernel
    from ferrite_runtime.loading.loaded_bundle import LoadedBundle, load
    from ferrite_runtime.loading.loaded_program import LoadedProgram, load_program
    from ferrite_runtime.loading.single_kernel import Kernel
    from ferrite_runtime.loading.warm_up import warm_up
    from ferrite_runtime.policies.candidates import configs
    from ferrite_runtime.process.options import Options
    from ferrite_runtime.store.interface import Store, load_record, save_record

__version__ = "0.1.0"

_MODULES = {
    "bundles.bundle": ("Bundle",),
    "bundles.building": ("bundle_kernels", "prebuild"),
    "compilation.compiler": ("choose_store",),
    "formats.config": ("Config",),
    "compilation.cross_compilation": ("CrossReport", "cross_compile"),
    "devices.descriptors": ("DeviceFacts", "known_devices", "typical_device"),
    "bundles.entries": ("Backward", "Entry", "Variant", "Weight"),
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
        "IndexCheckFailed",
        "IndexOutOfBounds",
        "InputError",
        "InterpreterUnavailable",
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
        "UserKernelRunError",
        "UserKernelSpecError",
        "UserKernelCompileError",
        "ValueRefused",
        "WeightMissing",
        "VersionUnsupported",
        "WorkerError",
    ),
    "loading.single_kernel": ("Kernel",),
    "loading.loaded_program": ("LoadedProgram", "load_program"),
    "loading.loaded_bundle": ("LoadedBundle", "load"),
    "process.options": ("Options",),
    "policies.candidates": ("configs",),
    "formats.program": ("Program",),
    "formats.kernel_spec": ("KernelSpec",),
    "loading.warm_up": ("warm_up",),
    "formats.layouts": ("Layout",),
    "store.interface": ("Store", "load_record", "save_record"),
    "bundles.structure": ("describe",),
    "formats.target": ("Target",),
    "compilation.triton_adapter": ("triton_version",),
    "ahead_of_time.program_tuning": ("TuningReport", "tune"),
    "kernel_source.user_kernels": ("user_kernel",),
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
    "IndexCheckFailed",
    "IndexOutOfBounds",
    "InputError",
    "InterpreterUnavailable",
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
    "UserKernelRunError",
    "UserKernelSpecError",
    "ValueRefused",
    "Variant",
    "VersionUnsupported",
    "Weight",
    "WeightMissing",
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
