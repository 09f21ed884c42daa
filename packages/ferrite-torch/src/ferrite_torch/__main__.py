"""``python -m ferrite_torch``: the commands, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ferrite_runtime.command_line import CommandLine
from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_torch import __version__
from ferrite_torch.errors import CompileError, FerriteError, RunError, Unsupported


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    command_line = CommandLine(
        program="python -m ferrite_torch",
        version=f"ferrite-torch {__version__}",
        description="Compiles models ahead of time.",
        package="ferrite_torch.commands",
        commands=("export",),
        refusals=(FerriteError, FerriteRuntimeError),
        faults=(Unsupported, CompileError, RunError),
    )
    return command_line.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
