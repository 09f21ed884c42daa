"""Launches in a row as graphs of the driver on a real GPU; all of it skips where there is none."""

from __future__ import annotations

import ctypes
import threading

import pytest

from fake_graphs import SIGNATURES
from ferrite_runtime import Options, load_program
from ferrite_runtime.devices.cuda_driver import GRAPH_FUNCTIONS, CudaDriver, cuda_driver, pack_addresses
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from runtime_kernels import chain

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(find_launcher(MemoryStore(), may_build=True) is None, reason="no C compiler here"),
]

# So small that the buffers between the kernels lie in one allocation, as those of most programs of short kernels.
COUNT, SIZE = 40, 1 << 14
MIN_NODES, FIRST_CALLS = 4, 3  # as launch_graph.h has them

_KEPT: list = []


@pytest.fixture
def counts(monkeypatch) -> dict[str, int]:
    """Returns how often sequences that are bound from now on call each function of graphs."""
    library = cuda_driver()._library
    found = dict.fromkeys(GRAPH_FUNCTIONS, 0)

    def counted(name: str):
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])
        real = ctypes.cast(getattr(library, name), kind)

        def call(*arguments) -> int:
            found[name] += 1
            return real(*arguments)

        return kind(call)

    functions = [counted(name) for name in GRAPH_FUNCTIONS]
    _KEPT.append(functions)
    packed = pack_addresses(functions)
    monkeypatch.setattr(CudaDriver, "graph_functions", lambda self: packed)
    return found


def loaded(*, sized: bool = False, count: int = COUNT, uses_pdl: bool = False, **options):
    mapping = chain(count, SIZE, "cuda", sized=sized, uses_pdl=uses_pdl)
    return load_program(mapping, options=Options(native="build", tune="none", **options))


def expected(x, count: int = COUNT) -> tuple:
    """Returns what the chain gives: its middle and its last result."""
    for step in range(count):
        if step == count // 2:
            middle = x
        x = x * 0.5 + 1
    return middle, x


def assert_right(results, x, count: int = COUNT) -> None:
    for found, wanted in zip(results, expected(x, count), strict=True):
        assert torch.equal(found, wanted)


def test_this_driver_has_graphs() -> None:
    assert len(cuda_driver().graph_functions()) == 8 * len(GRAPH_FUNCTIONS)


def test_inputs_that_change_and_move(counts) -> None:
    program = loaded()
    still = torch.randn(SIZE, device="cuda")
    kept = []
    for call in range(40):
        x = torch.randn(SIZE, device="cuda") if call % 3 else still.mul_(1.5)
        kept.append((x.clone(), program(x)))
    for x, results in kept:
        assert_right(results, x)
    assert counts["cuGraphLaunch"] >= 30
    assert counts["cuGraphExecKernelNodeSetParams_v2"] >= 30


def test_results_are_those_of_launches_one_by_one(counts) -> None:
    programs = loaded(), loaded(native_graphs=False)
    for _ in range(10):
        x = torch.randn(SIZE, device="cuda")
        for found, wanted in zip(programs[0](x), programs[1](x), strict=True):
            assert torch.equal(found, wanted)
    assert counts["cuGraphLaunch"] == 9 - FIRST_CALLS


@pytest.mark.parametrize("count", [3, COUNT], ids=["one by one", "as a graph"])
@pytest.mark.parametrize("captures", [False, True], ids=["", "captured"])
def test_kernels_that_start_before_those_before_them_have_ended(counts, count: int, *, captures: bool) -> None:
    """Each needs all of the result of the one before, of which every program stores a part."""
    program = loaded(count=count, uses_pdl=True)
    kept = []
    still = torch.randn(SIZE, device="cuda")
    for call in range(30):
        x = torch.randn(SIZE, device="cuda") if call % 3 else still.mul_(1.5)
        kept.append((x.clone(), [result.clone() for result in program(x)]))
    if captures:
        graph, x = torch.cuda.CUDAGraph(), torch.randn(SIZE, device="cuda")
        with torch.cuda.graph(graph):
            results = program(x)
        for _ in range(20):
            x.normal_()
            graph.replay()
            kept.append((x.clone(), [result.clone() for result in results]))
    for x, found in kept:
        assert_right(found, x, count)
    assert (counts["cuGraphAddDependencies_v2"] >= count - 1) is (count >= MIN_NODES)


def test_calls_that_are_queued_keep_their_arguments(counts) -> None:
    """The nodes of a graph are set anew while the device has yet to begin with the launches before."""
    program = loaded()
    inputs = [torch.full((SIZE,), float(k), device="cuda") for k in range(30)]
    for x in inputs[:5]:
        program(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    results = [program(x) for x in inputs]
    for x, found in zip(inputs, results, strict=True):
        assert_right(found, x)
    assert counts["cuGraphLaunch"] >= 30


def test_sizes_that_change(counts) -> None:
    program = loaded(sized=True)
    for call in range(30):
        x, n, factor = torch.randn(SIZE, device="cuda"), (SIZE, SIZE - 999, 10_000)[call % 3], 1.0 + call % 2
        results = program(x, n, factor)
        wanted = x[:n]
        for _ in range(COUNT):
            wanted = wanted * factor
        assert torch.equal(results[1][:n], wanted)
    assert counts["cuGraphLaunch"] >= 10


def test_streams_wait_for_their_own_work_only(counts) -> None:
    program = loaded()
    stream = torch.cuda.Stream()
    x = torch.randn(SIZE, device="cuda")
    for _ in range(6):
        program(x)
    with torch.cuda.stream(stream):
        program(x)  # what it allocates there serves the next call
    torch.cuda.synchronize()
    before = counts["cuGraphLaunch"]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        (_, late) = program(x)
    (_, early) = program(x)
    torch.cuda.current_stream().synchronize()
    assert not stream.query(), "the other stream still sleeps"
    assert counts["cuGraphLaunch"] == before + 1
    assert torch.equal(early, expected(x)[1])
    stream.synchronize()
    assert torch.equal(late, early)


def test_a_program_that_moves_to_another_stream(counts) -> None:
    program = loaded()
    x = torch.randn(SIZE, device="cuda")
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(30):
                x = x + 1
                assert_right(program(x), x)
        torch.cuda.synchronize()
    assert counts["cuGraphCreate"] == 3


def test_captured_by_torch_as_kernels(counts) -> None:
    program = loaded()
    x = torch.randn(SIZE, device="cuda")
    for _ in range(6):
        program(x)
    before = counts["cuGraphLaunch"]
    assert before > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = program(x)
    assert counts["cuGraphLaunch"] == before
    for _ in range(3):
        x.copy_(torch.randn(SIZE, device="cuda"))
        program(torch.randn(SIZE, device="cuda"))
        graph.replay()
        assert_right(results, x)


def test_a_graph_is_made_while_another_thread_captures(counts) -> None:
    """Neither the capture nor the graph is disturbed."""
    program, side, capturing = loaded(), torch.cuda.Stream(), torch.cuda.Stream()
    x, y = torch.randn(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    y.add_(0)
    with torch.cuda.stream(side):
        # Calls without a graph, whose memory serves the later ones: torch must not allocate while another captures.
        kept = [program(x) for _ in range(3)]
    torch.cuda.synchronize()
    del kept
    begun, done = threading.Event(), threading.Event()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.stream(capturing):
            graph.capture_begin(capture_error_mode="global")
            y.add_(1)
            begun.set()
            done.wait(60)
            graph.capture_end()

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(60)
    with torch.cuda.stream(side):
        for _ in range(5):
            results = program(x)
    done.set()
    thread.join(60)
    assert (counts["cuGraphInstantiateWithFlags"], counts["cuGraphLaunch"]) == (1, 4)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.ones_like(y))
    assert_right(results, x)


def test_threads_share_a_program(counts) -> None:
    program = loaded()
    x = torch.randn(SIZE, device="cuda")
    for _ in range(6):
        program(x)
    torch.cuda.synchronize()
    failures: list[object] = []

    def work(seed: int, stream) -> None:
        with torch.cuda.stream(stream):
            for call in range(100):
                x = torch.full((SIZE,), float(seed + call), device="cuda")
                results = program(x)
                if not all(map(torch.equal, results, expected(x))):
                    failures.append((seed, call))

    streams = [torch.cuda.current_stream()] * 2 + [torch.cuda.Stream() for _ in range(2)]
    threads = [threading.Thread(target=work, args=(1000 * k, stream)) for k, stream in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert counts["cuGraphLaunch"] > 3


def test_a_program_is_dropped_while_its_graph_runs(counts) -> None:
    x = torch.randn(SIZE, device="cuda")
    for _ in range(3):
        program = loaded()
        for _ in range(6):
            program(x)
        torch.cuda._sleep(50_000_000)
        results = program(x)
        del program
        assert_right(results, x)
