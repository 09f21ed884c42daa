"""``ferrite-runtime``, also ``python -m ferrite_runtime``: the commands, by name.

The exit status is 0 where all is well, 1 where a command found what it looks for to be wrong, and 2 where it could not
do its work; a message on stderr then says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from ferrite_runtime.commands.output import REFUSED
from ferrite_runtime.errors import FerriteRuntimeError

# Modules of `commands`, each with a first line that says what it does, `add_arguments(parser)` and `run(arguments)`.
COMMANDS = ("check", "verify", "show", "compile")


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="ferrite-runtime",
        description="Checks, shows, compiles and tunes Ferrite programs.",
        epilog="exit status: 0 all is well, 1 something is not as it should be, 2 the command could not do its work",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"ferrite_runtime.commands.{name.replace('-', '_')}")
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parsed = build_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except FerriteRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    return status


if __name__ == "__main__":
    sys.exit(main())
