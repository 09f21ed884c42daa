"""Sequences of launches that one native call starts: their descriptions, and the text of the call."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.cuda_kernels import DeviceKernel
from ferrite_runtime.dtypes import DTYPES
from ferrite_runtime.grids import constant_depths, programs_text
from ferrite_runtime.host import Argument, Site
from ferrite_runtime.launch import MAX_PROGRAMS, LoadedKernel, argument_offsets, check_packing, pack_format
from ferrite_runtime.native_launcher import NativeLauncher
from ferrite_runtime.spec import Param

# Limits of the native side: values of one call, and launches so that their arguments stay on the stack.
MAX_VALUES = 1000
MAX_LAUNCHES = 256

_POINTER, _SIGNED, _UNSIGNED, _FLOAT, _BOOLEAN = range(5)
# "x" pads to the alignment that C gives the structures; see sequence.c.
_HEADER = struct.Struct("=II")
_RECORD = struct.Struct("=QIIIIIiIII4x")
_FILL = struct.Struct("=IIHHIq")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A launch that waits to be started with others; ``sources`` are value numbers or literals, one per param."""

    kernel: DeviceKernel
    loaded: LoadedKernel
    sources: tuple[tuple[str, Any, int], ...]
    programs: int
    programs_value: int
    depths: tuple[int, int]


def fill_of(param: Param, value: int, offset: int, addend: int) -> bytes:
    """Returns the packed rule by which one value of a call becomes an argument."""
    if param.role == "tensor":
        return _FILL.pack(value, offset, _POINTER, 8, param.align or 0, addend)
    code = str(DTYPES[param.dtype].pack)
    kind = _BOOLEAN if code == "?" else _FLOAT if code in "fd" else _SIGNED if code.islower() else _UNSIGNED
    return _FILL.pack(value, offset, kind, struct.calcsize(f"={code}"), 0, 0)


def _padded(data: bytes, to: int = 8) -> bytes:
    return data + bytes(-len(data) % to)


def describe_launch(launch: Waiting) -> bytes:
    """Returns the description of one launch: its shape, where its arguments lie and how they are filled in."""
    function, params = launch.loaded.function, launch.loaded.params
    binary = function.binary
    pack = pack_format(params)
    check_packing(function, pack)
    offsets = argument_offsets(pack)
    size = struct.calcsize(pack)
    hidden_at = size + -size % 8
    literals = [value if kind == "literal" else 0 for kind, value, _ in launch.sources]
    template = struct.pack(pack, *literals).ljust(hidden_at, b"\0") + bytes(8 if binary.hidden else 0)
    fills = [
        fill_of(param, value, offset, addend)
        for param, offset, (kind, value, addend) in zip(params, offsets, launch.sources, strict=True)
        if kind == "value"
    ]
    all_offsets = (*offsets, *([hidden_at] * binary.hidden))
    record = _RECORD.pack(
        function.handle,
        launch.programs,
        *launch.depths,
        binary.threads,
        binary.shared,
        launch.programs_value,
        len(template),
        len(all_offsets),
        len(fills),
    )
    return record + _padded(struct.pack(f"={len(all_offsets)}I", *all_offsets)) + b"".join(fills) + _padded(template)


def describe_sequence(launches: Sequence[Waiting], values: int) -> bytes:
    """Returns the description of launches that take so many values, as ``sequence.c`` reads it."""
    return _HEADER.pack(values, len(launches)) + b"".join(map(describe_launch, launches))


class Remainder:
    """What the native side leaves to Python: launches with values it refuses, and errors of the driver."""

    def __init__(self, launches: Sequence[Waiting]) -> None:
        self.launches = tuple(launches)

    def __call__(self, code: int, stream: int, *values: Any) -> None:
        """Launches everything (code -1), or raises what a launch failed with.

        Raises:
            DriverError: naming the kernel whose launch failed.
        """
        if code != -1:
            failed, status = self.launches[(code >> 16) - 1], code & 0xFFFF
            raise failed.kernel.machine.driver.fail(status, f"launching {failed.loaded.name}")
        for launch in self.launches:
            arguments = [values[value] + addend if kind == "value" else value for kind, value, addend in launch.sources]
            launch.kernel.launch(stream, arguments)


@dataclass(slots=True)
class SequenceWriter:
    """Writes launches so that those without anything between them start together.

    ``names`` are the globals that the text needs.
    """

    kernels: Mapping[str, DeviceKernel]
    native: NativeLauncher
    names: dict[str, Any] = field(default_factory=dict)
    _launches: list[Waiting] = field(default_factory=list)
    _values: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def write(self, site: Site) -> Iterable[str]:
        """Yields the lines of one launch: none, if it can wait."""
        kernel = self.kernels[site.kernel.id]
        depths = constant_depths(site, kernel)
        if kernel.config is None or depths is None or any(argument.misaligned for argument in site.arguments):
            yield from self.flush()
            values = "".join(f"{argument.text}, " for argument in site.arguments)
            self.names[f"_slow{site.number}"] = kernel.launch
            yield f"_slow{site.number}(_stream, ({values}))"
            return
        programs = programs_text(site, kernel)
        is_static = programs.lstrip("-").isdigit()
        if min(int(programs) if is_static else 1, *depths) <= 0:
            yield "# nothing to do: no programs"
            return
        if len(self._launches) == MAX_LAUNCHES or len(self._values) + len(site.arguments) >= MAX_VALUES:
            yield from self.flush()
        if is_static and int(programs) > MAX_PROGRAMS:
            kernel.programs(kernel.config, [argument.literal for argument in site.arguments])
        self._launches.append(
            Waiting(
                kernel,
                kernel.loaded(kernel.config),
                tuple(self._source(argument) for argument in site.arguments),
                int(programs) if is_static else 0,
                -1 if is_static else self._value(programs),
                depths,
            )
        )

    def _source(self, argument: Argument) -> tuple[str, Any, int]:
        if argument.literal is not None:
            return ("literal", argument.literal, 0)
        return ("value", self._value(argument.base), argument.offset)

    def _value(self, text: str) -> int:
        return self._values.setdefault(text, len(self._values))

    def flush(self) -> list[str]:
        """Returns the line that starts every launch that waits."""
        if not self._launches:
            return []
        name = f"_run{self._count}"
        description = describe_sequence(self._launches, len(self._values))
        machine, context = self._launches[0].kernel.machine, self._launches[0].loaded.context
        self.names[name] = self.native.bind(machine.driver, context, description, Remainder(self._launches))
        line = f"{name}({', '.join(['_stream', *self._values])})"
        self._count += 1
        self._launches, self._values = [], {}
        return [line]
