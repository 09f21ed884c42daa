"""Captures, and what one that fails leaves behind in torch: in its current stream, its allocator, its generator."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ferrite_runtime.engines.graph_recorder import CapturePort, capture_graph


class FakeTorch:
    """What a capture asks of torch. One that is spoilt cannot be ended, and leaves behind what torch's leaves."""

    def __init__(self) -> None:
        self.stream = "the caller's"
        self.is_spoilt = False
        self.pools: list[Any] = []
        self.can_draw = True
        self.log: list[str] = []

    def port(self) -> CapturePort:
        return CapturePort(
            lambda: FakeGraph(self),
            self.on_stream,
            lambda: self.log.append("clear"),
            self.end_allocation,
            lambda pool: self.log.append(f"release {pool}"),
            lambda: self.log.append("touch"),
        )

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        before, self.stream = self.stream, "side"
        try:
            yield
        finally:
            self.stream = before

    def end_allocation(self, pool: Any) -> None:
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)


class FakeGraph:
    """A graph of `FakeTorch`."""

    def __init__(self, owner: FakeTorch) -> None:
        self.owner = owner
        self.pool: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.pool = pool
        self.owner.log.append(f"begin {pool} {capture_error_mode} {self.owner.stream}")
        self.owner.pools.append(pool)
        self.owner.can_draw = False

    def capture_end(self) -> None:
        is_spoilt, self.owner.is_spoilt = self.owner.is_spoilt, False
        if is_spoilt:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture\n...")
        self.owner.pools.remove(self.pool)
        self.owner.can_draw = True

    def replay(self) -> None:
        self.owner.log.append("replay")


def test_a_capture_has_a_stream_of_its_own_and_scratch_memory_of_its_pool() -> None:
    fake = FakeTorch()
    results, replay = capture_graph(fake.port(), lambda: fake.log.append(f"run {fake.stream}") or (1, 2), "pool")
    replay()
    assert results == (1, 2)
    assert fake.log == ["clear", "begin pool thread_local side", "run side", "clear", "replay"]
    assert fake.stream == "the caller's"


def test_nothing_is_collected_while_work_is_captured() -> None:
    for error in (None, ValueError("no")):
        fake, seen = FakeTorch(), []

        def run(seen=seen, error=error) -> tuple[Any, ...]:
            seen.append(gc.isenabled())
            if error is not None:
                raise error
            return ()

        with contextlib.suppress(ValueError):
            capture_graph(fake.port(), run, "pool")
        assert (seen, gc.isenabled()) == ([False], True)


def spoil(fake: FakeTorch, error: BaseException | None) -> tuple[Any, ...]:
    fake.is_spoilt = True
    if error is not None:
        raise error
    return ()


@pytest.mark.parametrize(
    "error", [None, RuntimeError("operation not permitted when stream is capturing"), KeyError(), KeyboardInterrupt()]
)
def test_a_capture_that_cannot_be_ended_leaves_nothing_behind(error: BaseException | None) -> None:
    fake = FakeTorch()
    with pytest.raises(type(error or RuntimeError())) as raised:
        capture_graph(fake.port(), lambda: spoil(fake, error), "pool")
    assert raised.value is error or "due to a previous error" in str(raised.value)
    assert (fake.stream, fake.pools, fake.can_draw) == ("the caller's", [], True)
    assert "release pool" in fake.log
    assert fake.log.count("touch") == 1
    assert capture_graph(fake.port(), lambda: (3,), "pool")[0] == (3,)


def test_what_raises_in_a_capture_that_ends_is_raised() -> None:
    fake = FakeTorch()

    def run() -> tuple[Any, ...]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        capture_graph(fake.port(), run, "pool")
    assert (fake.stream, fake.pools, fake.can_draw) == ("the caller's", [], True)
    assert "release pool" not in fake.log
