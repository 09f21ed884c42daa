"""Where kernels and programs come from, and so what is taken for granted about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a program comes from.

    Attributes:
        is_foreign: whether it came in a bundle, which anyone may have written: what it claims of its memory is checked.
        is_trusted: whether its writer may run code in this process: kernel text that is not plainly a kernel's, and
            kernels that take as long as they like.
    """

    is_foreign: bool = False
    is_trusted: bool = True


HERE = Provenance()
"""Made in this process, by a compiler that it trusts or from a file that its user read."""
