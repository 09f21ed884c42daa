"""Making bundles: kernels packed as they are, and compiled beforehand for GPUs that need not be there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from ferrite_runtime.bundles.bundle import Bundle, Prebuilt, producer_version
from ferrite_runtime.compilation.compiler import shared_compiler
from ferrite_runtime.compilation.triton_adapter import Job, triton_version
from ferrite_runtime.devices.descriptors import typical_device
from ferrite_runtime.errors import CompileFailed, NoValidVariant, OutOfResources
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target, find_ptx_target, find_target
from ferrite_runtime.policies.candidates import configs
from ferrite_runtime.process.option_ranges import Range
from ferrite_runtime.process.options import Options, check_arguments


def bundle_kernels(
    kernels: KernelSpec | Iterable[KernelSpec],
    *,
    name: str = "kernels",
    targets: Sequence[str] = (),
    ptx: str | None = None,
    options: Options | None = None,
) -> Bundle:
    """Returns a bundle of single kernels, each with binaries of all its configs; see `prebuild` for the rest.

    Raises:
        OptionError: what is to be packed are no kernel specs.
    """
    check_arguments("bundle_kernels", {"kernels": Range((KernelSpec, Iterable))}, kernels=kernels)
    specs = [kernels] if isinstance(kernels, KernelSpec) else list(kernels)
    for spec in specs:
        check_arguments("bundle_kernels", {"kernels": Range((KernelSpec,))}, kernels=spec)
    producer = {"name": "ferrite-runtime", "version": producer_version()}
    bundle = Bundle(name, {spec.id: spec for spec in specs}, producer=producer)
    return prebuild(bundle, targets, ptx=ptx, options=options or Options(tune="max"))


def prebuild(
    bundle: Bundle,
    targets: Sequence[str],
    *,
    ptx: str | None = None,
    options: Options | None = None,
) -> Bundle:
    """Returns a bundle with its kernels compiled for some targets; no GPU is needed.

    Of each kernel there is one build more, with its first config, for tensors that break its alignment promises.

    Args:
        bundle: the bundle.
        targets: names of targets, such as ``sm_90`` and ``gfx942``.
        ptx: name of a target to add PTX for: NVIDIA GPUs without a binary of their own, if they are newer than it, run
            that, compiled by their driver.
        options: ``tune`` says which configs of each kernel are compiled: the first choice, a few, or all.

    Raises:
        OptionError: if a target's name is unknown.
        NoValidVariant: if no config of a kernel compiles for a target.
    """
    options = options or Options()
    wanted = [(find_target(name), False) for name in dict.fromkeys(targets)]
    if ptx is not None:
        wanted.append((find_ptx_target(ptx), True))
    compiler = shared_compiler(options)
    jobs: list[Job] = []
    for target, wants_ptx in wanted:
        for spec in kernels_for(bundle, target):
            tune = "none" if wants_ptx else options.tune
            found = configs(spec, typical_device(target), tune)
            jobs += [Job(spec, config, target, wants_ptx=wants_ptx) for config in found]
            if _makes_promises(spec):
                jobs.append(Job(spec, found[0], target, aligned=False, wants_ptx=wants_ptx))
    futures = [compiler.submit(job) for job in jobs]
    added, failures = [], {}
    for job, future in zip(jobs, futures, strict=True):
        try:
            binary = _fitting(job, future.result())
        except (CompileFailed, OutOfResources) as error:
            failures[job.spec.id, job.target, job.wants_ptx, job.config] = f"{job.target}: {error}"
            continue
        blob = hashlib.sha256(binary.code).hexdigest()
        added.append((_entry(job, binary.header(), blob), binary.code))
    _check_complete(bundle, wanted, [entry for entry, _ in added], failures.values())
    return bundle.with_binaries(added)


def kernels_for(bundle: Bundle, target: Target) -> tuple[KernelSpec, ...]:
    """Returns the kernels that a target runs: all but those of programs scheduled for other targets alone."""
    variants = [variant for entry in bundle.entries.values() for variant in entry.variants]
    if not any(str(target) in variant.targets for variant in variants):
        return tuple(bundle.kernels.values())
    names = {variant.forward for variant in variants if str(target) in variant.targets or not variant.targets}
    names |= {variant.backward.program for variant in variants if variant.backward and variant.forward in names}
    wanted = {spec.id for name in names for spec in bundle.programs[name].kernels}
    used = {spec.id for program in bundle.programs.values() for spec in program.kernels}
    return tuple(spec for key, spec in bundle.kernels.items() if key in wanted or key not in used)


def _fitting(job: Job, binary: Binary) -> Binary:
    """Returns the binary; raises `OutOfResources` if it needs more shared memory than GPUs of its target have."""
    shared = typical_device(job.target).shared_per_program
    if binary.shared > shared:
        raise OutOfResources(job.spec.name, "shared memory bytes", binary.shared, shared)
    return binary


def _makes_promises(spec: KernelSpec) -> bool:
    """Tells whether a build without alignment promises would differ."""
    return any(param.role == "tensor" and (param.align or 0) >= 16 for param in spec.params)


def _entry(job: Job, header: dict[str, object], blob: str) -> Prebuilt:
    form = "ptx" if job.wants_ptx else "cubin" if job.target.backend == "cuda" else "hsaco"
    version = f"triton {triton_version()}"
    return Prebuilt(job.spec.id, job.config, job.target, job.aligned, form, version, header, blob)


def _check_complete(
    bundle: Bundle, wanted: Sequence[tuple[Target, bool]], added: Sequence[Prebuilt], failures: Iterable[str]
) -> None:
    built = {(entry.kernel, entry.target, entry.form == "ptx") for entry in added}
    for target, wants_ptx in wanted:
        for spec in kernels_for(bundle, target):
            if (spec.id, target, wants_ptx) not in built:
                reasons = [reason for reason in failures if spec.name in reason]
                raise NoValidVariant(f"kernel {spec.name} has no config that compiles for {target}:", reasons)


def shipped_configs(bundle: Bundle, kernel: str, target: str) -> tuple[Config, ...]:
    """Returns the configs of a kernel that a bundle has code of for exactly this target."""
    entries = (entry for entry in bundle.binaries if entry.kernel == kernel and str(entry.target) == target)
    return tuple(dict.fromkeys(entry.config for entry in entries))
