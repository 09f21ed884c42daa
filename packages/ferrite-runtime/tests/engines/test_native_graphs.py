"""Launches in a row as graphs of the driver: what is launched is what would be one by one, whatever happens."""

from __future__ import annotations

import gc
import logging
import os
import struct
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.test_native_launcher import HIDDEN, LAUNCHER, PARAMS, Recording, literals, needs_launcher, waiting
from fake_graphs import (
    ADD,
    CREATE,
    DISCARD,
    DISCARD_EXECUTABLE,
    EXCHANGE_MODE,
    INSTANTIATE,
    IS_CAPTURING,
    LAUNCH,
    SET,
    FakeGraphs,
)
from ferrite_runtime.devices.cuda_driver import GRAPH_FUNCTIONS, NEVER, CudaDriver
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.native_sequence import Remainder, describe_sequence
from ferrite_runtime.formats.program import Program
from ferrite_runtime.launching.prepared_launch import pack_format
from ferrite_runtime.process.environment_variables import read_settings
from runtime_fakes import FakeStreams, fake_machine, graph_driver
from runtime_kernels import chain

# As launch_graph.h has them.
MIN_NODES, MAX_GRAPHS, FIRST_CALLS, MAX_DISTANT, MAX_STRANGE, FIRST_REST = 4, 128, 3, 8, 8, 1024

pytestmark = needs_launcher


class GraphRecording(Recording):
    """A driver with graphs whose kernels are kept as those are that are launched by themselves."""

    def __init__(self, statuses: tuple[int, ...] = ()) -> None:
        super().__init__(statuses)
        sizes = [struct.calcsize(code) for code in pack_format(PARAMS)[1:]] + [8] * HIDDEN
        self.graphs = FakeGraphs(self._launch, lambda function: sizes)

    def graph_functions(self) -> bytes:
        return self.graphs.functions


def bound(driver: Recording, steps, values: int, refused: list | None = None):
    """Returns the function of a sequence; ``refused`` gets what it leaves to Python, else nothing may be left."""

    def otherwise(*all_of_it) -> None:
        assert refused is not None, all_of_it
        refused.append(all_of_it)

    return LAUNCHER.bind(driver, 77, describe_sequence(steps, values), otherwise)


def kernels(count: int = MIN_NODES):
    """Returns launches whose first arguments are values of the call, one each."""
    return [waiting(literals(("value", k, 0)), programs=k + 1) for k in range(count)]


def addresses(count: int = MIN_NODES, first: int = 4096) -> list[int]:
    return [first + 16 * k for k in range(count)]


def begun(driver: Recording, count: int = MIN_NODES, refused: list | None = None):
    """Returns the function of so many launches after the calls that it takes one by one."""
    run = bound(driver, kernels(count), count, refused)
    for _ in range(FIRST_CALLS):
        run(5, *addresses(count))
    driver.launches.clear()
    return run


def first_addresses(driver: Recording) -> list[int]:
    return [struct.unpack_from("@P", packed)[0] for _, _, packed, _ in driver.launches]


def test_a_sequence_becomes_a_graph_after_some_calls() -> None:
    driver = GraphRecording()
    run = bound(driver, kernels(), MIN_NODES)
    for call in range(FIRST_CALLS):
        run(5, *addresses())
        assert driver.graphs.counts == {}, call
    for _ in range(4):
        run(5, *addresses())
    counts = driver.graphs.counts
    assert (counts[CREATE], counts[ADD], counts[INSTANTIATE], counts[SET], counts[LAUNCH]) == (1, MIN_NODES, 1, 0, 4)
    assert driver.launches == driver.launches[:MIN_NODES] * (FIRST_CALLS + 4)


def test_only_nodes_that_a_call_changes_are_set() -> None:
    driver = GraphRecording()
    run = begun(driver)
    given = addresses()
    for place in (None, 3, 3, 0):
        if place is not None:
            given[place] += 1024
        run(5, *given)
        assert first_addresses(driver)[-MIN_NODES:] == given
    assert driver.graphs.counts[SET] == 3
    run(5, *given)
    assert driver.graphs.counts[SET] == 3


@pytest.mark.parametrize("has_edges", [True, False])
def test_nodes_that_wait_themselves_start_once_those_before_them_have_begun(monkeypatch, *, has_edges: bool) -> None:
    driver = GraphRecording()
    if not has_edges:  # a driver before CUDA 12.3
        known = driver.graphs.functions
        monkeypatch.setattr(driver, "graph_functions", lambda: known[:-8] + bytes(8))
    least = {2: NEVER}
    steps = [waiting(literals(("value", k, 0)), programs=k + 1, pdl_from=least.get(k, 4)) for k in range(MIN_NODES)]
    run = bound(driver, steps, MIN_NODES)
    for _ in range(FIRST_CALLS + 2):
        run(5, *addresses())
    assert driver.graphs.counts[LAUNCH] == 2
    assert driver.graphs.edges == [(1, 0, 1, 0, 0, 0, 0, 0)] * (2 if has_edges else 0)
    assert first_addresses(driver) == addresses() * (FIRST_CALLS + 2)


def test_too_few_launches_in_a_row_are_no_graph() -> None:
    driver = GraphRecording()
    run = begun(driver, MIN_NODES - 1)
    for _ in range(5):
        run(5, *addresses(MIN_NODES - 1))
    assert driver.graphs.counts == {}


def test_without_the_option_or_the_functions_there_are_no_graphs() -> None:
    driver = GraphRecording()
    description = describe_sequence(kernels(), MIN_NODES)
    run = LAUNCHER.bind(driver, 77, description, print, graphs=False)
    for _ in range(5):
        run(5, *addresses())
    assert driver.graphs.counts == {}
    broken = SimpleNamespace(entry_points=lambda: (0, 0), graph_functions=lambda: b"abc")
    with pytest.raises(ValueError, match="not all there"):
        LAUNCHER.bind(broken, 0, description, print)


CALL = st.tuples(
    st.sampled_from([0, 5, 6, 2]),
    st.integers(0, 3),
    st.integers(-1, 4),
    st.lists(st.integers(0, MIN_NODES - 1), max_size=3),
    st.booleans() | st.just(False),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CALL, min_size=8, max_size=40))
def test_whatever_the_calls_are_what_is_launched_is_the_same(calls) -> None:
    """Streams, addresses, numbers of programs and captures change from call to call, and back."""
    steps = [*kernels(), waiting(literals(), 0, programs_value=MIN_NODES)]
    drivers = Recording(), GraphRecording()
    runs = [bound(driver, steps, MIN_NODES + 1) for driver in drivers]
    graphs = drivers[1].graphs
    for stream, block, programs, moved, is_captured in calls:
        given = addresses(first=4096 * (block + 1))
        for place in moved:
            given[place] += 512
        graphs.capturing = {stream} if is_captured else set()
        for run in runs:
            run(stream, *given, programs)
        assert drivers[0].launches == drivers[1].launches
        before, graphs.capturing = graphs.counts[LAUNCH], set()
        assert not is_captured or graphs.counts[LAUNCH] == before
    del run, runs
    gc.collect()
    assert graphs.alive == set()


def test_a_capturing_stream_gets_the_kernels() -> None:
    driver = GraphRecording()
    run = begun(driver)
    driver.graphs.capturing = {5}
    run(5, *addresses())
    assert len(driver.launches) == MIN_NODES
    assert driver.graphs.counts == {IS_CAPTURING: 1}
    driver.graphs.capturing = set()
    run(5, *addresses())
    driver.graphs.capturing = {5}
    run(5, *addresses())
    assert driver.graphs.counts[LAUNCH] == 1
    assert first_addresses(driver) == addresses() * 3


def test_a_kernel_without_programs_is_not_launched() -> None:
    driver = GraphRecording()
    steps = [*kernels(), waiting(literals(), 0, programs_value=MIN_NODES)]
    run = bound(driver, steps, MIN_NODES + 1)
    for programs in (2, 2, 2, 2, 0, 3, 3):
        run(5, *addresses(), programs)
    assert [grid[0] for grid, *_ in driver.launches[MIN_NODES :: MIN_NODES + 1]][:4] == [2, 2, 2, 2]
    assert len(driver.launches) == 7 * (MIN_NODES + 1) - 1
    assert (driver.graphs.counts[LAUNCH], driver.graphs.counts[SET]) == (3, 1)


def test_another_stream_gets_kernels_and_then_a_graph_of_its_own() -> None:
    driver = GraphRecording()
    run = begun(driver)
    run(5, *addresses())
    counts = driver.graphs.counts
    for _ in range(3):
        for stream in [6] * (MAX_STRANGE - 1) + [5]:
            run(stream, *addresses())
    assert (counts[CREATE], counts[LAUNCH]) == (1, 4)
    for _ in range(MAX_STRANGE):
        run(6, *addresses())
    assert (counts[CREATE], counts[LAUNCH]) == (2, 5)
    for stream in (5, 6, 6, 5):
        run(stream, *addresses())
    assert (counts[CREATE], counts[LAUNCH], counts[SET]) == (2, 9, 0)
    assert [stream for _, stream, *_ in driver.launches[-4 * MIN_NODES :: MIN_NODES]] == [5, 6, 6, 5]


def test_a_third_stream_takes_the_place_of_the_others() -> None:
    driver = GraphRecording()
    run = begun(driver)
    for stream in (5, 6, 7):
        for _ in range(MAX_STRANGE + 1):
            run(stream, *addresses())
    counts = driver.graphs.counts
    assert (counts[CREATE], counts[DISCARD], counts[DISCARD_EXECUTABLE]) == (3, 2, 2)
    assert len(driver.graphs.alive) == 2
    assert driver.launches == [(*launch[:1], stream, *launch[2:]) for stream in (5, 6, 7)
                               for launch in driver.launches[: MIN_NODES * (MAX_STRANGE + 1)]]  # fmt: skip


def test_the_stream_that_is_another_one_in_each_thread_gets_kernels() -> None:
    driver = GraphRecording()
    run = begun(driver)
    for _ in range(5):
        run(2, *addresses())
    assert driver.graphs.counts == {}


def test_addresses_that_always_change_are_set() -> None:
    driver = GraphRecording()
    run = begun(driver)
    counts = driver.graphs.counts
    calls = 3 * MAX_DISTANT
    for call in range(calls):
        given = addresses(first=4096 * (call + 1))
        run(5, *given)
        assert first_addresses(driver)[-MIN_NODES:] == given
    assert (counts[CREATE], counts[LAUNCH]) == (2, calls)
    assert counts[SET] >= MIN_NODES * (calls - 2)


def test_addresses_that_take_turns_have_a_graph_each() -> None:
    driver = GraphRecording()
    run = begun(driver)
    for call in range(100):
        run(5, *addresses(first=4096 * (1 + call % 2)))
        assert first_addresses(driver)[-MIN_NODES:] == addresses(first=4096 * (1 + call % 2))
    counts = driver.graphs.counts
    assert (counts[CREATE], counts[LAUNCH]) == (2, 100)
    assert counts[SET] < MIN_NODES * (MAX_DISTANT + 1)


def test_addresses_that_stay_every_other_time_keep_the_graph() -> None:
    driver = GraphRecording()
    run = begun(driver)
    for call in range(100):
        run(5, *addresses(first=4096 * (1 + call // 2)))
    assert (driver.graphs.counts[CREATE], driver.graphs.counts[LAUNCH]) == (1, 100)


def test_the_second_of_two_calls_at_once_launches_one_by_one() -> None:
    driver = GraphRecording()
    run = begun(driver)
    run(5, *addresses())
    driver.launches.clear()
    entered, left = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert left.wait(10)

    driver.graphs.before_launch = wait
    thread = threading.Thread(target=run, args=(5, *addresses(first=8192)))
    thread.start()
    assert entered.wait(10)
    run(5, *addresses(first=65536))
    assert first_addresses(driver) == addresses(first=65536)
    left.set()
    thread.join(10)
    assert first_addresses(driver) == addresses(first=65536) + addresses(first=8192)
    assert driver.graphs.counts[LAUNCH] == 2


def test_many_threads_launch_what_they_call() -> None:
    driver = GraphRecording()
    run = begun(driver)

    def work(n: int) -> None:
        for _ in range(50):
            run(n, *addresses(first=4096 * n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for n in range(5, 9):
        mine = [struct.unpack_from("@P", packed)[0] for _, stream, packed, _ in driver.launches if stream == n]
        assert mine == addresses(first=4096 * n) * 50


@pytest.mark.parametrize("name", [CREATE, ADD, INSTANTIATE, LAUNCH, SET, EXCHANGE_MODE])
def test_a_graph_that_the_driver_refuses_is_told_of_once(name: str) -> None:
    driver, refused = GraphRecording(), []
    run = begun(driver, refused=refused)
    if name == SET:
        run(5, *addresses())
    driver.graphs.failing = {name: 999}
    given = addresses(first=8192)
    for _ in range(3):
        driver.launches.clear()
        run(5, *given)
        assert first_addresses(driver) == given
    assert refused == [(-65536 - 999, 5, *given)]
    assert driver.graphs.counts[CREATE] <= 1
    if name != EXCHANGE_MODE:
        assert driver.graphs.alive == set()


def test_a_stream_that_does_not_say_whether_it_captures_gets_the_kernels() -> None:
    """As the legacy stream does while another is capturing: the driver's own launch says what is wrong."""
    driver, refused = GraphRecording(), []
    run = begun(driver, refused=refused)
    driver.graphs.failing = {IS_CAPTURING: 906}
    driver.statuses = [0, 906]
    run(5, *addresses())
    assert refused == [(2 * 65536 + 906, 5, *addresses())]
    driver.graphs.failing, driver.statuses = {}, []
    run(5, *addresses())
    assert driver.graphs.counts[LAUNCH] == 1


def test_a_kernel_that_fails_behind_a_refused_graph_is_the_one_that_is_named() -> None:
    driver, refused = GraphRecording(), []
    run = begun(driver, refused=refused)
    driver.graphs.failing = {LAUNCH: 700}
    driver.statuses = [0, 0, 700]
    run(5, *addresses())
    assert refused == [(3 * 65536 + 700, 5, *addresses())]


@pytest.mark.parametrize("name", [CREATE, INSTANTIATE, LAUNCH])
def test_a_thread_without_context_gets_one_and_later_a_graph(name: str) -> None:
    driver = GraphRecording()
    run = begun(driver)
    driver.graphs.failing = {name: 201}
    driver.statuses = [201]
    run(5, *addresses())
    assert driver.entered == [77]
    driver.graphs.failing = {}
    driver.launches.clear()
    run(5, *addresses(first=8192))
    assert first_addresses(driver) == addresses(first=8192)
    assert driver.graphs.counts[LAUNCH] == (2 if name == LAUNCH else 1)


def test_a_sequence_takes_its_graph_with_it() -> None:
    driver = GraphRecording()
    run = begun(driver)
    run(5, *addresses())
    assert len(driver.graphs.alive) == 2
    del run
    assert driver.graphs.alive == set()


def test_a_forked_child_leaves_the_graphs_of_its_parent_alone() -> None:
    driver = GraphRecording()
    run = begun(driver)
    run(5, *addresses())
    child = os.fork()
    if child == 0:
        driver.graphs.failing = {IS_CAPTURING: 3}  # as the driver does in a child
        driver.launches.clear()
        run(5, *addresses(first=8192))
        launched = first_addresses(driver) == addresses(first=8192)
        del run
        os._exit(0 if launched and len(driver.graphs.alive) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    run(5, *addresses())
    assert driver.graphs.counts[LAUNCH] == 2


def test_a_process_has_so_many_graphs() -> None:
    driver = GraphRecording()
    runs = [begun(driver) for _ in range(MAX_GRAPHS + 2)]
    for run in runs:
        run(5, *addresses())
    assert len(driver.graphs.alive) == 2 * MAX_GRAPHS
    assert driver.graphs.counts[LAUNCH] == MAX_GRAPHS
    del runs, run
    assert driver.graphs.alive == set()


def test_python_tells_of_a_refused_graph_and_starts_nothing(caplog) -> None:
    caplog.set_level(logging.INFO, "ferrite_runtime")
    Remainder([waiting(literals())])(-65536 - 801, 0, 64)
    assert "refuses it with status 801" in caplog.text


def test_a_driver_without_one_of_the_functions_has_no_graphs(caplog) -> None:
    caplog.set_level(logging.INFO, "ferrite_runtime")
    driver = GraphRecording()
    library = SimpleNamespace(cuLaunchKernelEx=driver._functions[0], cuCtxSetCurrent=driver._functions[1])
    for name in GRAPH_FUNCTIONS[1:]:
        setattr(library, name, driver._functions[0])
    assert CudaDriver(library).graph_functions() == b""
    assert f"has no {GRAPH_FUNCTIONS[0]}" in caplog.text
    setattr(library, GRAPH_FUNCTIONS[0], driver._functions[0])
    assert len(CudaDriver(library).graph_functions()) == 8 * len(GRAPH_FUNCTIONS)
    delattr(library, GRAPH_FUNCTIONS[-1])
    assert CudaDriver(library).graph_functions()[-8:] == bytes(8)


@pytest.mark.parametrize(
    ("name", "value", "on"),
    [
        ("FERRITE_NATIVE_GRAPHS", "", True),
        ("FERRITE_NATIVE_GRAPHS", "0", False),
        ("CUDA_LAUNCH_BLOCKING", "0", True),
        ("CUDA_LAUNCH_BLOCKING", "1", False),
    ],
)
def test_the_environment_can_do_without_graphs(name: str, value: str, *, on: bool) -> None:
    assert read_settings({"HOME": "/", name: value}).native_graphs is on


def steady(mapping: dict, first: list):
    """Returns the function of later calls of a program, on a driver with graphs, and that driver."""
    torch = pytest.importorskip("torch")
    driver = graph_driver()
    machine, device = fake_machine(driver=driver), torch.device("cpu", 0)
    engine = CudaEngine(
        Program.from_mapping(mapping), FakeStreams().platform(), lambda index: machine, lambda: LAUNCHER, graphs=True
    )
    engine.device_kernels(0)
    engine.first(device)(first)
    return engine.steady(device, lambda args: None), driver


def test_a_program_computes_the_same_as_a_graph() -> None:
    torch = pytest.importorskip("torch")
    host, driver = steady(chain(10), [torch.randn(1000)])
    kept = []
    for _ in range(8):
        x = torch.randn(1000)
        kept.append((x, host([x])))
    for x, results in kept:
        values = [x]
        for _ in range(10):
            values.append(values[-1] * 0.5 + 1)
        assert torch.equal(results[0], values[5])
        assert torch.equal(results[1], values[10])
    assert driver.graphs.counts[LAUNCH] == 8 - FIRST_CALLS


def test_a_program_whose_sizes_change_has_a_graph_for_each_bucket() -> None:
    torch = pytest.importorskip("torch")
    host, driver = steady(chain(10, sized=True), [torch.randn(1000), 700, 0.5])
    for call in range(24):
        x, n, factor = torch.randn(1000), (700, 600, 0, 5)[call % 4], 0.5 + call
        expected = x[:n]
        for _ in range(10):
            expected = expected * factor
        assert torch.equal(host([x, n, factor])[1][:n], expected)
    assert driver.graphs.counts[CREATE] >= 1
    assert driver.graphs.counts[SET] >= 10
