"""Errors as users see them: a few classes, and one total table that every exception of every layer goes through.

A message says which torch op at which source line, what is wrong in the user's words, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Origin(Protocol):
    """Where something came from."""

    @property
    def op(self) -> str:
        """The torch op, empty where it is not known."""

    @property
    def told(self) -> str:
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


class ExternRefused(FerriteError):
    """Operators would run as library calls, and ``options={"extern": "error"}``; raised whatever ``fallback`` says."""


class CompileError(FerriteError):
    """A layer failed on a graph: a defect of ours, or a kernel that the installed Triton cannot compile."""

    remedy = "report it with the lines of the program"


class EnvironmentProblem(FerriteError):
    """Something that compiling needs is missing or broken.

    Triton, a driver, a writable cache folder, worker processes.
    """


class RunError(FerriteError):
    """A compiled graph failed while it ran."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One row of the table.

    Exceptions with this class name (anywhere among their bases) become ``becomes``, with a hint.
    """

    name: str
    becomes: type[FerriteError]
    hint: str


_REPORT = "please report it with the graph that options={'log_graphs': True} prints"

# First match wins. Names instead of classes: the rows must also hold where a layer is not importable.
TRANSLATIONS: tuple[Translation, ...] = (
    Translation(
        "UnknownArgument", Unsupported, "pass tensors, numbers, strings, dtypes and lists of them to custom ops"
    ),
    Translation("ScalarTypeError", CompileError, _REPORT),
    Translation(
        "KernelCompileError",
        CompileError,
        "run with options={'fallback': True} to use eager for this graph, and report it",
    ),
    Translation("NoValidVariant", CompileError, "run with options={'tune': 'none'}; if that fails too, report it"),
    Translation("OutOfResources", CompileError, "make the row that is reduced shorter, or report it"),
    Translation(
        "DeviceUnavailable", EnvironmentProblem, "check torch.cuda.is_available() and that triton is installed"
    ),
    Translation("DriverError", EnvironmentProblem, "check the GPU driver with nvidia-smi"),
    Translation("WorkerError", EnvironmentProblem, "set options={'workers': 0} to compile in this process"),
    Translation(
        "ExternError", EnvironmentProblem, "import the library that registers the operator before the model runs"
    ),
    Translation("InputError", RunError, "torch._dynamo.reset() and compile again with inputs of the new kind"),
    Translation("KernelRunError", RunError, _REPORT),
    Translation("OptionError", OptionError, "see ferrite_torch.Options"),
    Translation("FerriteRuntimeError", CompileError, _REPORT),
    Translation("ImportError", EnvironmentProblem, "install the missing package; ferrite-torch needs torch and triton"),
    Translation("OutOfMemoryError", RunError, "use a smaller batch"),
    Translation("MemoryError", EnvironmentProblem, "free host memory"),
    Translation(
        "OSError", EnvironmentProblem, "check that the cache folder can be written, or set options={'use_cache': False}"
    ),
    Translation("Exception", CompileError, _REPORT),
)


def translation_of(error: BaseException) -> Translation:
    """Returns the row for an exception; there is always one."""
    names = {base.__name__ for base in type(error).__mro__}
    return next((row for row in TRANSLATIONS if row.name in names), TRANSLATIONS[-1])


Error = TypeVar("Error", bound=FerriteError)


def located(error: Error, origins: Iterable[Origin]) -> Error:
    """Returns an error that says which ops it is about; one that does already is returned as it is."""
    named = tuple(origin for origin in origins if origin.op)
    if error.origins or not named:
        return error
    where = ", ".join(dict.fromkeys(origin.told for origin in named))
    told = type(error)(f"{where}: {error}")
    told.origins = named
    return told


def translate(error: BaseException, phase: str, origins: Iterable[Origin] = ()) -> FerriteError:
    """Returns an exception of any layer as one of ours, naming the ops and source lines it is about.

    Ours pass unchanged.
    """
    if isinstance(error, FerriteError):
        return error
    row = translation_of(error)
    named = tuple(origin for origin in origins if origin.op)
    where = ", ".join(dict.fromkeys(origin.told for origin in named))
    subject = f"{where}: " if where else ""
    translated = row.becomes(f"{subject}{phase} failed: {type(error).__name__}: {error}. What to do: {row.hint}.")
    translated.__cause__ = error
    translated.origins, translated.remedy = named, ""
    return translated
