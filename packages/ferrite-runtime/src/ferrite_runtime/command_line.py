"""Command lines of several commands, each a module: ``add_arguments(parser)`` says what it takes, ``run`` does it.

The exit status is what the command returns: 0 where all is well, 1 where what it looked at is not as it should be. It
is 2 where it could not do its work; a message on stderr then says why, and what to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

REFUSED = 2
EPILOG = "exit status: 0 all is well, 1 something is not as it should be, 2 the command could not do its work"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line.

    Attributes:
        program: what people type.
        description: a sentence about it.
        package: where the modules of the commands are; the first line of each says what it does.
        commands: their names.
        refusals: errors that are meant for whoever typed the command; others are bugs, and show where they happened.
    """

    program: str
    description: str
    package: str
    commands: tuple[str, ...]
    refusals: tuple[type[Exception], ...]

    def parser(self) -> argparse.ArgumentParser:
        """Returns the parser of all commands."""
        parser = argparse.ArgumentParser(prog=self.program, description=self.description, epilog=EPILOG)
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for name in self.commands:
            module = import_module(f"{self.package}.{name.replace('-', '_')}")
            summary = (module.__doc__ or "").splitlines()[0]
            command = commands.add_parser(name, help=summary, description=summary, epilog=EPILOG)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
        return parser

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Runs the command that some arguments (None: those of this process) name; returns the exit status."""
        parsed = self.parser().parse_args(arguments)
        try:
            status: int = parsed.run(parsed)
        except self.refusals as error:
            hint = getattr(error, "hint", "")
            sys.stderr.write(f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))
            return REFUSED
        return status
