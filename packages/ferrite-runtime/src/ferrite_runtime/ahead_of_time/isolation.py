"""Measuring in another process, so that a launch that faults or hangs takes nothing along but its own time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ferrite_runtime.compilation.worker_messages import encode_frame
from ferrite_runtime.compilation.worker_pool import Worker
from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.errors import LaunchFailed, OutOfResources, WorkerError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.resources import Usage, usage_of
from ferrite_runtime.tuning.protection import changed_params, extent_bytes
from ferrite_runtime.tuning.timing import HANG_SECONDS

START_SECONDS = 120.0
# Integers steer kernels, so their real values are sent along, unless there are more bytes of them than this.
MAX_SENT = 64 << 20
# Places keep their distance from the boundary that torch allocates at.
BOUNDARY = 512


class Isolation:
    """A process that measures for this one; started when it is needed, and again after it died.

    Args:
        start: makes the process; tests pass their own.
        hang_seconds: how long it may be silent before it counts as hung.
    """

    def __init__(self, start: Callable[[], Worker], hang_seconds: float = HANG_SECONDS + 10.0) -> None:
        self._start = start
        self._hang_seconds = hang_seconds
        self._worker: Worker | None = None

    @classmethod
    def start(cls, index: int) -> Isolation:
        """Returns what measures on torch's GPU number ``index``."""
        command = [sys.executable, "-P", "-m", "ferrite_runtime.ahead_of_time.trial_worker", str(index)]
        return cls(lambda: Worker.start(command, "measuring process"))

    @contextlib.contextmanager
    def bench(self, kernel: DeviceKernel, arguments: Sequence[Any], owners: Sequence[Any]) -> Iterator[IsolatedBench]:
        """Gives a workbench for a kernel and arguments like these.

        Raises:
            OutOfResources: if there is no memory for a second set of arguments.
        """
        bench = IsolatedBench(self, kernel, describe_launch(kernel, arguments, owners), tuple(arguments))
        bench.open()
        yield bench

    def ask(self, head: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        """Returns the answer to a message; raises `WorkerError` if the process died or hung: it is then ended."""
        if self._worker is None:
            self._worker = self._start()
            self._receive(START_SECONDS)
        try:
            self._worker.send(encode_frame(head, body))
        except WorkerError:
            self.close()
            raise
        answer = self._receive(self._hang_seconds)
        if answer.get("is_lost"):
            self.close()  # a device that faulted, or still runs what hangs, serves nobody
        return answer

    def _receive(self, seconds: float) -> dict[str, Any]:
        assert self._worker is not None
        try:
            return self._worker.receive(seconds)[0]
        except WorkerError:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Tells whether the process is there."""
        return self._worker is not None

    def close(self) -> None:
        """Ends the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class IsolatedBench:
    """A workbench whose launches happen in another process; its binaries are made in this one's compile workers."""

    def __init__(
        self,
        isolation: Isolation,
        kernel: DeviceKernel,
        launch: tuple[dict[str, Any], bytes],
        arguments: tuple[Any, ...],
    ) -> None:
        self._isolation = isolation
        self._kernel = kernel
        self._launch = launch
        self._arguments = arguments
        self._loaded: set[Config] = set()

    def open(self) -> None:
        """Has the arguments made in the other process.

        Raises:
            OutOfResources: if they do not fit there.
            LaunchFailed: if it does not work otherwise.
        """
        self._loaded = set()
        answer = self._ask({"do": "open", **self._launch[0]}, self._launch[1])
        if answer.get("memory"):
            have = int(answer.get("have", 0))
            raise OutOfResources(self._kernel.spec.name, "bytes for arguments", int(answer["memory"]), have)

    def begin(self, configs: Sequence[Config]) -> None:
        """Starts compiling configs."""
        self._kernel.submit(configs)

    def examine(self, config: Config) -> Usage:
        """Returns what a compiled config uses, as far as its binary says."""
        return usage_of(self._kernel.binary(config))

    def sample(self, config: Config, count: int) -> list[float]:
        """Returns the times of so many launches in milliseconds; raises `LaunchFailed`."""
        if not self._isolation.is_running:
            self.open()  # the one before took the process along
        if config not in self._loaded:
            binary = self._kernel.binary(config)
            grid = [self._kernel.programs(config, self._arguments), *self._kernel.depths(config, self._arguments)]
            self._ask({"do": "load", "config": str(config), "grid": grid, "header": binary.header()}, binary.code)
            self._loaded.add(config)
        times = self._ask({"do": "sample", "config": str(config), "count": count})["times"]
        return [float(each) for each in times]

    def _ask(self, head: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        try:
            answer = self._isolation.ask(head, body)
        except WorkerError as error:
            raise LaunchFailed(f"measured apart, {error}") from error
        if not answer.get("ok"):
            raise LaunchFailed(str(answer.get("message", "the measuring process gave no reason")))
        return answer


def describe_launch(
    kernel: DeviceKernel, arguments: Sequence[Any], owners: Sequence[Any]
) -> tuple[dict[str, Any], bytes]:
    """Returns a launch as data: what it takes to make arguments like these, and the contents of integer tensors."""
    positions: dict[int, int] = {}
    tensors: list[dict[str, Any]] = []
    contents: list[bytes] = []
    room = MAX_SENT
    given: list[Any] = []
    for value, owner in zip(arguments, owners, strict=True):
        if owner is None:
            given.append({"number": value})
            continue
        if id(owner) not in positions:
            positions[id(owner)] = len(tensors)
            content = read_integers(owner, room)
            room -= len(content)
            tensors.append(
                {
                    "bytes": max(1, extent_bytes(owner)),
                    "misalignment": owner.data_ptr() % BOUNDARY,
                    "dtype": str(owner.dtype).removeprefix("torch."),
                    "sent": len(content),
                }
            )
            contents.append(content)
        given.append({"tensor": positions[id(owner)], "offset": value - owner.data_ptr()})
    changed = changed_params(kernel.spec, owners)
    head = {
        "name": kernel.spec.name,
        "params": [param.to_mapping() for param in kernel.spec.params],
        "tensors": tensors,
        "arguments": given,
        "restored": [positions[id(owners[position])] for position in changed],
        "each": any(kernel.spec.params[position].dtype[0] in "iu" for position in changed),
        "cache_bytes": kernel.machine.facts.l2_bytes,
    }
    return head, b"".join(contents)


def read_integers(tensor: Any, room: int) -> bytes:
    """Returns what lies from a tensor's first to its last element, if that is integers and there is room; else b""."""
    import torch

    if tensor.is_floating_point() or tensor.is_complex() or extent_bytes(tensor) > room or tensor.numel() == 0:
        return b""
    flat = tensor.as_strided((extent_bytes(tensor) // tensor.element_size(),), (1,))
    return bytes(flat.contiguous().view(torch.uint8).cpu().numpy().tobytes())
