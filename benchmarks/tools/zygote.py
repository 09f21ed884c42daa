"""Starts each measurement in a process of its own without paying `import torch` every time.

A zygote is a process that has imported some modules and nothing else: no device context, no compiler state. For each
request, a JSON line on its standard input, it forks a child that becomes the leader of its own process group, writes
to its own log and runs one function; the reply, a JSON line on standard output, is the child's exit status. A child
that outlives its time is killed together with everything it started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path


@dataclass(frozen=True, slots=True)
class Zygote:
    """A running zygote, as seen by the process that asks it for children."""

    process: subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended: its exit status (negative: the signal), whether its time ran out, and seconds taken."""

    status: int
    timed_out: bool
    seconds: float


def start_zygote(preload: Sequence[str]) -> Zygote:
    """Returns a zygote that has imported `preload`."""
    command = [sys.executable, str(Path(__file__).resolve()), *preload]
    return Zygote(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def run_child(
    zygote: Zygote,
    function: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    log: Path,
    timeout: float,
) -> Exit:
    """Runs `function` ("module:name") with keyword `arguments` in a new child and waits for its end."""
    request = {
        "function": function,
        "arguments": dict(arguments),
        "environment": dict(environment),
        "log": str(log),
        "timeout": timeout,
    }
    assert zygote.process.stdin is not None
    assert zygote.process.stdout is not None
    zygote.process.stdin.write(json.dumps(request) + "\n")
    zygote.process.stdin.flush()
    reply = zygote.process.stdout.readline()
    if not reply:
        raise RuntimeError("the zygote ended; its standard error says why")
    return Exit(**json.loads(reply))


def stop_zygote(zygote: Zygote) -> None:
    """Ends the zygote, which has no child at that time."""
    assert zygote.process.stdin is not None
    zygote.process.stdin.close()
    zygote.process.wait()


def live_as_child(request: Mapping[str, Any]) -> int:
    """Runs the requested function in this freshly forked process and returns its exit status."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    os.environ.update(request["environment"])
    try:
        module, _, name = request["function"].partition(":")
        getattr(importlib.import_module(module), name)(**request["arguments"])
    except BaseException:  # noqa: BLE001 - the child's last words belong into its log, whatever they are
        traceback.print_exc()
        return 1
    return 0


def end_group(leader: int) -> None:
    """Kills the process group that a child led: compile workers that it left behind too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def wait_for_child(child: int, timeout: float) -> Exit:
    """Waits for the child at most `timeout` seconds, then clears away what is left of its group."""
    started = time.monotonic()
    timed_out = False
    while True:
        ended, raw = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if not timed_out and time.monotonic() - started > timeout:
            timed_out = True
            end_group(child)
        time.sleep(0.02)
    end_group(child)
    return Exit(os.waitstatus_to_exitcode(raw), timed_out, time.monotonic() - started)


def serve(preload: Sequence[str]) -> None:
    """Imports `preload`, then answers requests until the standard input ends."""
    for name in preload:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            status = live_as_child(request)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        ended = wait_for_child(child, request["timeout"])
        print(json.dumps({"status": ended.status, "timed_out": ended.timed_out, "seconds": ended.seconds}), flush=True)


if __name__ == "__main__":
    # Libraries below torch keep idle threads; a child has none of them and starts its own.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    add_packages_to_path()
    serve(sys.argv[1:])
