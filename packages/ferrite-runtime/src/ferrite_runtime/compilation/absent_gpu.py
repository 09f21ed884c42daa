"""Triton where there is no GPU: it knows a target meanwhile, for what asks for one and translates kernels alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _AnyTarget:
    """Stands for the driver of a GPU that is not there."""

    def get_current_target(self) -> Any:
        """Returns a target; which tensors a kernel writes is the same for all of them."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)


@contextmanager
def knowing_a_target() -> Iterator[None]:
    """Has Triton know a target meanwhile where it finds no GPU.

    torch translates a kernel to see what it writes, and takes all tensors for written where that fails. Triton's driver
    can be set by a public name, but not be taken away again.
    """
    from triton.runtime import driver

    drivers: Any = driver
    if _has_driver(drivers):
        yield
        return
    drivers.set_active(_AnyTarget())
    try:
        yield
    finally:
        drivers._active = None  # noqa: SLF001 - nothing public takes a driver away again


def _has_driver(drivers: Any) -> bool:
    try:
        return drivers.active is not None
    except RuntimeError:  # there is no GPU, or there are several kinds
        return False
