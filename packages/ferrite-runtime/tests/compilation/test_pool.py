"""Compile workers: real processes, with and without trouble."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ferrite_runtime.compilation.compiler import Compiler, job_key
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.compilation.worker_pool import CompilePool, Worker
from ferrite_runtime.errors import KernelCompileError, WorkerError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.store.interface import MemoryStore
from runtime_kernels import pointwise

SM90 = Target.parse("sm_90")


def job(expression: str = "a + 1", block: int = 1024, **extra) -> Job:
    return Job(KernelSpec.from_mapping(pointwise(expression, **extra)), Config.of({"XBLOCK": block}, 4), SM90)


@pytest.fixture
def pool():
    made = CompilePool(1)
    yield made
    made.close()


def test_worker_compiles_without_torch(pool: CompilePool) -> None:
    binary = pool.submit(job("fmath.tanh(a)")).result(120)
    assert binary.code[:4] == b"\x7fELF"
    assert binary.param_sizes[:2] == (8, 8)
    assert binary.hidden == len(binary.param_sizes) - 2
    assert binary.registers > 8
    assert binary.local_bytes == 0
    assert pool.submit(job("fmath.tanh(a)")).result(60).code == binary.code, "the same job gives the same bytes"
    (worker,) = pool._live
    maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "libtriton" in maps
    assert "libtorch" not in maps


def test_first_job_finds_everything_imported_and_triton_undigested(tmp_path: Path) -> None:
    done = run_script(
        """
        import sys
        from test_pool import job
        from ferrite_runtime.compilation.triton_adapter import compile_job, prepare_worker
        prepare_worker()
        import triton.runtime.cache
        assert len(triton.runtime.cache.triton_key()) < 40  # the digests of Triton's own files are 64 characters each
        before = set(sys.modules)
        assert compile_job(job("fmath.tanh(a)")).code
        print("imported", *sorted(set(sys.modules) - before))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["imported"]


def test_failure_carries_the_compiler_message(pool: CompilePool) -> None:
    with pytest.raises(KernelCompileError, match=r"(?s)kernel pointwise.*no_such_name"):
        pool.submit(job("a + no_such_name")).result(120)
    assert pool.submit(job("a + 2")).result(60).code


def test_worker_that_dies_is_replaced(pool: CompilePool) -> None:
    pool.submit(job()).result(120)
    (worker,) = pool._live
    worker.process.kill()
    worker.process.wait()
    assert pool.submit(job("a + 3")).result(120).code
    assert pool._live != {worker}


def script_worker(text: str) -> Worker:
    prologue = (
        "import sys, time, os\nfrom ferrite_runtime.compilation.worker_messages import *\nout = sys.stdout.buffer\n"
    )
    return Worker.start([sys.executable, "-c", prologue + textwrap.dedent(text)])


def test_hung_worker_is_given_up_after_the_time_limit() -> None:
    pool = CompilePool(1, lambda: script_worker("out.write(encode_frame({}))\nout.flush()\ntime.sleep(60)"))
    start = time.monotonic()
    with pytest.raises(KernelCompileError, match="no answer within"):
        pool.submit(job(), seconds=0.3).result(60)
    assert time.monotonic() - start < 20
    pool.close()


def test_last_words_of_a_crashed_worker_are_reported() -> None:
    crash = "out.write(encode_frame({}))\nout.flush()\nread_frame(sys.stdin.buffer.read)\n"
    crash += "os.write(2, b'segfault in pass 7')\nos._exit(139)"
    pool = CompilePool(1, lambda: script_worker(crash))
    with pytest.raises(KernelCompileError, match="segfault in pass 7"):
        pool.submit(job()).result(60)
    pool.close()


def test_compiler_that_crashes_is_not_asked_the_same_again(caplog: pytest.LogCaptureFixture) -> None:
    started = []

    def start() -> Worker:
        started.append(script_worker(CRASHING))
        return started[-1]

    pool = CompilePool(1, start)
    crashed = pytest.raises(KernelCompileError, match=r"kernel pointwise.*the compiler crashed \(SIGSEGV\)")
    with caplog.at_level(logging.INFO, "ferrite_runtime"), crashed as raised:
        pool.submit(job()).result(60)
    assert "workers=0" not in str(raised.value), "in this process it would end the user's program"
    assert len(started) == 1
    (record,) = [record for record in caplog.records if "crashed" in record.message]
    assert record.levelno == logging.INFO, "other configs of the kernel are tried"
    assert "kernel pointwise (XBLOCK=1024" in record.message
    pool.close()


CRASHING = """
    import resource, signal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out.write(encode_frame({}))
    out.flush()
    read_frame(sys.stdin.buffer.read)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_pool_that_cannot_start_workers_says_so() -> None:
    def start() -> Worker:
        raise WorkerError("no processes left")

    with pytest.raises(KernelCompileError, match="no processes left"):
        CompilePool(1, start).submit(job()).result(60)


def test_idle_worker_ends_and_a_new_one_starts() -> None:
    pool = CompilePool(1, idle_seconds=0.2)
    pool.submit(job()).result(120)
    deadline = time.monotonic() + 20
    while (pool._threads or pool._live) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pool._threads == 0
    assert not pool._live
    assert pool.submit(job("a + 4")).result(120).code
    pool.close()


def test_equal_jobs_share_one_compilation() -> None:
    class Counting:
        submitted = 0

        def submit(self, job, seconds=300.0):
            self.submitted += 1
            return CompilePool(0).submit(job)

    pool = Counting()
    compiler = Compiler(pool, MemoryStore())
    assert compiler.submit(job()) is compiler.submit(job())
    compiler.submit(job(block=512))
    assert pool.submitted == 2


def test_job_key_depends_on_everything_that_shapes_the_binary() -> None:
    base = job()
    others = [
        job("a + 2"),
        job(block=512),
        Job(base.spec, base.config, Target.parse("sm_80")),
        Job(base.spec, base.config, base.target, aligned=False),
        Job(base.spec, Config.of({"XBLOCK": 1024}, 8), base.target),
    ]
    assert len({job_key(base), *map(job_key, others)}) == 6
    assert job_key(job()) == job_key(base)


def run_script(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    environment |= {"FERRITE_CACHE_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_main_given_on_the_command_line_forks_and_leaves_no_worker(tmp_path: Path) -> None:
    done = run_script(
        """
        import os
        from test_pool import job
        from ferrite_runtime.compilation.compiler import shared_compiler
        from ferrite_runtime.process.options import Options
        from ferrite_runtime.compilation.worker_pool import shared_pool
        compiler = shared_compiler(Options(workers=1))
        assert compiler.submit(job()).result(100).code
        print("worker", *[w.process.pid for w in shared_pool(1)._live], flush=True)
        child = os.fork()
        if child == 0:
            compiler = shared_compiler(Options(workers=1))
            assert compiler.submit(job("a + 5")).result(100).code
            print("child done", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert compiler.submit(job("a + 6")).result(100).code
        print("parent done")
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "child done" in done.stdout
    assert "parent done" in done.stdout
    pid = int(done.stdout.split()[1])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_worker_of_a_killed_parent_ends_though_a_fork_lives_on(tmp_path: Path) -> None:
    done = run_script(
        """
        import os, signal, sys, time
        from test_pool import job
        from ferrite_runtime.compilation.worker_pool import CompilePool
        pool = CompilePool(1)
        pool.submit(job()).result(100)
        (worker,) = pool._live
        print(worker.process.pid, flush=True)
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            time.sleep(30)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    worker = Path(f"/proc/{int(done.stdout)}")
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()


def test_import_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    done = run_script(
        """
        import sys
        import ferrite_runtime, ferrite_runtime.policies.candidates
        import ferrite_runtime.store.interface, ferrite_runtime.compilation.worker_pool
        print([name for name in ("torch", "triton", "numpy") if name in sys.modules])
        """,
        tmp_path,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_closing_with_work_under_way_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    pool = CompilePool(1)
    pool.submit(job()).result(120)
    (worker,) = pool._live
    os.kill(worker.process.pid, signal.SIGSTOP)  # so that the next job is surely not done in time
    future = pool.submit(job("a + 3"))
    deadline = time.monotonic() + 20
    while pool._running == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    with caplog.at_level(logging.DEBUG, "ferrite_runtime"):
        pool.close()
        with pytest.raises(KernelCompileError, match="pool is closed"):
            future.result(20)
    assert not caplog.records
