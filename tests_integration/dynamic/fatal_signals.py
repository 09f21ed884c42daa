"""Whether a function ends the process that calls it."""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any


def fatal_signal(function: Callable[[], Any]) -> str:
    """Returns the name of the signal that a forked process dies of in this function, ``""`` if it lives.

    What the function raises stays in the other process. Not for a process that has used a GPU, whose driver does not
    survive a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, of threads that sleep
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            function()
        finally:
            os._exit(0)  # without what an interpreter does at its end, which is for the other process to do
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
