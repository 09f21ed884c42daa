"""``python -m ferrite_torch``: the commands, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ferrite_runtime.command_line import CommandLine
from ferrite_torch.errors import FerriteError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    command_line = CommandLine(
        program="python -m ferrite_torch",
        description="Compiles models ahead of time.",
        package="ferrite_torch.commands",
        commands=("export",),
        refusals=(FerriteError,),
    )
    return command_line.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
