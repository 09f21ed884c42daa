"""``ferrite-runtime``, also ``python -m ferrite_runtime``: the commands, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ferrite_runtime.command_line import CommandLine
from ferrite_runtime.errors import FerriteRuntimeError

# Modules of `ferrite_runtime.commands`.
COMMANDS = ("inspect", "verify", "tune", "bench", "devices", "cache", "pin", "check", "show", "compile")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    command_line = CommandLine(
        program="ferrite-runtime",
        description="Looks at, tunes and measures bundles of kernels; compiles them for GPUs that need not be there.",
        package="ferrite_runtime.commands",
        commands=COMMANDS,
        refusals=(FerriteRuntimeError,),
    )
    return command_line.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
