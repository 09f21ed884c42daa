"""The errors of the runtime: one root, nine kinds below it, a few finer names below those.

Whoever calls the runtime can rely on the nine kinds (`KINDS`): everything that it raises about a package, a kernel or
a device is an instance of exactly one of them. Errors carry a ``hint``, what to do about it; one kind is a warning.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol, Self


class FerriteRuntimeError(Exception):
    """Root of every error that the runtime raises on purpose; ``hint`` says what to do, and stands in tracebacks."""

    hint = ""
    origin: tuple[str, ...] = ()
    """What the kernel came from that the message is about: ops with their source lines, as its spec has them."""
    _around = ("", "")

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        if self.hint:
            self.add_note(f"hint: {self.hint}")

    @classmethod
    def about(cls, before: str, origin: Sequence[str], after: str) -> Self:
        """Returns an error whose message has the origin of a kernel in its middle."""
        made = cls(f"{before}{', '.join(origin)}{after}")
        made.origin, made._around = tuple(origin), (before, after)
        return made

    def name_locations(self, locations: Mapping[str, str]) -> None:
        """Has the message name origins as their source lines can be opened on this machine.

        Args:
            locations: of each origin; specs name files without their folders, as they are the same on every machine.
        """
        if self.origin:
            before, after = self._around
            named = ", ".join(locations.get(each, each) for each in self.origin)
            self.args = (f"{before}{named}{after}", *self.args[1:])


def note_origin(error: Exception, origin: Sequence[str]) -> None:
    """Adds to an error of a library's what the call came from that raised it; nothing where that is not known."""
    if origin:
        error.add_note(f"while {', '.join(origin)} ran as a step of a compiled graph")


def _shortened(message: str) -> str:
    """Returns a message without its end: what a file holds is quoted, and may be long."""
    return message if len(message) <= 1000 else f"{message[:1000]}…"


# --- the kinds ------------------------------------------------------------------------------------------------------


class PackageInvalid(FerriteRuntimeError):
    """A bundle, program or kernel spec is malformed, or not what its digest says."""

    hint = "the file is damaged or its writer is at fault: fetch or build it again, `ferrite-runtime verify` checks it"

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class VersionUnsupported(FerriteRuntimeError):
    """A bundle, program or kernel spec is of a format, or uses a feature, that this runtime does not know."""

    hint = "upgrade ferrite-runtime, or build the bundle for this version"

    def __init__(self, reason: str) -> None:
        super().__init__(_shortened(reason))


class GuardFailed(FerriteRuntimeError):
    """A call breaks something that its program was compiled for; ``name`` says what, as in ``x.shape``."""

    hint = "call with inputs of the shapes, dtypes and devices that it was exported for, or export it for these as well"

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(_shortened(reason))
        self.name = name


class NoVariantForTarget(FerriteRuntimeError):
    """Nothing in a package runs in this process: no GPU, no program or binary for it, an operator that is missing."""

    hint = (
        "export with this GPU among the targets, or install triton to compile for it; "
        "without a GPU, Options(interpret=True) runs kernels slowly on CPU tensors"
    )


class OutOfResources(FerriteRuntimeError):
    """A compiled kernel needs more of a resource than the device has."""

    hint = "another config may fit: tune the kernel for this device"

    def __init__(self, kernel: str, kind: str, need: int, have: int) -> None:
        super().__init__(f"kernel {kernel} needs {need} of {kind}, the device has {have}")
        self.kernel = kernel
        self.kind = kind
        self.need = need
        self.have = have


class CompileFailed(FerriteRuntimeError):
    """A kernel did not compile, or there is nothing here to compile it with."""

    hint = "check that the installed triton is one that the runtime supports (3.6 to 3.9); report it with the kernel"


class NoValidVariant(FerriteRuntimeError):
    """Every candidate configuration of a kernel failed; ``reasons`` has one line for each."""

    hint = "the reasons are above; a config that fits has to be in the kernel's list, or compiled with triton"

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        super().__init__("\n".join([message, *dict.fromkeys(reasons)]))
        self.reasons = tuple(dict.fromkeys(reasons))


class LaunchFailed(FerriteRuntimeError):
    """A kernel, or the driver that should run it, failed at run time."""

    hint = "check the device with nvidia-smi; CUDA_LAUNCH_BLOCKING=1 names the launch that fails"


class CacheUnwritable(UserWarning):
    """The folder of the store cannot be used; the runtime goes on without, and forgets what it measured.

    Set FERRITE_CACHE_DIR to a folder that can be written.
    """


class StoreWarning(CacheUnwritable):
    """What is warned of a store's folder: why it is not used, or not in full."""


class SettingWarning(UserWarning):
    """An environment variable has a value that it cannot have, and work goes on without it."""


def warn(warning: Warning, stacklevel: int) -> None:
    """Warns of something that does not end the work, whatever filters make of warnings.

    Whoever has warnings end a program means those of its own: where one would, it is logged instead.
    """
    try:
        warnings.warn(warning, stacklevel=stacklevel)
    except type(warning):
        logging.getLogger("ferrite_runtime").warning("%s", warning)


KINDS: tuple[type[BaseException], ...] = (
    PackageInvalid,
    VersionUnsupported,
    GuardFailed,
    NoVariantForTarget,
    OutOfResources,
    CompileFailed,
    NoValidVariant,
    LaunchFailed,
    CacheUnwritable,
)
"""The closed list; `OptionError`, a wrong argument of the caller's own, stands beside it."""


# --- finer names ----------------------------------------------------------------------------------------------------


class _OfFile(PackageInvalid):
    """Something about a file as such; the message names it, and the system's reason."""

    verb = ""

    def __init__(self, path: object, error: OSError | str) -> None:
        reason = error if isinstance(error, str) else error.strerror or str(error)
        shown = str(path)
        shown = shown if len(shown) <= 500 else f"{shown[:500]}…"
        super().__init__(f"{shown} cannot be {self.verb}: {reason}")


class FileUnreadable(_OfFile):
    """A file is not there, is a folder, or may not be read; nothing is said of what would be in it."""

    hint = "check the path, that it names a file, and that this user may read it"
    verb = "read"


class FileUnwritable(_OfFile):
    """A file cannot be written."""

    hint = "check that the folder is there, that this user may write to it, and that the disk is not full"
    verb = "written"


class NoPackage(PackageInvalid):
    """A file is none of those that the runtime reads: neither a bundle nor a program nor a kernel spec."""

    hint = "give a bundle, such as `python -m ferrite_torch export` writes, or a program or a kernel spec as JSON"


class NoExport(PackageInvalid):
    """A file is no export of a store."""

    hint = "give a file that `ferrite-runtime cache export` wrote"


@contextmanager
def naming_file(path: object) -> Iterator[None]:
    """Has what is raised about a file's content begin with the file's path."""
    try:
        yield
    except (PackageInvalid, VersionUnsupported) as error:
        if str(path) not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise


class _AtField(Exception):
    """What is wrong with a field; ``path`` names it, as in ``steps[3].args``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class SpecError(_AtField, PackageInvalid):
    """A kernel spec or program is malformed; ``path`` names the field, as in ``steps[3].args``."""


class UnknownField(SpecError):
    """An object that the format closes has a field that the format does not name."""


class UserKernelError(FerriteRuntimeError):
    """Something is wrong with a kernel that a user wrote: whoever wrote it mends it, nobody else."""

    hint = "correct the kernel, or what is said of it, at the place in the message"


class UserKernelSpecError(UserKernelError, SpecError):
    """A kernel that somebody wrote is described wrongly, or uses something that cannot be written down."""

    hint = "the arguments of ferrite_runtime.user_kernel say what a kernel is; its documentation has the forms"


class IdentityMismatch(SpecError):
    """A kernel's ``id`` is not the digest of its content."""


class UnknownFormat(_AtField, VersionUnsupported):
    """A kernel spec or program has a format that this runtime does not know; ``path`` names the field."""


class InputError(GuardFailed):
    """An input of a program has the wrong type, dtype, shape, strides or device."""


class CheckFailed(GuardFailed, RuntimeError):
    """A condition on the sizes of a call does not hold; the message names the line that asked for it.

    A `RuntimeError` as well: that is what torch raises where the same line runs eagerly.
    """

    hint = "the line in the message asks for this, or the ops below it need it; run it eagerly to see it there"


class IndexCheckFailed(CheckFailed, IndexError):
    """A number that a call computes is no position along the axis that it indexes.

    An `IndexError` as well, which eager mode raises for it.
    """

    hint = "the line in the message takes a position along an axis; run it eagerly to see it there"


CHECK_ERRORS: Mapping[str, type[CheckFailed]] = {"index": IndexCheckFailed}
"""What a check raises that is more than a `CheckFailed`, by the ``error`` of its step."""


def fail_check(error: str | None, message: str, named: Sequence[tuple[str, int]]) -> NoReturn:
    """Raises what says that a condition does not hold, and what its sizes are.

    Args:
        error: one of `CHECK_ERRORS`, or None.
        message: what does not hold, and the line that asks for it.
        named: sizes in the condition, each with what the message is to call it.

    Raises:
        CheckFailed: always; of the class that ``error`` names.
    """
    values = ", ".join(f"{name} is {value}" for name, value in named)
    raised = CheckFailed if error is None else CHECK_ERRORS[error]
    raise raised(f"{message}: {values}" if values else message, named[0][0] if named else "")


class ExternError(NoVariantForTarget):
    """An extern step names an operator that this process does not have."""

    hint = "import the library that registers the operator before the program is loaded"


class DeviceUnavailable(NoVariantForTarget):
    """What was asked for needs a device or a library that this machine lacks."""


class InterpreterUnavailable(DeviceUnavailable):
    """Kernels are to run in Triton's interpreter, for which a package is missing."""

    hint = 'python3 -m pip install "ferrite-runtime[interpreter]"'


class WeightMissing(GuardFailed):
    """A program runs with weights of a model, and one of them was not given; ``name`` says which."""

    hint = "give load() or bind() the state dict of the model that was exported"


class KernelCompileError(CompileFailed):
    """A kernel did not compile; carries its name, what it came from and the compiler's message."""

    def __init__(self, kernel: str, origin: tuple[str, ...], message: str) -> None:
        before, after = f"kernel {kernel} (from ", f") does not compile: {message}"
        whole = f"{before}{', '.join(origin)}{after}" if origin else f"kernel {kernel} does not compile: {message}"
        super().__init__(whole)
        self._around = before, after
        self.kernel = kernel
        self.origin = origin
        self.message = message


class UserKernelCompileError(UserKernelError, KernelCompileError):
    """A kernel that a user wrote did not compile."""

    hint = "correct the kernel at the line that is quoted"


def compile_failure(spec: AnyKernel, message: str) -> KernelCompileError:
    """Returns the error that says that a kernel does not compile, by whoever wrote it."""
    kind = UserKernelCompileError if spec.form == "user" else KernelCompileError
    return kind(spec.name, spec.origin, message)


class AnyKernel(Protocol):
    """What errors want to know of a kernel spec."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def form(self) -> str:
        """Its kernel form; ``user`` if it is a hand-written one."""

    @property
    def origin(self) -> tuple[str, ...]:
        """What it came from."""


class WorkerError(CompileFailed):
    """A compile worker died, hung or answered nonsense more often than it is retried."""

    hint = "Options(workers=0) compiles in this process"


class KernelRunError(LaunchFailed):
    """A kernel failed while it was interpreted."""

    hint = "report it with the kernel's source; the interpreter runs what the GPU would"


class UserKernelRunError(UserKernelError, KernelRunError):
    """A kernel that a user wrote failed while it was interpreted."""

    hint = "correct the kernel, at the line in the message"


class ProgramFailed(LaunchFailed, RuntimeError):
    """A step of a bundle's program failed, or was about to touch what is not its own; the message says how.

    A `RuntimeError` as well: that is what torch raises where it refuses an extern call.
    """

    hint = "the bundle's writer is at fault if it fails for every input; else the message says what torch refused"


class IndexOutOfBounds(KernelRunError, IndexError, RuntimeError):
    """An interpreted kernel was given an index outside of what it indexes; the message names the op and its line.

    An `IndexError` and a `RuntimeError`: eager's ops raise the one or the other.
    """

    hint = "look at the indices that the op was given; eager refuses them too"


class ValueRefused(KernelRunError, RuntimeError):
    """An interpreted kernel was given a value that eager refuses as well; the message names the op and its line."""

    hint = "look at the values that the op was given; eager refuses them too"


class NotPinned(NoValidVariant):
    """Every kernel has to run with a pinned config, and this one has none."""

    hint = (
        "run the program without FERRITE_ASSERT_PINNED, then `ferrite-runtime pin --file PINS`, and review the change"
    )


class DriverError(LaunchFailed):
    """The GPU driver refused a call; carries the call's and the error's name."""


def failed_program(what: str, error: Exception) -> ProgramFailed:
    """Returns what says that a step of a program failed, and why: whatever the step raised, under one name."""
    return ProgramFailed(f"{what} failed: {type(error).__name__}: {error}")


class MemoryOutOfBounds(KernelRunError):
    """An interpreted kernel was about to touch memory that is none of its tensors'."""

    hint = "the kernel's text does not fit the tensors that its launch gives it: the bundle's writer is at fault"


class TrustNeeded(PackageInvalid):
    """A bundle asks for more than one may that comes from anywhere."""

    hint = (
        "if you know who wrote this bundle, and would run their Python, load it with trust=True; "
        "docs/bundle.md says what bundles may do without"
    )


class OptionError(FerriteRuntimeError):
    """An option has a value that it cannot have."""

    hint = "see ferrite_runtime.Options"
