"""What command lines that read programs have in common: how files are read, how errors are told, exit statuses.

====== ===========================================================================================
status when
====== ===========================================================================================
0      all is well
1      what the command looked at is not as it should be: no program, or one that breaks rules
2      the command could not do its work: wrong arguments, a file that is not there
130    interrupted (Ctrl-C)
141    whoever read the output closed it (``| head``)
====== ===========================================================================================

With ``--json`` an error stands on stdout, too: ``{"error": {"kind", "message", "status"}}``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

FOUND, REFUSED, INTERRUPTED, CLOSED = 1, 2, 128 + signal.SIGINT, 141
EPILOG = "exit status: 0 all is well, 1 something is not as it should be, 2 the command could not do its work"


class CommandRefused(Exception):
    """The command cannot do its work: an argument is wrong, or a file cannot be read."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are told as all others are, with what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Refuses the arguments.

        Raises:
            CommandRefused: always.
        """
        sys.stderr.write(self.format_usage())
        raise CommandRefused(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = [str(choice) for choice in action.choices or ()]
        if known and str(value) not in known:
            like = get_close_matches(str(value), known, 1)
            meant = f", did you mean {like[0]!r}?" if like else ""
            name = action.metavar or action.dest
            raise CommandRefused(f"{name}: {value!r} is none of {', '.join(known)}{meant}")


def read_text(file: str) -> str:
    """Returns the text of a file, or of standard input for ``-``.

    Raises:
        CommandRefused: there is no such file, or it may not be read, or it is none.
        ValueError: it holds no text.
    """
    try:
        if file == "-":
            return sys.stdin.read()
        if Path(file).exists() and not (Path(file).is_file() or Path(file).is_dir()):
            raise CommandRefused(f"{file} is no file: write to one first, or to standard input, which is -")
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandRefused(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text in UTF-8: {error.reason} at byte {error.start}") from error


def read_json(file: str) -> Any:
    """Returns the value in a JSON file.

    Raises:
        CommandRefused: as `read_text` does.
        ValueError: it is no JSON; the message says where.
    """
    text = read_text(file)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{error.lineno}:{error.colno}: this is no JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(f"{file}: this JSON is nested too deeply") from error


def run_command(
    parse: Callable[[], argparse.Namespace],
    work: Callable[[argparse.Namespace], None],
    given: Sequence[str] | None,
    faults: tuple[type[Exception], ...],
) -> int:
    """Runs a command and returns its exit status.

    Args:
        parse: reads the arguments.
        work: does what they ask for.
        given: the arguments; None for those of this process.
        faults: errors that tell what is wrong with the program that the command looks at.
    """
    is_json = "--json" in (sys.argv[1:] if given is None else given)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python began, as ``>&-`` does
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # as long as it runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what the encoding of a terminal lacks is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        work(parse())
        sys.stdout.flush()
    except CommandRefused as error:
        return _tell(error, REFUSED, is_json=is_json)
    except faults as error:
        return _tell(error, FOUND, is_json=is_json)
    except BrokenPipeError:
        _drop_output()
        return CLOSED
    except OSError as error:
        _drop_output()
        return _tell(CommandRefused(f"the output cannot be written: {error.strerror or error}"), REFUSED, is_json=False)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return 0


def _drop_output() -> None:
    """Has what is still to be written go nowhere, so that the interpreter's end does not fail at it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _tell(error: Exception, status: int, *, is_json: bool) -> int:
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if is_json:
        fields = {"kind": type(error).__name__, "message": message, "status": status}
        sys.stdout.write(json.dumps({"error": fields}, indent=2) + "\n")
    sys.stderr.write(f"{message}\n" if status == FOUND else f"error: {message}\n")
    return status
