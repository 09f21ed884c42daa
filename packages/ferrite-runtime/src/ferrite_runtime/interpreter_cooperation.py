"""Kernels whose programs wait for each other, in an interpreter that runs one program after the other.

They are run twice. In the first round a program is left where it would begin to wait: it has published what others
wait for, and has stored nothing. In the second round everything that programs wait for is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ferrite_runtime.errors import KernelRunError
from ferrite_runtime.spec import KernelSpec


class LeftProgram(Exception):
    """Ends a program of the first round."""


_rounds: list[bool] = []
"""Whether the round that is under way, if one is, is a first one."""


@contextlib.contextmanager
def round_of(*, is_first: bool) -> Iterator[None]:
    """Says which round the programs that run while the context is open belong to."""
    _rounds.append(is_first)
    try:
        yield
    finally:
        _rounds.pop()


def rounds_of(spec: KernelSpec) -> tuple[bool, ...]:
    """Returns the rounds in which a kernel is run: for each of them, whether it is the first of two."""
    return (True, False) if spec.family == "cooperative" else (False,)


def awaited_states(found: Any, place: Any, wanted: Any, neutral: Any) -> Any:
    """Stands in for `fmath.awaited_states`.

    Raises:
        LeftProgram: in the first round.
        KernelRunError: in the second one, where a word is not published.
    """
    if _rounds and _rounds[-1]:
        raise LeftProgram
    words = found.handle.data
    if not (words >> 32).all():
        raise KernelRunError("programs wait for what none publishes")
    values = np.ascontiguousarray(words).astype(np.uint32).view(np.float32)
    data = np.where(wanted.handle.data, values, np.float32(getattr(neutral, "value", neutral)))
    return tl.tensor(TensorHandle(data, tl.float32), tl.block_type(tl.float32, list(data.shape)))
