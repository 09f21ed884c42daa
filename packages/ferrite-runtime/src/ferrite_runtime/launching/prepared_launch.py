"""Launch sites: everything about one launch that can be prepared, prepared."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

from ferrite_runtime.devices.cuda_driver import (
    INVALID_CONTEXT,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    Driver,
    Function,
    LaunchAttribute,
    LaunchConfig,
)
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import SCRATCH, Param

MAX_PROGRAMS = 2**31 - 1

_PDL = LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
"""What has a kernel start before the one before it in its stream has ended."""


def pack_format(params: Sequence[Param]) -> str:
    """Returns the ``struct`` format of the arguments, laid out as a C compiler, and the driver, would."""
    return "@" + "".join("P" if param.role == "tensor" else str(DTYPES[param.dtype].pack) for param in params)


def argument_offsets(pack: str) -> tuple[int, ...]:
    """Returns the offset of every argument in a buffer packed with a format."""
    codes = pack[1:]
    return tuple(struct.calcsize(f"@{codes[: i + 1]}") - struct.calcsize(f"@{codes[i]}") for i in range(len(codes)))


def hidden_offsets(function: Function, params: Sequence[Param], offsets: Sequence[int], null: int) -> tuple[int, ...]:
    """Returns where in a buffer of arguments those lie that the compiler appended: nothing, at ``null``, for most.

    The first one is the address of scratch memory; the memory is that of a param, whose argument it shares.
    """
    hidden = [null] * function.binary.hidden
    for param, offset in zip(params, offsets, strict=True):
        if param.access == SCRATCH and hidden:
            hidden[0] = offset
    return tuple(hidden)


class LaunchSite:
    """The prepared parts of a launch: an argument buffer, pointers into it, and the launch configuration.

    A site may be used by one thread at a time.
    """

    __slots__ = ("_owned", "buffer", "config", "config_pointer", "function", "pack", "params_pointer")

    def __init__(
        self, function: Function, params: Sequence[Param], programs: int, depths: tuple[int, int] = (1, 1)
    ) -> None:
        binary = function.binary
        pack = pack_format(params)
        check_packing(function, pack)
        offsets = argument_offsets(pack)
        self.buffer = ctypes.create_string_buffer(struct.calcsize(pack) + 8 * (binary.hidden + 1))
        base = ctypes.addressof(self.buffer)
        places = (*offsets, *hidden_offsets(function, params, offsets, len(self.buffer) - 8))
        pointers = (ctypes.c_void_p * max(1, len(places)))(*(base + place for place in places))
        uses_pdl = programs * math.prod(depths) >= function.pdl_from
        attributes = (ctypes.addressof(_PDL), 1) if uses_pdl else (None, 0)
        self.config = LaunchConfig(programs, *depths, binary.threads, 1, 1, binary.shared, None, *attributes)
        # Holding the objects in made-up pointer objects keeps ctypes from converting them on every call.
        self.config_pointer = ctypes.c_void_p(ctypes.addressof(self.config))
        self.params_pointer = ctypes.c_void_p(ctypes.addressof(pointers))
        self.function = ctypes.c_void_p(function.handle)
        self.pack = struct.Struct(pack).pack_into
        self._owned = pointers


def check_packing(function: Function, pack: str) -> None:
    """Raises `SpecError` unless the arguments have the sizes that the compiled function's parameters have."""
    sizes = function.binary.param_sizes
    packed = tuple(struct.calcsize(f"@{code}") for code in pack[1:])
    if sizes and sizes[: len(packed)] != packed:
        raise SpecError("params", f"{function.binary.entry} takes parameters of {sizes} bytes, its spec gives {packed}")


class LoadedKernel:
    """A kernel's function on one device, for launches that are not prepared."""

    __slots__ = ("_driver", "context", "function", "name", "params")

    def __init__(self, name: str, params: Sequence[Param], function: Function, driver: Driver, context: int) -> None:
        self.name = name
        self.params = tuple(params)
        self.function = function
        self._driver = driver
        self.context = context

    def launch(self, stream: int, programs: int, arguments: Sequence[Any], depths: tuple[int, int] = (1, 1)) -> None:
        """Launches on a stream; nothing happens for zero programs, along any of the three axes of the grid.

        Raises:
            DriverError: if the driver refuses.
        """
        if min(programs, *depths) <= 0:
            return
        site = LaunchSite(self.function, self.params, programs, depths)
        site.config.stream = stream
        site.pack(site.buffer, 0, *arguments)
        self.start(site)

    def start(self, site: LaunchSite) -> None:
        """Launches a site that is filled in.

        A thread that never called the CUDA runtime has no context; it gets the one that the kernel was loaded in.
        """
        status = self._driver.launch(site.config_pointer, site.function, site.params_pointer, None)
        if status == INVALID_CONTEXT:
            self._driver.enter(self.context)
            status = self._driver.launch(site.config_pointer, site.function, site.params_pointer, None)
        if status:
            raise self._driver.fail(status, f"launching {self.name}")
