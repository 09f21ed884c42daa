"""A compile worker: reads jobs from its standard input and answers on its output.

``python -m ferrite_runtime.compilation.worker`` starts it. It imports Triton and never torch, starts in a fraction of a
second, and ends when its input ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import Any, BinaryIO

from ferrite_runtime.compilation.triton_adapter import Job, compile_job, prepare_worker
from ferrite_runtime.compilation.worker_messages import encode_frame, read_frame
from ferrite_runtime.errors import FerriteRuntimeError, KernelCompileError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.process.environment_variables import worker_scratch

PARENT_SECONDS = 2.0


def answer(head: dict[str, Any]) -> bytes:
    """Returns the answer to one job, as bytes to send: a binary, or the reason why there is none."""
    try:
        job = Job(
            spec := KernelSpec.from_mapping(head["spec"]),
            Config.from_mapping(head["config"], free=spec.form == "user"),
            Target.from_mapping(head["target"]),
            head["aligned"],
            head.get("wants_ptx", False),
            tuple((position, divisor) for position, divisor in head.get("divisors", ())),
        )
        binary = compile_job(job)
    except KernelCompileError as error:
        return encode_frame({"ok": False, "message": error.message})
    except FerriteRuntimeError as error:
        return encode_frame({"ok": False, "message": str(error)})
    return encode_frame({"ok": True, "header": binary.header()}, binary.code)


def serve(source: BinaryIO, sink: BinaryIO, scratch: str) -> None:
    """Answers jobs until the input ends.

    Args:
        source: where jobs come from.
        sink: where answers go.
        scratch: the folder of Triton's temporary files, emptied after each job.
    """
    prepare_worker()  # the slow imports happen before the first job arrives
    sink.write(encode_frame({"ready": True}))
    sink.flush()
    while (frame := read_frame(source.read)) is not None:
        sink.write(answer(frame[0]))
        sink.flush()
        for entry in os.scandir(scratch):
            shutil.rmtree(entry.path, ignore_errors=True)


def follow_parent(parent: int) -> None:
    """Ends this process when its parent is gone.

    The end of the input says so as well, unless a fork of the parent still holds the other end of the pipe.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(0)


def main() -> None:
    """Serves this process's standard streams; whatever compilers print goes to the error stream instead."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    scratch = worker_scratch()
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    try:
        serve(sys.stdin.buffer, sink, scratch)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    # Nothing is left to clean up, and interpreter shutdown with a compiler loaded is slow.
    os._exit(0)


if __name__ == "__main__":
    main()
