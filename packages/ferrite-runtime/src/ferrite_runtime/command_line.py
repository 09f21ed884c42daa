"""Command lines of several commands, each a module: ``add_arguments(parser)`` says what it takes, ``run`` does it.

The exit status of every command:

====== ==============================================================================================================
status when
====== ==============================================================================================================
0      all is well
1      what the command looked at is not as it should be: a damaged file, a kernel that does not compile, a miss
2      the command could not do its work: wrong arguments, a file that is not there, no GPU
130    interrupted (Ctrl-C)
141    whoever read the output closed it (``| head``)
====== ==============================================================================================================

Where it is not 0 for an error, a message on stderr says why, and what to do; with ``--json`` stdout has the same as
``{"error": {"kind", "message", "hint", "status"}}``. Errors that are in neither list of a `CommandLine` are bugs, and
show where they happened.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from ferrite_runtime.commands.output import FOUND, REFUSED, print_json
from ferrite_runtime.errors import FileUnreadable
from ferrite_runtime.process.option_ranges import did_you_mean

INTERRUPTED, CLOSED = 128 + signal.SIGINT, 141  # 128 + SIGPIPE, which not every system has
EPILOG = "exit status: 0 all is well, 1 something is not as it should be, 2 the command could not do its work"


class _WrongArguments(Exception):
    """The arguments are none that the command takes."""

    def __init__(self, usage: str, message: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are told by the command line, as all others are."""

    def error(self, message: str) -> NoReturn:
        raise _WrongArguments(self.format_usage(), message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = [str(choice) for choice in action.choices or ()]
        if known and str(value) not in known:
            name = action.metavar or action.dest
            self.error(f"{name}: {value!r} is none of {', '.join(known)}{did_you_mean(value, known)}")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line.

    Attributes:
        program: what people type.
        version: what ``--version`` prints.
        description: a sentence about it.
        package: where the modules of the commands are; the first line of each says what it does.
        commands: their names.
        refusals: errors that are meant for whoever typed the command.
        faults: those of them that tell what is wrong with the thing that the command looked at.
        sound: those of the faults that tell nothing about it after all.
    """

    program: str
    version: str
    description: str
    package: str
    commands: tuple[str, ...]
    refusals: tuple[type[Exception], ...]
    faults: tuple[type[Exception], ...] = ()
    sound: tuple[type[Exception], ...] = ()

    def parser(self) -> argparse.ArgumentParser:
        """Returns the parser of all commands."""
        parser = _Parser(prog=self.program, description=self.description, epilog=EPILOG)
        parser.add_argument("--version", action="version", version=self.version)
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
        given = list(sys.argv[1:] if arguments is None else arguments)
        write_anything()
        try:
            status = self._run(given)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            return CLOSED
        except OSError as error:
            sys.stderr.write(f"error: the output cannot be written: {error.strerror or error}\n")
            _drop_output()
            return REFUSED
        except KeyboardInterrupt:
            sys.stderr.write(f"{self.program}: interrupted\n")
            return INTERRUPTED
        return status

    def _run(self, given: list[str]) -> int:
        has_json = "--json" in given
        try:
            parsed = self.parser().parse_args(given)
            has_json = bool(getattr(parsed, "json", False))
            status: int = parsed.run(parsed)
        except _WrongArguments as error:
            sys.stderr.write(error.usage)
            return tell_error(error, "WrongArguments", REFUSED, is_json=has_json)
        except self.refusals as error:
            is_fault = isinstance(error, self.faults) and not isinstance(error, self.sound)
            return tell_error(error, type(error).__name__, FOUND if is_fault else REFUSED, is_json=has_json)
        except OSError as error:
            if error.filename is None:  # of the output, of which no file's name is known
                raise
            unusable = FileUnreadable(error.filename, error)
            return tell_error(unusable, type(unusable).__name__, REFUSED, is_json=has_json)
        return status


def tell_error(error: Exception, kind: str, status: int, *, is_json: bool) -> int:
    """Writes an error to stderr for people and, if that is asked for, to stdout as JSON; returns the exit status."""
    hint = str(getattr(error, "hint", ""))
    if is_json:
        fields = {"kind": kind, "message": str(error), "hint": hint, "status": status}
        print_json({"error": fields})
    sys.stderr.write(f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))
    return status


def write_anything() -> None:
    """Has the output escape what its encoding lacks, as a terminal of ASCII does most of what people write.

    A stream that was closed before Python began, as ``>&-`` does, is None: what is written to it goes nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # as long as it runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Has what is still to be written go nowhere, so that the interpreter's end does not find the pipe closed again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
