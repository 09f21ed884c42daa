"""The errors of the runtime: one root, a closed list below it."""

from __future__ import annotations


class FerriteRuntimeError(Exception):
    """Root of every error that the runtime raises on purpose."""


class SpecError(FerriteRuntimeError):
    """A kernel spec or program is malformed; ``path`` names the field, as in ``steps[3].args``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


class UnknownFormat(SpecError):
    """A kernel spec or program has a format that this runtime does not know."""


class UnknownField(SpecError):
    """An object that the format closes has a field that the format does not name."""


class IdentityMismatch(SpecError):
    """A kernel's ``id`` is not the digest of its content."""


class InputError(FerriteRuntimeError):
    """An input of a program has the wrong type, dtype, shape, strides or device."""


class ExternError(FerriteRuntimeError):
    """An extern step names an operator that this process does not have."""


class KernelCompileError(FerriteRuntimeError):
    """A kernel did not compile; carries its name, what it came from and the compiler's message."""

    def __init__(self, kernel: str, origin: tuple[str, ...], message: str) -> None:
        came_from = f" (from {', '.join(origin)})" if origin else ""
        super().__init__(f"kernel {kernel}{came_from} does not compile: {message}")
        self.kernel = kernel
        self.origin = origin
        self.message = message


class KernelRunError(FerriteRuntimeError):
    """A kernel failed while it was interpreted."""


class IndexOutOfBounds(KernelRunError, IndexError):
    """An interpreted kernel was given an index outside of what it indexes; the message names the op and its line."""


class OutOfResources(FerriteRuntimeError):
    """A compiled kernel needs more of a resource than the device has."""

    def __init__(self, kernel: str, resource: str, needed: int, available: int) -> None:
        super().__init__(f"kernel {kernel} needs {needed} of {resource}, the device has {available}")
        self.kernel = kernel
        self.resource = resource
        self.needed = needed
        self.available = available


class NoUsableConfig(FerriteRuntimeError):
    """Every candidate configuration of a kernel failed; the message lists the reasons."""


class WorkerError(FerriteRuntimeError):
    """A compile worker died, hung or answered nonsense more often than it is retried."""


class DriverError(FerriteRuntimeError):
    """The GPU driver refused a call; carries the call's and the error's name."""


class DeviceUnavailable(FerriteRuntimeError):
    """What was asked for needs a device or a library that this machine lacks."""


class OptionError(FerriteRuntimeError):
    """An option has a value that it cannot have."""
