"""What a forked child finds: locks that are free, work that is whole, and torch's own words about its GPU."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ferrite_runtime.process.forking import hold_through_forks, renewed_in_children


def status_of_child(function: Callable[[], bool]) -> int:
    """Returns 0 if the function is true in a forked child; one that waits for ever is ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if function() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_thread(function: Callable[[threading.Event], None]) -> tuple[threading.Thread, threading.Event]:
    """Returns a running thread that has said that it is where it should be, and what lets it go on."""
    is_there, may_go = threading.Event(), threading.Event()

    def work() -> None:
        function(is_there)
        may_go.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_there.wait(20)
    return thread, may_go


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(make: Callable[[], threading.Lock]) -> None:
    lock = renewed_in_children(make())

    def hold(is_there: threading.Event) -> None:
        lock.acquire()
        is_there.set()

    thread, may_go = in_thread(hold)
    assert status_of_child(lambda: lock.acquire(blocking=False)) == 0
    assert not lock.acquire(blocking=False)
    may_go.set()
    thread.join()


def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    lock = renewed_in_children(threading.RLock())

    def is_released() -> bool:
        lock.release()
        return True

    with lock:
        assert status_of_child(is_released) == 0


class Work:
    """Something that is half done for a while."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.parts = [0, 0]

    def hold(self) -> None:
        self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


def test_a_fork_waits_for_what_would_be_left_half_done() -> None:
    work, ended = Work(), threading.Event()
    hold_through_forks(work)

    def change(is_there: threading.Event) -> None:
        is_there.set()
        while not ended.is_set():
            with work.lock:
                work.parts[0] += 1
                time.sleep(0.001)
                work.parts[1] += 1

    thread, may_go = in_thread(change)
    try:
        for _ in range(5):
            assert status_of_child(lambda: work.parts[0] == work.parts[1] and not work.lock.locked()) == 0
    finally:
        ended.set()
        may_go.set()
        thread.join()


def test_a_driver_that_a_fork_lost_has_torch_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from ferrite_runtime.devices.cuda_driver import CudaDriver
    from ferrite_runtime.errors import DriverError

    driver = object.__new__(CudaDriver)
    driver._library = SimpleNamespace(cuGetErrorName=lambda *_: 0, cuGetErrorString=lambda *_: 0)
    told = "Cannot re-initialize CUDA in forked subprocess"

    def init() -> None:
        raise RuntimeError(told)

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(RuntimeError, match=told):
        driver.fail(3, "cuLaunchKernelEx")
    assert isinstance(driver.fail(1, "cuLaunchKernelEx"), DriverError)
