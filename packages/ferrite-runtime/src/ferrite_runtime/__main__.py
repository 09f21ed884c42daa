"""``ferrite-runtime``, also ``python -m ferrite_runtime``: the commands, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ferrite_runtime import __version__
from ferrite_runtime.command_line import CommandLine
from ferrite_runtime.errors import (
    CompileFailed,
    FerriteRuntimeError,
    FileUnreadable,
    FileUnwritable,
    LaunchFailed,
    NoValidVariant,
    OutOfResources,
    PackageInvalid,
    VersionUnsupported,
)

# Modules of `ferrite_runtime.commands`.
COMMANDS = ("inspect", "verify", "tune", "bench", "devices", "cache", "pin", "check", "show", "compile")

FAULTS = (PackageInvalid, VersionUnsupported, OutOfResources, CompileFailed, NoValidVariant, LaunchFailed)
"""Errors that say that the thing which a command looked at is not as it should be."""
SOUND = (FileUnreadable, FileUnwritable)
"""Those that say so of the file system alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    command_line = CommandLine(
        program="ferrite-runtime",
        version=f"ferrite-runtime {__version__}",
        description="Looks at, tunes and measures bundles of kernels; compiles them for GPUs that need not be there.",
        package="ferrite_runtime.commands",
        commands=COMMANDS,
        refusals=(FerriteRuntimeError,),
        faults=FAULTS,
        sound=SOUND,
    )
    return command_line.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
