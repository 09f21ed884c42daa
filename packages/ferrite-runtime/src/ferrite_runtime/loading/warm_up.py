"""What a process that is going to compile can have done while it is still capturing."""

from __future__ import annotations

from ferrite_runtime.compilation.compiler import choose_store
from ferrite_runtime.compilation.worker_pool import shared_pool
from ferrite_runtime.launching.native_launcher import begin_launcher
from ferrite_runtime.process.options import Options


def warm_up(options: Options | None = None) -> None:
    """Starts the compile workers and looks for the native launcher, or builds it; returns at once.

    The first compilation then does not wait for the one, nor the second run of a program for the other.
    """
    options = options or Options()
    shared_pool(options.workers).warm_up()
    if options.native != "never":
        begin_launcher(choose_store(options))
