"""Errors as users see them: a few classes, and one total table that every exception of every layer goes through.

A message says which torch op at which source line, what is wrong in the user's words, and what to write instead.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
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


class Refused(FerriteError):
    """Eager mode refuses a call, for its shapes, types or numbers.

    Nobody sees it but who exports a model: a compiled function runs what was refused eagerly, which raises what eager
    raises.
    """


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


USER, TORCH = "user", "torch"
"""Whose code raised an exception, where that is neither ours nor of a library that we call."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One row of the table.

    Exceptions with this class name (anywhere among their bases), raised by this code, become ``becomes``, with a hint.

    Attributes:
        name: of the class.
        becomes: the class of ours.
        hint: what to do.
        raiser: `USER` or `TORCH`, if only exceptions that their code raised are meant.
    """

    name: str
    becomes: type[FerriteError]
    hint: str
    raiser: str = ""


_REPORT = "please report it with the graph that options={'log_graphs': True} prints"
_DATA = (
    "torch._check tells what holds of a size that depends on data; torch.compiler.disable runs the function that needs "
    "its value outside of the graph"
)
_FAKE = "register a fake implementation of the operator with torch.library.register_fake"

# First match wins. Names instead of classes: the rows must also hold where a layer is not importable. What users cause
# stands first, what the machine causes next; only what is left is a defect of ours.
TRANSLATIONS: tuple[Translation, ...] = (
    Translation("OptionError", OptionError, "see ferrite_torch.Options and ferrite_runtime.Options"),
    Translation(
        "UnknownArgument", Unsupported, "pass tensors, numbers, strings, dtypes and lists of them to custom ops"
    ),
    Translation("DataDependentOutputException", Unsupported, _DATA),
    Translation("DynamicOutputShapeException", Unsupported, _DATA),
    Translation("GuardOnDataDependentSymNode", Unsupported, _DATA),
    Translation("PendingUnbackedSymbolNotFound", Unsupported, _FAKE + ", which makes each of its sizes a new symbol"),
    Translation("UnsupportedOperatorException", Unsupported, _FAKE),
    Translation("UnsupportedFakeTensorException", Unsupported, "pass tensors whose data torch can do without"),
    Translation("ConstraintViolationError", Unsupported, "take the size out of mark_dynamic, or widen its range"),
    Translation("CheckpointError", Unsupported, "make the recomputed function do what it did in the forward"),
    Translation("UserKernelCompileError", CompileError, "correct the kernel at the line that is quoted"),
    Translation("IndexOutOfBounds", RunError, "look at the indices that the op was given; eager refuses them too"),
    Translation("CheckFailed", RunError, "the line in the message asks for this, or the ops below it need it"),
    Translation("InputError", RunError, "torch._dynamo.reset() and compile again with inputs of the new kind"),
    Translation("GuardFailed", RunError, "call with inputs of the shapes, dtypes and devices that it was compiled for"),
    Translation(
        "NotPinned",
        EnvironmentProblem,
        "run without FERRITE_ASSERT_PINNED, then `ferrite-runtime pin --file PINS`, and review the change",
    ),
    Translation("FileUnreadable", EnvironmentProblem, "check the path, and that this user may read the file"),
    Translation("FileUnwritable", EnvironmentProblem, "check the path, and that this user may write there"),
    Translation(
        "ExternError", EnvironmentProblem, "import the library that registers the operator before the model runs"
    ),
    Translation(
        "DeviceUnavailable", EnvironmentProblem, "check torch.cuda.is_available() and that triton is installed"
    ),
    Translation("DriverError", EnvironmentProblem, "check the GPU driver with nvidia-smi"),
    Translation("WorkerError", EnvironmentProblem, "set options={'workers': 0} to compile in this process"),
    Translation("OutOfMemoryError", RunError, "use a smaller batch"),
    Translation("MemoryError", EnvironmentProblem, "free host memory"),
    Translation("RecursionError", Unsupported, "nest less deeply, or raise the limit with sys.setrecursionlimit"),
    Translation("Exception", Unsupported, "look at this line of the program: it raised the error", raiser=USER),
    Translation("ImportError", EnvironmentProblem, "install the missing package; ferrite-torch needs torch and triton"),
    Translation(
        "OSError", EnvironmentProblem, "check that the cache folder can be written, or set options={'use_cache': False}"
    ),
    Translation("ScalarTypeError", CompileError, _REPORT),
    Translation(
        "KernelCompileError",
        CompileError,
        "run with options={'fallback': True} to use eager for this graph, and report it",
    ),
    Translation("NoValidVariant", CompileError, "run with options={'tune': 'none'}; if that fails too, report it"),
    Translation("OutOfResources", CompileError, "make the row that is reduced shorter, or report it"),
    Translation("KernelRunError", RunError, _REPORT),
    Translation("FerriteRuntimeError", CompileError, _REPORT),
    Translation(
        "Exception",
        CompileError,
        "compile with backend='aot_eager': where that fails too, torch refuses the program, and its message says why; "
        "where it does not, report it",
        raiser=TORCH,
    ),
    Translation("Exception", CompileError, _REPORT),
)


def translation_of(error: BaseException) -> Translation:
    """Returns the row for an exception; there is always one."""
    names = {base.__name__ for base in type(error).__mro__}
    raiser = find_raiser(error)[0]
    fitting = (row for row in TRANSLATIONS if row.name in names and row.raiser in ("", raiser))
    return next(fitting, TRANSLATIONS[-1])


def find_raiser(error: BaseException) -> tuple[str, str]:
    """Returns whose code raised an exception, and at which ``path:line``: `USER`, `TORCH`, or nothing for the rest.

    The innermost frame counts that is of none of the libraries that all of these call. What has no frames was not
    raised by anybody else.
    """
    found = ("", "")
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _LIBRARIES or not path.is_absolute() or _is_standard(path):
            continue
        owner = TORCH if package == "torch" else "" if package.startswith("ferrite_") else USER
        found = (owner, f"{path}:{line}")
    return found


_LIBRARIES = frozenset(("sympy", "mpmath", "numpy", "triton", "importlib"))
_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _is_standard(path: Path) -> bool:
    """Tells whether a file is of Python's own library, below which installed packages lie as well."""
    return any(map(path.is_relative_to, _STANDARD)) and not {"site-packages", "dist-packages"} & set(path.parts)


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
    raised = f" (raised at {find_raiser(error)[1]})" if row.raiser == USER else ""
    text = f"{subject}{phase} failed: {type(error).__name__}: {error}{raised}. What to do: {row.hint}."
    translated = row.becomes(text)
    translated.__cause__ = error
    translated.origins, translated.remedy = named, ""
    return translated
