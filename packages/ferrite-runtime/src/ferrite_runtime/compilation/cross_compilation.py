"""Compiling a program's kernels for a GPU that is not there, and reporting what they would use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ferrite_runtime.compilation.compiler import shared_compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.descriptors import DeviceFacts, typical_device
from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.target import Target, find_target
from ferrite_runtime.policies.candidates import configs
from ferrite_runtime.process.options import Options


@dataclass(frozen=True, slots=True)
class CompiledRow:
    """One kernel with one config: what it uses, or why it does not compile; sizes in bytes."""

    kernel: str
    id: str
    config: Config
    error: str | None = None
    registers: int | None = None
    local_bytes: int | None = None
    shared: int = 0
    code_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CrossReport:
    """The outcome of a cross-compilation."""

    target: Target
    rows: tuple[CompiledRow, ...]

    @property
    def is_complete(self) -> bool:
        """Tells whether every kernel compiled."""
        return not self.failures

    @property
    def failures(self) -> tuple[CompiledRow, ...]:
        """The rows that did not compile."""
        return tuple(row for row in self.rows if row.error is not None)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        rows = [
            {**{each.name: getattr(row, each.name) for each in fields(row)}, "config": str(row.config)}
            for row in self.rows
        ]
        return {"target": str(self.target), "kernels": rows}

    def __str__(self) -> str:
        lines = [f"{self.target!s:10} {'kernel':40} {'regs':>5} {'stack':>6} {'shared':>7} {'code':>7}  config"]
        for row in self.rows:
            numbers = f"{_text(row.registers):>5} {_text(row.local_bytes):>6} {row.shared:>7} {row.code_bytes:>7}"
            lines.append(f"{'FAILED' if row.error else 'ok':10} {row.kernel:40} {numbers}  {row.config}")
            if row.error:
                lines.extend(f"    {line}" for line in row.error.splitlines())
        return "\n".join(lines)


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)


def cross_compile(
    program: Program | Mapping[str, Any],
    target: Target | str,
    *,
    options: Options | None = None,
    device: DeviceFacts | None = None,
) -> CrossReport:
    """Returns what compiling every kernel of a program for ``target`` gives; needs no GPU.

    Args:
        program: a program, or its mapping.
        target: a target or its name: sm_80, sm_90, sm_100, sm_120, gfx942, …
        options: ``tune`` says which configs of each kernel are compiled: the first choice or more.
        device: facts for the config policies; those of a typical device of the target without it.

    Raises:
        SpecError: if the program is malformed.
        OptionError: if the target's name is unknown.
    """
    options = options or Options(tune="none")
    program = program if isinstance(program, Program) else Program.from_mapping(program)
    target = find_target(target) if isinstance(target, str) else target
    return cross_compile_kernels(program.kernels, target, options, device or typical_device(target))


def cross_compile_kernels(
    kernels: Iterable[KernelSpec], target: Target, options: Options, device: DeviceFacts
) -> CrossReport:
    """Returns what compiling kernels for ``target`` gives."""
    compiler = shared_compiler(options)
    jobs = [Job(spec, config, target) for spec in kernels for config in configs(spec, device, options.tune)]
    futures = [compiler.submit(job) for job in jobs]
    return CrossReport(target, tuple(_row(job, future) for job, future in zip(jobs, futures, strict=True)))


def _row(job: Job, future: Any) -> CompiledRow:
    try:
        binary = future.result()
    except FerriteRuntimeError as error:
        return CompiledRow(job.spec.name, job.spec.id, job.config, error=getattr(error, "message", str(error)))
    return CompiledRow(
        job.spec.name,
        job.spec.id,
        job.config,
        None,
        binary.registers,
        binary.local_bytes,
        binary.shared,
        len(binary.code),
    )
