"""How tuning is told: one line that changes on a terminal, one JSON object a line elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any, TextIO

from ferrite_runtime.tuning.kernel_tuning import Listener


class ProgressLine:
    """Writes one line to a terminal, again and again."""

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        self._stream = stream
        self._width = width or shutil.get_terminal_size().columns
        self._kernels = self._done = self._configs = self._tried = 0
        self._best: float | None = None
        self._kernel = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Takes an event in."""
        if event.get("kernel", self._kernel) != self._kernel:
            self._kernel, self._configs, self._tried, self._best = event["kernel"], 0, 0, None
        match event["event"]:
            case "started":
                self._kernels = event["kernels"]
            case "compiled":
                self._configs += event["configs"]
            case "measured":
                self._tried += 1
                self._best = min(event["ms"], self._best or event["ms"])
            case "chosen":
                self._done += 1
            case "finished":
                self._write("")
                return
        self._write(self.text())

    def text(self) -> str:
        """Returns the line."""
        best = f", best {self._best * 1e3:.1f} µs" if self._best is not None else ""
        count = f"{self._done}/{self._kernels}" if self._kernels else str(self._done)
        return f"[{count}] {self._kernel}: {self._configs} configs, {self._tried} measured{best}"

    def _write(self, text: str) -> None:
        # Cleared first: the new line may be shorter than the old one.
        self._stream.write("\r\x1b[K" + text[: self._width - 1])
        self._stream.flush()


class EventLines:
    """Writes each event as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Writes an event."""
        self._stream.write(json.dumps(dict(event)) + "\n")
        self._stream.flush()


def choose_progress(stream: TextIO) -> Listener:
    """Returns what tells a stream: a line that changes if it is a terminal, JSON events otherwise."""
    return ProgressLine(stream) if stream.isatty() else EventLines(stream)
