"""Parts of programs in CUDA graphs: calls inside calls, several threads, memory pools of captures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.test_graphs import DEVICE, Recorder, graphed, only
from ferrite_runtime.engines import graph_recorder
from ferrite_runtime.engines.cuda_graphs import graphed_host
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.formats.program import Program
from graph_part_programs import built, expected_with_item, with_item

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def test_a_program_that_calls_itself_runs_from_the_host_inside() -> None:
    call, _ = graphed(with_item(), least=2)
    x, w = torch.randn(8), torch.randn(8)
    inner = []
    host = None

    def again(given):
        if len(inner) < 8:
            inner.append(call([w, x]))
        return host(given)

    for _ in range(2):
        call([x, w])
    part = only(call).parts[1]
    host, part._host = part._host, again
    outer = call([x, w])
    torch.testing.assert_close(outer, expected_with_item(x, w), rtol=0, atol=1e-6)
    torch.testing.assert_close(inner[0], expected_with_item(w, x), rtol=0, atol=1e-6)


def in_thread(run):
    """Returns what a function returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(timeout=60)


def test_a_call_beside_another_runs_from_the_host_and_does_not_wait() -> None:
    call, recorder = graphed(with_item(), least=2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(3):
        call([x, w])
    part, replays = only(call).parts[1], recorder.replays
    host, inner = part._host, []

    def beside(given):
        inner.append(in_thread(lambda: call([w, x])))
        return host(given)

    part._host = beside
    torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    torch.testing.assert_close(inner[0], expected_with_item(w, x), rtol=0, atol=1e-6)
    assert recorder.replays == replays + 2


def test_a_thread_that_has_not_run_the_program_does_not_capture_it() -> None:
    call, recorder = graphed(with_item(), least=2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(3):
        in_thread(lambda: call([x, w]))
    assert recorder.captures == 0
    for _ in range(2):
        call([x, w])
    assert recorder.captures == 2


def test_a_thread_that_is_new_plays_what_is_captured_and_is_not_given_what_others_have_read() -> None:
    call, recorder = graphed(with_item(), least=2)
    x, w, other = torch.randn(8), torch.randn(8), torch.randn(8)
    for _ in range(3):
        call([x, w])
    replays = recorder.replays
    in_thread(lambda: call([x, w]))
    assert recorder.replays == replays + 2

    def twice():
        return [call([other, w]) for _ in range(2)]

    for found in in_thread(twice):
        torch.testing.assert_close(found, expected_with_item(other, w), rtol=0, atol=1e-6)
    torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)


def test_what_is_captured_in_inference_mode_is_played_outside_of_it() -> None:
    call, recorder = graphed(with_item(), least=2)
    w = torch.randn(8)
    with torch.inference_mode():
        for _ in range(3):
            call([torch.randn(8), w])
    assert recorder.captures == 2
    x = torch.randn(8)
    torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)


def test_parts_of_one_round_have_one_pool_after_the_device_is_done_and_the_last_round_forgotten() -> None:
    recorder, log = Recorder(), []

    def capture(run, pool):
        log.append(f"capture {pool}")
        return recorder(run)

    made_ = Program.from_mapping(with_item())
    engine = InterpretedEngine.load(made_)
    port = graph_recorder.Recorder(
        capture,
        wait=lambda: log.append(f"wait {sum(part.is_played for part in only(call).parts)}"),
        make_pool=lambda: log.append(f"pool {sum(part.is_played for part in only(call).parts)}") or len(log),
    )
    call = graphed_host(made_, engine.first(DEVICE), built(engine), DEVICE, port, 2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(4):
        call([x, w])
    call([x.clone(), w])
    assert log == ["wait 0", "pool 0", "capture 2", "capture 2", "wait 2", "pool 0", "capture 6", "capture 6"]


def test_what_follows_a_capture_that_failed_has_another_pool() -> None:
    recorder, pools = Recorder(), []

    def capture(run, pool):
        pools.append(pool)
        if len(pools) == 1:
            raise RuntimeError("operation not permitted")
        return recorder(run)

    made_, numbers = Program.from_mapping(with_item()), iter(range(9))
    engine = InterpretedEngine.load(made_)
    port = graph_recorder.Recorder(capture, make_pool=lambda: next(numbers))
    call = graphed_host(made_, engine.first(DEVICE), built(engine), DEVICE, port, 2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(4):
        torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    assert pools == [0, 1]
    assert [part.is_played for part in only(call).parts] == [False, False, True, False]
