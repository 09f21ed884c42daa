"""What compilers say, for people: the cause first, then where, in a few lines.

Triton's errors are chains: the innermost one says what is wrong, those around it quote the kernel. An assembler's error
comes with its command line, the names of temporary files and, on standard output, all that it was given.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

_MOST_CAUSES, _MOST_LINES, _MOST_CHARACTERS = 4, 12, 2000
_ASSEMBLER = re.compile(
    r"^(ptxas|lld)\S*\s*:?\s+(?:\S+\.(?:ptx|o), )?(?:line (\d+); )?(?:error|fatal)\s*:\s*(.+)$", re.MULTILINE
)
_ABORTED = "aborted due to errors"


def explain_failure(error: BaseException) -> str:
    """Returns what is wrong according to an exception of a compiler: the causes, then what stands around them."""
    chain = list(_chain(error))
    causes = _assembler_causes("\n".join(map(str, chain)))
    if causes:
        return "\n".join(causes)
    said = [f"{type(each).__name__}: {each}" for each in reversed(chain) if not _is_command(each)]
    return _cut("\n".join(dict.fromkeys(said)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and what caused it, the innermost one last."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen and len(seen) < 8:
        seen.append(current)
        yield current
        current = current.__cause__ or current.__context__


def _is_command(error: BaseException) -> bool:
    """Tells whether an exception says no more than that a command failed."""
    return isinstance(error, subprocess.CalledProcessError)


def _assembler_causes(text: str) -> list[str]:
    """Returns the errors that an assembler listed, a line for each kind, with the line of what it was given."""
    lines: dict[tuple[str, str], list[str]] = {}
    for program, line, cause in _ASSEMBLER.findall(text):
        lines.setdefault((program, cause.strip()), []).append(line)
    real = {key: found for key, found in lines.items() if _ABORTED not in key[1]} or lines
    shown = [f"{program}: {cause}{_positions(found)}" for (program, cause), found in real.items()]
    rest = len(shown) - _MOST_CAUSES
    return shown if rest <= 0 else [*shown[:_MOST_CAUSES], f"and {rest} other errors"]


def _positions(lines: list[str]) -> str:
    known = list(dict.fromkeys(line for line in lines if line))
    if not known:
        return ""
    return f" (line {known[0]} of the assembly{f', and {len(known) - 1} more like it' if len(known) > 1 else ''})"


def _cut(text: str) -> str:
    """Returns the first and the last lines of a text, of which the former say why and the latter where."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Repro command:")]
    if len(lines) > _MOST_LINES:
        kept = _MOST_LINES // 2
        lines = [*lines[:kept], f"… {len(lines) - 2 * kept} lines …", *lines[-kept:]]
    shown = "\n".join(lines)
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}…"


@contextmanager
def without_output() -> Iterator[None]:
    """Drops what this thread prints to standard output: a command's own output may be JSON."""
    with redirect_stdout(_Others(sys.stdout)):
        yield


class _Others(io.TextIOBase):
    """A stream without what the thread that made it writes."""

    def __init__(self, stream: io.TextIOBase | object) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Writes what other threads write."""
        if threading.get_ident() != self._thread:
            self._stream.write(text)  # type: ignore[union-attr]
        return len(text)
