"""What device functions know of the machine that they are compiled for; see `fmath`."""

from __future__ import annotations

from typing import Any

import triton.language as tl

_ANY = tl.constexpr(0)


@tl.core.builtin
def is_for_nvidia(least: tl.constexpr = _ANY, _semantic: Any = None) -> tl.constexpr:
    """Returns whether the code is for a GPU of NVIDIA: neither for another one nor for the interpreter.

    One whose architecture (90 for compute capability 9.0) is no less than ``least``.
    """
    options = _semantic.builder.options
    return tl.constexpr(options.backend_name == "cuda" and int("".join(filter(str.isdigit, options.arch))) >= least)
