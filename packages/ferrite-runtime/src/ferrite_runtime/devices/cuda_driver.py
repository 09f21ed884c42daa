"""The CUDA driver through ctypes: load code, launch it; nothing is compiled for that."""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ferrite_runtime.errors import DeviceUnavailable, DriverError, OutOfResources
from ferrite_runtime.formats.binary import Binary

_LOG = logging.getLogger("ferrite_runtime")

_MAX_THREADS, _LOCAL_BYTES, _REGISTERS, _DYNAMIC_SHARED = 0, 3, 4, 8
# What every call says in a process that was forked from one that used the device.
_NOT_INITIALIZED = 3
# Shared memory that every kernel may use without asking.
_FREE_SHARED = 48 * 1024
INVALID_CONTEXT = 201
PARAMETER_BYTES, FEW_PARAMETER_BYTES = 32_764, 4096
"""Bytes that the parameters of a launch may take, from CUDA 12.1 on and before."""
_SINCE_MANY_PARAMETERS = 12_010
_PARAMETERS = "bytes of launch parameters (drivers before CUDA 12.1 take 4096)"
NEVER = 2**32 - 1
"""More programs than a launch can have."""
SINCE_CUDA_12_3 = "cuGraphAddDependencies_v2"
"""The only function of graphs that may be missing: without it kernels start when those before them have ended."""
# By the names that the library exports: those with a version take the structures that ``launch_graph.h`` gives them.
GRAPH_FUNCTIONS = (
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    SINCE_CUDA_12_3,
)
"""What is called of graphs, in the order of ``launch_graph.h``."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""The attribute of a launch that may start before what comes before it in its stream has ended."""


class LaunchAttribute(ctypes.Structure):
    """The driver's CUlaunchAttribute, of a value that is one integer."""

    _fields_ = (
        ("name", ctypes.c_uint),
        ("unused", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class LaunchConfig(ctypes.Structure):
    """The driver's CUlaunchConfig: the shape of a launch and its stream."""

    _fields_ = (
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Function:
    """A function loaded on a device.

    Attributes:
        handle: of the driver.
        module: what it lies in.
        binary: what was loaded.
        registers: per thread, as the driver counts them.
        local_bytes: the same, of stack and spilled registers.
        resident: programs that a multiprocessor holds at once.
        pdl_from: programs from which a launch starts before what comes before it has ended: it waits by itself.
    """

    handle: int
    module: int
    binary: Binary
    registers: int
    local_bytes: int
    resident: int = 1
    pdl_from: int = NEVER


class Driver(Protocol):
    """What the runtime needs of a GPU driver."""

    def load(self, binary: Binary, name: str) -> Function:
        """Returns the function of a binary, loaded on the current device."""

    def launch(self, config: Any, function: Any, params: Any, extra: None) -> int:
        """Launches; returns the driver's status, 0 for success."""

    def entry_points(self) -> tuple[int, int]:
        """Returns the addresses of the C functions behind `launch` and `enter`, for native code."""

    def graph_functions(self) -> bytes:
        """Returns the addresses of the C functions of graphs, as ``launch_graph.h`` reads them, or nothing."""

    def fail(self, status: int, call: str) -> DriverError:
        """Returns the error of a status."""

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies bytes between addresses of the device or of pinned memory, in the order of a stream."""

    def context(self) -> int:
        """Returns the current context."""

    def enter(self, context: int) -> None:
        """Makes a context current in this thread."""


class CudaDriver:
    """The driver library of this machine.

    Attributes:
        parameter_bytes: most bytes that the parameters of a launch may take.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self.parameter_bytes = _parameter_bytes(library)
        self.launch = library.cuLaunchKernelEx
        self._graph_functions = _find_graph_functions(library)

    def entry_points(self) -> tuple[int, int]:
        """Returns the addresses of cuLaunchKernelEx and cuCtxSetCurrent."""
        return _address(self._library.cuLaunchKernelEx), _address(self._library.cuCtxSetCurrent)

    def graph_functions(self) -> bytes:
        """Returns the addresses of the C functions of graphs, as ``launch_graph.h`` reads them, or nothing."""
        return self._graph_functions

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise self.fail(status, name)

    def fail(self, status: int, call: str) -> DriverError:
        """Returns the error of a status, with the driver's own words; a fork that lost the device raises torch's."""
        if status == _NOT_INITIALIZED:
            import torch

            initialise: Callable[[], None] = torch.cuda.init
            initialise()
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(name))
        self._library.cuGetErrorString(status, ctypes.byref(text))
        words = [part.decode() for part in (name.value, text.value) if part]
        return DriverError(f"{call} failed with status {status}: {', '.join(words) or 'unknown'}")

    def load(self, binary: Binary, name: str) -> Function:
        """Returns the function of a binary, loaded on the current device.

        Raises:
            DriverError: if the driver refuses the code.
            OutOfResources: if a launch would need more threads or shared memory than the device has, or more bytes of
                parameters than the driver takes.
        """
        needed = binary.parameter_bytes
        if needed > self.parameter_bytes:
            raise OutOfResources(name, _PARAMETERS, needed, self.parameter_bytes)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary.code)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, binary.entry.encode())
        most = self._attribute(_MAX_THREADS, function)
        if binary.threads > most:
            raise OutOfResources(name, "threads per program", binary.threads, most)
        if binary.shared > _FREE_SHARED:
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, binary.shared)
        return Function(
            int(function.value or 0),
            int(module.value or 0),
            binary,
            self._attribute(_REGISTERS, function),
            self._attribute(_LOCAL_BYTES, function),
            self._resident(function, binary),
        )

    def _resident(self, function: Any, binary: Binary) -> int:
        count = ctypes.c_int()
        shared = ctypes.c_size_t(binary.shared)
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(call, ctypes.byref(count), function, ctypes.c_int(binary.threads), shared)
        return max(1, count.value)

    def _attribute(self, attribute: int, function: Any) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        return value.value

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Copies bytes between addresses of the device or of pinned memory, in the order of a stream."""
        self._call(
            "cuMemcpyAsync",
            ctypes.c_uint64(to),
            ctypes.c_uint64(source),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )

    def context(self) -> int:
        """Returns the current context."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return int(context.value or 0)

    def enter(self, context: int) -> None:
        """Makes a context current in this thread."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(context))


def _parameter_bytes(library: Any) -> int:
    """Returns how many bytes the parameters of a launch may take; few where the driver does not tell its version."""
    version = ctypes.c_int()
    known = hasattr(library, "cuDriverGetVersion") and library.cuDriverGetVersion(ctypes.byref(version)) == 0
    return PARAMETER_BYTES if known and version.value >= _SINCE_MANY_PARAMETERS else FEW_PARAMETER_BYTES


def _address(function: Any) -> int:
    return 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def pack_addresses(functions: Sequence[Any]) -> bytes:
    """Returns the addresses of C functions as a C structure of pointers, null for None."""
    return struct.pack(f"@{len(functions)}P", *map(_address, functions))


def _find_graph_functions(library: Any) -> bytes:
    missing = [name for name in GRAPH_FUNCTIONS if not hasattr(library, name)]
    if missing not in ([], [SINCE_CUDA_12_3]):
        _LOG.info("kernels are launched without graphs: the CUDA driver has no %s", ", ".join(missing))
        return b""
    return pack_addresses([getattr(library, name, None) for name in GRAPH_FUNCTIONS])


@functools.cache
def cuda_driver() -> CudaDriver:
    """Returns the driver of this process.

    The library is called without Python's lock held: a launch waits when the device's queue is full, and another
    thread may be the one that has to empty it.

    Raises:
        DeviceUnavailable: if there is none, or it is too old to launch with attributes (before CUDA 12).
    """
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if not hasattr(library, "cuLaunchKernelEx"):
            raise DeviceUnavailable("the CUDA driver is older than CUDA 12, which the runtime needs")
        return CudaDriver(library)
    raise DeviceUnavailable("no CUDA driver library (libcuda.so.1) is installed")
