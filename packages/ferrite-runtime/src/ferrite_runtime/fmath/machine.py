"""What device functions know of the machine that they are compiled for, and how they stop it; see `fmath`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

WARP = tl.constexpr(32)
"""Threads of a warp on GPUs of NVIDIA."""
_HOPPER = 90  # compute capability 9.0: dependent launches, requests of many bytes by one thread


@tl.core.builtin
def is_for_nvidia(_semantic: Any = None) -> tl.constexpr:
    """Returns whether the code is for a GPU of NVIDIA: neither for another one nor for the interpreter."""
    return tl.constexpr(_semantic.builder.options.backend_name == "cuda")


@tl.core.builtin
def has_bulk_requests(_semantic: Any = None) -> tl.constexpr:
    """Returns whether the code is for a GPU of which one thread can ask for many bytes to be brought into its cache."""
    return tl.constexpr(_is_since_hopper(_semantic.builder.options))


def _is_since_hopper(options: Any) -> bool:
    return options.backend_name == "cuda" and int("".join(filter(str.isdigit, options.arch))) >= _HOPPER


@tl.core.builtin
def uses_pdl(_semantic: Any = None) -> tl.constexpr:
    """Returns whether the code is for launches that may start before what comes before them has ended.

    It is if it is compiled with Triton's option ``launch_pdl``, for a GPU that has such launches.
    """
    options = _semantic.builder.options
    return tl.constexpr(_is_since_hopper(options) and options.launch_pdl)


@triton.jit
def require(condition, message: tl.constexpr, origin: tl.constexpr, mask=None):
    """Stops the kernel where a condition does not hold and a mask does, if assertions are compiled.

    The error says ``origin``, then ``message``.
    """
    tl.device_assert(condition, origin + message, mask=mask)
