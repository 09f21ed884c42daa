"""A measuring process: makes arguments, loads binaries and times them.

``python -m ferrite_runtime.ahead_of_time.trial_worker GPU`` reads messages from its standard input and answers on its
output; see `ferrite_runtime.ahead_of_time.isolation` for the other end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from ferrite_runtime.ahead_of_time.example_inputs import fill
from ferrite_runtime.compilation.worker import follow_parent
from ferrite_runtime.compilation.worker_messages import encode_frame, read_frame
from ferrite_runtime.devices.cuda_driver import Driver
from ferrite_runtime.errors import FerriteRuntimeError, LaunchFailed
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.kernel_spec import Param
from ferrite_runtime.launching.prepared_launch import LaunchSite, LoadedKernel
from ferrite_runtime.tuning.protection import Protection, make_backup
from ferrite_runtime.tuning.timing import Meter

BOUNDARY = 512


class Trials:
    """One kernel with one set of arguments, on a device.

    Args:
        driver: loads and launches.
        make_meter: makes what times launches, for a cache of so many bytes.
        device: the ``torch.device``.
        stream: the stream.
    """

    def __init__(self, driver: Driver, make_meter: Callable[[int], Meter], device: Any, stream: int) -> None:
        self._driver = driver
        self._make_meter = make_meter
        self._device = device
        self._stream = stream
        self._launch: dict[str, Any] = {}
        self._params: tuple[Param, ...] = ()
        self._storage: list[tuple[Any, int, int]] = []
        self._values: list[Any] = []
        self._runs: dict[str, Callable[[], None]] = {}
        self._protection: Protection | None = None

    def answer(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        """Returns the answer to a message."""
        import torch

        try:
            match head["do"]:
                case "open":
                    return self._open(head, body)
                case "load":
                    return self._load(head, body)
                case "sample":
                    return self._sample(head["config"], head["count"])
                case other:
                    return {"ok": False, "message": f"{other!r} is no message"}
        except torch.OutOfMemoryError:
            self._storage, self._runs = [], {}
            return {"ok": True, "memory": sum(entry["bytes"] for entry in head.get("tensors", ()))}
        except FerriteRuntimeError as error:
            is_lost = head["do"] == "sample" and isinstance(error, LaunchFailed)
            return {"ok": False, "message": str(error), "is_lost": is_lost}

    def _open(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        self._launch, self._runs, self._storage, position = head, {}, [], 0
        self._params = tuple(Param.from_mapping(value, "params") for value in head["params"])
        for seed, entry in enumerate(head["tensors"]):
            content = body[position : position + entry["sent"]]
            position += entry["sent"]
            self._storage.append(self._make(entry, content, seed))
        self._values = [
            entry["number"] if "number" in entry else self._storage[entry["tensor"]][1] + entry["offset"]
            for entry in head["arguments"]
        ]
        self._protection = self._protect(head["restored"], each=head["each"])
        return {"ok": True}

    def _make(self, entry: dict[str, Any], content: bytes, seed: int) -> tuple[Any, int, int]:
        """Returns what keeps a tensor alive, its address and its bytes."""
        import torch

        dtype = getattr(torch, entry["dtype"])
        whole = torch.empty(2 * BOUNDARY + entry["bytes"], dtype=torch.uint8, device=self._device)
        start = -whole.data_ptr() % BOUNDARY + entry["misalignment"] % BOUNDARY
        start -= start % dtype.itemsize  # views begin at multiples of an element
        part = whole[start : start + entry["bytes"] - entry["bytes"] % dtype.itemsize]
        if content:
            part.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8)[: part.numel()])
        else:
            fill(part.view(dtype), seed)
        return whole, part.data_ptr(), part.numel()

    def _protect(self, positions: list[int], *, each: bool) -> Protection | None:
        saved, keep = [], []
        for position in dict.fromkeys(positions):
            _, address, size = self._storage[position]
            backup = make_backup(max(1, size), self._device)
            if backup is None:
                return None
            self._driver.copy(backup.data_ptr(), address, size, self._stream)
            saved.append((address, backup.data_ptr(), size))
            keep.append(backup)
        return Protection(tuple(saved), tuple(keep), self._driver, self._stream, each)

    def _load(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        name = self._launch["name"]
        function = self._driver.load(Binary.from_header(head["header"], body), name)
        loaded = LoadedKernel(name, self._params, function, self._driver, self._driver.context())
        programs, *depths = head["grid"]
        site = LaunchSite(function, self._params, programs, (depths[0], depths[1]))
        site.config.stream = self._stream
        site.pack(site.buffer, 0, *self._values)
        self._runs[head["config"]] = lambda: loaded.start(site)
        return {"ok": True, "registers": function.registers, "local_bytes": function.local_bytes}

    def _sample(self, config: str, count: int) -> dict[str, Any]:
        each = self._protection is not None and self._protection.each
        before = self._protection.restore if self._protection is not None and each else None
        meter = self._make_meter(self._launch["cache_bytes"])
        return {"ok": True, "times": meter.sample(self._runs[config], count, before)}


def serve(source: BinaryIO, sink: BinaryIO, trials: Trials) -> None:
    """Answers messages until the input ends."""
    sink.write(encode_frame({"ready": True}))
    sink.flush()
    while (frame := read_frame(source.read)) is not None:
        sink.write(encode_frame(trials.answer(*frame)))
        sink.flush()


def main(index: int) -> None:
    """Serves this process's standard streams; whatever libraries print goes to the error stream instead."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    import torch

    from ferrite_runtime.devices.cuda_driver import cuda_driver
    from ferrite_runtime.tuning.timing import EventMeter

    torch.cuda.set_device(index)
    torch.cuda.mem_get_info()  # makes the context exist, and current in this thread
    stream = torch.cuda.current_stream().cuda_stream
    serve(sys.stdin.buffer, sink, Trials(cuda_driver(), EventMeter, torch.device("cuda", index), stream))
    # Nothing is left to clean up, and a device that hangs would not let an orderly end happen.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
