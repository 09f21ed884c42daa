"""When a program has nothing left to compile that its first call would wait for."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from ferrite_runtime import load_program
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.size_buckets import BucketedKernel
from ferrite_runtime.errors import KernelCompileError
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program import Program
from runtime_fakes import FakePool, FakeStreams, fake_machine
from runtime_kernels import one_kernel, pointwise, scaled

torch = pytest.importorskip("torch")


class SlowPool(FakePool):
    """Answers jobs when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Future[Binary], Job]] = []

    def submit(self, job: Job, seconds: float = 300.0) -> Future[Binary]:
        self.asked.append((Future(), job))
        return self.asked[-1][0]

    def answer(self, number: int, error: Exception | None = None) -> None:
        future, job = self.asked[number]
        if error is None:
            future.set_result(super().submit(job).result())
        else:
            future.set_exception(error)


def test_a_program_is_ready_when_all_that_first_launches_choose_from_is_compiled() -> None:
    pool = SlowPool()
    machine = fake_machine(pool=pool, tune="quick")
    engine = CudaEngine(
        Program.from_mapping(one_kernel(pointwise("a + 1"))), FakeStreams().platform(), lambda index: machine
    )
    engine.device_kernels(0)
    asked = len(pool.asked)
    assert asked > 1
    for number in range(1, asked):
        assert not engine.is_ready()
        pool.answer(number, KernelCompileError("k", (), "no such instruction") if number == 1 else None)
    assert not engine.is_ready(), "the first choice is still compiling"
    waiting = threading.Thread(target=engine.wait)
    waiting.start()
    pool.answer(0)
    waiting.join(60)
    assert (waiting.is_alive(), engine.is_ready()) == (False, True)
    engine.first(torch.device("cpu", 0))([torch.randn(1000)])
    assert len(pool.asked) == asked, "the first call found everything compiled"


def test_a_kernel_that_takes_sizes_is_ready_when_each_bucket_that_was_begun_is() -> None:
    pool = SlowPool()
    kernel = BucketedKernel(KernelSpec.from_mapping(scaled()), fake_machine(pool=pool, tune="none"))
    assert kernel.is_ready(), "nothing was begun"
    for elements in (4096, 4097):
        kernel.at({"n": elements})
        assert not kernel.is_ready()
        pool.answer(len(pool.asked) - 1)
        assert kernel.is_ready()
    assert len(pool.asked) == 2


def test_an_interpreted_program_is_always_ready() -> None:
    assert load_program(one_kernel(pointwise("a + 1"))).is_ready()
