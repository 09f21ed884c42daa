"""Programs in processes of their own: what surrounds a program cannot be changed from inside of another one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS = 240


def run(
    *command: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Returns what became of Python with these arguments; in ``env``, None takes a variable away."""
    environment = {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    """Returns what a program printed, which ended as it should."""
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout[-500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def run_program(
    source: str, folder: Path, *options: str, arguments: Sequence[str] = (), env: Mapping[str, str | None] | None = None
) -> str:
    """Returns what a program in a file of its own printed, run with options of Python and arguments of its own."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source))
    return succeed(run(*options, str(path), *arguments, env=env))
