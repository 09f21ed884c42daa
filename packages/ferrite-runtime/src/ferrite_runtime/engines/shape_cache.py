"""Shape-specialisation cache: host functions written for sizes that recur, as numbers, as in a static program.

The host function for all sizes computes them, looks up what is prepared for their buckets, and does not know what is
large. A program that meets the same sizes again and again (training with a few lengths, padded batches) gets functions
that need none of this. Writing one takes as long as several calls, so each is for sizes that came several times, and
there are only so many. Where sizes keep changing none is written, and a call pays for a look-up and a count.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ferrite_runtime.engines.engine import HostFunction
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import leading_lets
from ferrite_runtime.formats.steps import Probe
from ferrite_runtime.host.launch_text import HostText
from ferrite_runtime.host.thresholds import SHAPES
from ferrite_runtime.process.forking import renewed_in_children

log = logging.getLogger(__name__)

Sizes: TypeAlias = "tuple[int, ...]"


class ShapeCache:
    """The host functions of one program for sizes that came again.

    Any number of threads may call it. What is prepared is looked up without the lock, and changes under it.

    Attributes:
        prepared: the functions by sizes, the oldest first.
        usual: the function for all sizes.
    """

    def __init__(self, usual: HostFunction, write: Callable[[Sizes], HostFunction]) -> None:
        self.prepared: dict[Sizes, HostFunction] = {}
        self.usual = usual
        self._write = write
        self._met: dict[Sizes, int] = {}
        self._writing: set[Sizes] = set()
        self._lock = renewed_in_children(threading.Lock())

    def __call__(self, args: list[Any], sizes: Sizes) -> tuple[Any, ...]:
        """Runs the program at sizes that nothing is prepared for, and prepares what is due."""
        if self._is_due(sizes):
            try:
                self._keep(sizes, self._written(sizes))
            finally:
                self._writing.discard(sizes)
        return self.usual(args)

    def _written(self, sizes: Sizes) -> HostFunction:
        """Returns the function for sizes; the one for all of them, with a warning, if none can be written."""
        try:
            return self._write(sizes)
        except Exception:
            log.warning(
                "no host function could be written for the sizes %s: their calls go on with the one for all sizes. "
                "Please report it, with the text below.",
                sizes,
                exc_info=True,
            )
            return self.usual

    def _is_due(self, sizes: Sizes) -> bool:
        """Counts a call, and tells whether it is the one that has a function written."""
        with self._lock:
            met = self._met.pop(sizes, 0) + 1
            if len(self._met) >= SHAPES.counted:
                self._met.clear()
            self._met[sizes] = met
            is_full = len(self.prepared) >= SHAPES.functions
            if met < (SHAPES.calls_when_full if is_full else SHAPES.calls) or sizes in self._writing:
                return False
            self._writing.add(sizes)
            return True

    def _keep(self, sizes: Sizes, host: HostFunction) -> None:
        with self._lock:
            self._met.pop(sizes, None)
            if len(self.prepared) >= SHAPES.functions:
                del self.prepared[next(iter(self.prepared))]
            self.prepared[sizes] = host


def write_entry(program: Program, roots: Sequence[str]) -> HostText:
    """Returns the text of the function that calls begin with: it finds out the sizes ``roots`` and who is to be called.

    Its globals are the functions that are prepared, ``_prepared``, and the `ShapeCache` that has them, ``_specialise``.
    """
    lines = (
        "def host(args):",
        f"    _sizes = ({', '.join(_size_texts(program, roots))},)",
        "    _host = _prepared.get(_sizes)",
        "    return _specialise(args, _sizes) if _host is None else _host(args)",
        "",
    )
    return HostText("\n".join(lines), {}, {}, ())


def _size_texts(program: Program, roots: Sequence[str]) -> list[str]:
    """Returns how sizes are read from the list of a program's inputs."""
    positions = {value.name: position for position, value in enumerate(program.inputs)}
    probes = {name: value for name, value in leading_lets(program) if isinstance(value, Probe)}
    return [
        f"args[{positions[probes[name].tensor]}].{probes[name].kind}({probes[name].axis})"
        if name in probes
        else f"args[{positions[name]}]"
        for name in roots
    ]
