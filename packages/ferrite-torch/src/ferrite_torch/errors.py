"""Errors as users see them: a few classes, into which ``error_translation.py`` turns every exception of every layer.

A message says which torch op at which source line, what is wrong in the user's words, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Origin(Protocol):
    """Where something came from."""

    @property
    def op(self) -> str:
        """The torch op, empty where it is not known."""

    @property
    def description(self) -> str:
        """The op and its source line, as people read it."""


class FerriteError(Exception):
    """Root of the errors that the backend raises on purpose.

    ``origins`` are the ops that it is about, where they are known, and ``remedy`` is what to do about it, where the
    message does not say.
    """

    origins: tuple[Origin, ...] = ()
    remedy: str = ""


class OptionError(FerriteError):
    """``mode`` or ``options`` of torch.compile hold something unknown; the message lists what is known."""


class Unsupported(FerriteError):
    """A graph as a whole cannot be compiled; it runs eagerly unless ``options={"fallback": False}``."""

    remedy = (
        "take what is named out of the compiled function (torch.compiler.disable), or have "
        "options={'fallback': False} make it an error"
    )


class Refused(FerriteError):
    """Eager mode refuses a call, for its shapes, types or numbers.

    Nobody sees it but who exports a model: a compiled function runs what was refused eagerly, which raises what eager
    raises.
    """


class ExternRefused(FerriteError):
    """Operators would run as extern calls, and ``options={"extern": "error"}``; raised whatever ``fallback`` says."""


class LaunchRefused(FerriteError):
    """A Triton kernel of the program's own is launched wrongly: an argument is missing, or a grid is negative.

    Raised whatever ``fallback`` says: eager mode would raise something that says less, or launch nothing.
    """

    remedy = "correct the launch at the line that is named"


class CompileError(FerriteError):
    """A layer failed on a graph: a defect of ours, or a kernel that the installed Triton cannot compile."""

    remedy = "report it with the lines of the program"


class EnvironmentProblem(FerriteError):
    """Something that compiling needs is missing or broken.

    Triton, a driver, a writable cache folder, worker processes.
    """


class RunError(FerriteError):
    """A compiled graph failed while it ran."""


Error = TypeVar("Error", bound=FerriteError)


def located(error: Error, origins: Iterable[Origin]) -> Error:
    """Returns an error that says which ops it is about; one that does already is returned as it is."""
    named = tuple(origin for origin in origins if origin.op)
    if error.origins or not named:
        return error
    where = ", ".join(dict.fromkeys(origin.description for origin in named))
    located = type(error)(f"{where}: {error}")
    located.origins = named
    return located
