"""A progress line for people who wait, and lines for logs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TextIO

LOG_SECONDS = 5.0  # between lines, where the output is no terminal


@dataclass(slots=True)
class Progress:
    """Says on `stream` what is being done; on a terminal in one line that is overwritten."""

    stream: TextIO
    started: float = field(default_factory=time.monotonic)
    said: float = 0.0
    width: int = 0

    def show(self, text: str) -> None:
        """Replaces the progress line; where there is no terminal, writes a line every few seconds."""
        now = time.monotonic()
        line = f"[{now - self.started:5.1f} s] {text}"
        if self.stream.isatty():
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        elif now - self.said >= LOG_SECONDS:
            self.stream.write(line + "\n")
            self.said = now
        self.stream.flush()

    def clear(self) -> None:
        """Wipes the progress line, so that something else can be printed."""
        if self.width:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
            self.width = 0
