"""The table of causes: what becomes of an exception of any layer, and what to do about it.

It is total, and has a part for each cause. What users cause stands first, what the machine causes next; only what is
left is a defect of ours, which alone is to be reported.

=============== ==================================================
part            whose it is
=============== ==================================================
``MISTAKES``    the program's, or the options': its writer mends it
``MACHINE``     files, drivers, packages, memory
``DEFECTS``     ours, or of what we call
=============== ==================================================
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb

from ferrite_torch.errors import (
    CompileError,
    EnvironmentProblem,
    FerriteError,
    OptionError,
    Origin,
    RunError,
    Unsupported,
)

USER, TORCH = "user", "torch"
"""Whose code raised an exception, where that is neither ours nor of a library that we call."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One row of the table.

    Exceptions with this class name (anywhere among their bases), raised by this code, become ``becomes``, with a hint.
    Names instead of classes: the rows also hold where a layer is not importable.

    Attributes:
        name: of the class.
        becomes: the class of ours.
        hint: what to do; empty where the exception itself says it, in its attribute ``hint``.
        raiser: `USER` or `TORCH`, if only exceptions that their code raised are meant.
    """

    name: str
    becomes: type[FerriteError]
    hint: str = ""
    raiser: str = ""


_DATA = (
    "torch._check tells what holds of a size that depends on data; x[i].clone() is no view whose place depends on it; "
    "torch.compiler.disable runs the function that needs its value outside of the graph"
)
_FAKE = "register a fake implementation of the operator with torch.library.register_fake"

MISTAKES: tuple[Translation, ...] = (
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
    Translation("UserKernelRunError", RunError),
    Translation("UserKernelError", CompileError),
    Translation("IndexOutOfBounds", RunError),
    Translation("ValueRefused", RunError),
    Translation("CheckFailed", RunError),
    Translation("IndexCheckFailed", RunError),
    Translation("InputError", RunError, "torch._dynamo.reset() and compile again with inputs of the new kind"),
    Translation("GuardFailed", RunError, "call with inputs of the shapes, dtypes and devices that it was compiled for"),
    Translation("RecursionError", Unsupported, "nest less deeply, or raise the limit with sys.setrecursionlimit"),
)
"""What the writer of a program mends."""

MACHINE: tuple[Translation, ...] = (
    Translation("NotPinned", EnvironmentProblem),
    Translation("ProviderFailed", EnvironmentProblem, "mend it, or uninstall it"),
    Translation("FileUnreadable", EnvironmentProblem),
    Translation("FileUnwritable", EnvironmentProblem),
    Translation("ExternError", EnvironmentProblem),
    Translation(
        "DeviceUnavailable", EnvironmentProblem, "check torch.cuda.is_available() and that triton is installed"
    ),
    Translation("DriverError", EnvironmentProblem, "check the GPU driver with nvidia-smi"),
    Translation("WorkerError", EnvironmentProblem, "set options={'workers': 0} to compile in this process"),
    Translation("OutOfMemoryError", RunError, "use a smaller batch"),
    Translation("MemoryError", EnvironmentProblem, "free host memory"),
)
"""What is missing or broken around a program."""

_RAISED_BY_USERS = (
    Translation("Exception", Unsupported, "look at this line of the program: it raised the error", raiser=USER),
)
_MACHINE_ELSEWHERE = (
    Translation("ImportError", EnvironmentProblem, "install the missing package; ferrite-torch needs torch and triton"),
    Translation(
        "OSError", EnvironmentProblem, "check that the cache folder can be written, or set options={'use_cache': False}"
    ),
)
"""The machine's too, unless the user's own code raised it."""

_REPORT = "please report it with the graph that options={'log_graphs': True} prints"
DEFECTS: tuple[Translation, ...] = (
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
"""What is left."""

TRANSLATIONS = (*MISTAKES, *MACHINE, *_RAISED_BY_USERS, *_MACHINE_ELSEWHERE, *DEFECTS)
"""All rows; the first that fits counts."""


def translation_of(error: BaseException) -> Translation:
    """Returns the row for an exception; there is always one."""
    names = {base.__name__ for base in type(error).__mro__}
    raiser = find_raiser(error)[0]
    fitting = (row for row in TRANSLATIONS if row.name in names and row.raiser in ("", raiser))
    return next(fitting, TRANSLATIONS[-1])


def find_raiser(error: BaseException) -> tuple[str, str]:
    """Returns whose code raised an exception, and at which ``path:line``: `USER`, `TORCH`, or nothing for the rest.

    The innermost frame counts that is of none of the libraries that all of these call, and that does more than pass
    calls of torch's functions on. What has no frames was not raised by anybody else.
    """
    found = ("", "")
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _LIBRARIES or not path.is_absolute() or _is_standard(path) or frame.f_code.co_name in _PASSED_ON:
            continue
        owner = TORCH if package == "torch" else "" if package.startswith("ferrite_") else USER
        found = (owner, f"{path}:{line}")
    return found


_PASSED_ON = ("__torch_function__", "__torch_dispatch__")
"""Modes look at calls of torch's functions and do them: what such a call raises is not theirs."""
_LIBRARIES = frozenset(("sympy", "mpmath", "numpy", "triton", "importlib"))
_STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _is_standard(path: Path) -> bool:
    """Tells whether a file is of Python's own library, below which installed packages lie as well."""
    return any(map(path.is_relative_to, _STANDARD)) and not {"site-packages", "dist-packages"} & set(path.parts)


def _first_paragraph(message: str) -> str:
    """Returns what a message says before its first empty line: torch goes on with how to log more, and its graph."""
    return message.strip().partition("\n\n")[0].rstrip(".")


def translate(error: BaseException, phase: str, origins: Iterable[Origin] = ()) -> FerriteError:
    """Returns an exception of any layer as one of ours, naming the ops and source lines it is about.

    Ours pass unchanged.
    """
    if isinstance(error, FerriteError):
        return error
    row = translation_of(error)
    named = tuple(origin for origin in origins if origin.op)
    where = ", ".join(dict.fromkeys(origin.description for origin in named))
    hint = row.hint or str(getattr(error, "hint", "")) or "the message above says what is wrong"
    subject = f"{where}: " if where else ""
    raised = f" (raised at {find_raiser(error)[1]})" if row.raiser == USER else ""
    said = _first_paragraph(str(error)) if row.raiser != USER else str(error)
    text = f"{subject}{phase} failed: {type(error).__name__}: {said}{raised}. What to do: {hint}."
    translated = row.becomes(text)
    translated.__cause__ = error
    translated.origins, translated.remedy = named, ""
    return translated
