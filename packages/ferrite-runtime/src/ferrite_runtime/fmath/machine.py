"""What device functions know of the machine that they are compiled for; see `fmath`."""

from __future__ import annotations

from typing import Any

import triton.language as tl


@tl.core.builtin
def is_for_nvidia(_semantic: Any = None) -> tl.constexpr:
    """Returns whether the code is for a GPU of NVIDIA: neither for another one nor for the interpreter."""
    return tl.constexpr(_semantic.builder.options.backend_name == "cuda")
