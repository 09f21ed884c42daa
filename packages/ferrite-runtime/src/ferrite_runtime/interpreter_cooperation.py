"""Kernels whose programs wait for each other, in an interpreter that runs one program after the other.

They are run twice. In the first round a program is left where it would begin to wait: it has published what others
wait for, and has stored nothing. In the second round everything that programs wait for is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ferrite_runtime.errors import KernelRunError
from ferrite_runtime.spec import KernelSpec


class LeftProgram(Exception):
    """Ends a program of the first round."""


def leave_program(found: Any, place: Any, wanted: Any, neutral: Any) -> Any:
    """Stands in for `fmath.awaited_states` in the first round.

    Raises:
        LeftProgram: always.
    """
    raise LeftProgram


def awaited_states(found: Any, place: Any, wanted: Any, neutral: Any) -> Any:
    """Stands in for `fmath.awaited_states` where everything has been published.

    Raises:
        KernelRunError: a word is not published.
    """
    words = found.handle.data
    if not (words >> 32).all():
        raise KernelRunError("programs wait for what none publishes")
    values = np.ascontiguousarray(words).astype(np.uint32).view(np.float32)
    data = np.where(wanted.handle.data, values, np.float32(getattr(neutral, "value", neutral)))
    return tl.tensor(TensorHandle(data, tl.float32), tl.block_type(tl.float32, list(data.shape)))


def rounds_of(spec: KernelSpec) -> tuple[Callable[..., Any], ...]:
    """Returns, for each round in which a kernel is run, what its programs do where they wait."""
    return (leave_program, awaited_states) if spec.family == "cooperative" else (awaited_states,)
