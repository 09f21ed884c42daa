"""Programs that a CUDA graph cannot hold as a whole: what is a part, what crosses between parts, and who owns it."""

from __future__ import annotations

import pytest

from engines.test_graphs import DEVICE, Recorder, graphed, only
from ferrite_runtime.engines import graph_recorder
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.cuda_graphs import graphed_host
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.graph_obstacles import obstacles
from ferrite_runtime.engines.graph_parts import partition
from ferrite_runtime.errors import DriverError
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.thresholds import SHAPES
from graph_part_programs import (
    JOIN,
    KERNELS,
    STEP,
    TIMES,
    built,
    call_of,
    eight,
    expected_with_item,
    launch,
    made,
    ref,
    with_item,
)
from runtime_fakes import FakePool, FakeStreams, fake_machine
from runtime_kernels import layout, program

torch = pytest.importorskip("torch")


pytest.importorskip("triton")


def test_rows_between_steps_from_the_host_are_parts() -> None:
    call, recorder = graphed(with_item(), least=2)
    assert [section.is_part for section in call._partition.sections] == [True, False, True, False]
    w = torch.randn(8)
    kept = []
    for _ in range(6):
        x = torch.randn(8)
        kept.append((x, call([x, w])))
    assert (recorder.captures, recorder.replays) == (2, 10)
    assert (call.played, call.from_host) == (20, 5)
    for x, results in kept:
        for result, expected in zip(results, expected_with_item(x, w), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


def test_what_a_part_has_made_is_read_where_it_lies() -> None:
    call, _ = graphed(with_item(), least=2)
    w = torch.randn(8)
    for _ in range(3):
        call([torch.randn(8), w])
    first, _, second, _ = only(call).parts
    assert second.section.inputs == ("b", "c", "w")
    assert [second.section.inputs[place] for place in second._moving] == ["c"]
    (b,) = (value for value, name in zip(first.results, first.section.outputs, strict=True) if name == "b")
    assert second._held[0] is b
    assert second._held[2].data_ptr() == w.data_ptr()


def test_short_rows_stay_with_the_host(caplog) -> None:
    call, recorder = graphed(with_item(), least=3)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(3):
        call([x, w])
    assert recorder.captures == 0
    assert "step 1 begins a row of 2, where a part has at least 3; step 5 reads the number i on the host" in caplog.text


def test_one_part_that_fails_leaves_the_others(caplog) -> None:
    recorder = Recorder()

    def capture(run, pool):
        if recorder.captures == 1:
            recorder.captures += 1
            raise RuntimeError("operation not permitted")
        return recorder(run)

    call, _ = graphed(with_item(), capture, least=2)
    w = torch.randn(8)
    for _ in range(5):
        x = torch.randn(8)
        torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    assert [part.is_played for part in only(call).parts] == [True, False, False, False]
    assert "runs 2 launches from the host: a CUDA graph of them failed: operation not permitted" in caplog.text


def test_what_lies_on_the_host_is_read_there() -> None:
    steps = [
        *made(STEP, "a", "x"),
        *made(JOIN, "b", "a", "x"),
        call_of("aten._to_copy.default", ["g"], ref("h"), device={"device": "cuda"}),
        *made(JOIN, "c", "b", "g"),
        call_of("aten._to_copy.default", ["k"], ref("c"), device={"device": "cpu"}),
        call_of("aten.neg.default", ["m"], ref("k")),
        *made(STEP, "d", "c"),
    ]
    mapping = program([eight("x"), eight("h", "cpu")], KERNELS, steps, [{"value": "d"}, {"value": "m"}], "cuda")
    assert [str(each) for each in obstacles(Program.from_mapping(mapping)).values()] == [
        "step 4 uses h, which lies on cpu",
        "step 7 calls aten._to_copy.default, whose results lie on cpu",
        "step 8 uses k, which lies on cpu",
    ]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (call_of("aten.nonzero.default", ["r"], ref("x")), "calls aten.nonzero.default, which waits for the device"),
        (call_of("aten.scalar_tensor.default", ["r"], 2.0), "aten.scalar_tensor.default, whose results lie on cpu"),
        (call_of("aten._local_scalar_dense.default", ["r"], ref("x")), "which waits for the device"),
        (call_of("captured.cond.1", ["r"], ref("x")), "whose functions may decide on the host"),
        (call_of("mylib.op.default", ["r"], ref("x")), "is not torch's own and may decide on the host"),
        ({"do": "let", "name": "n", "value": {"size": ["x", 0]}}, "computes the size n, which may change"),
    ],
)
def test_steps_that_stay_with_the_host(step: dict, reason: str) -> None:
    found = obstacles(Program.from_mapping(program([eight("x")], [], [step], [], "cuda")))
    assert reason in str(found[0])


def test_what_users_keep_is_theirs(keeper: list) -> None:
    steps = [
        *made(STEP, "a", "x"),
        *made(STEP, "b", "a"),
        {"do": "view", "name": "tail", "base": "b", **layout([4]), "offset": 4},
        call_of("graph_parts.keep.default", ["k"], ref("tail")),
        {"do": "free", "names": ["tail"]},
        {"do": "view", "name": "all", "base": "b", **layout([8]), "offset": 0},
        *made(JOIN, "c", "all", "b"),
        *made(JOIN, "d", "c", "a"),
    ]
    mapping = program([eight("x")], KERNELS, steps, [{"value": "d"}, {"value": "all"}], "cuda")
    call, recorder = graphed(mapping, least=2)
    found = []
    for _ in range(6):
        x = torch.randn(8)
        found.append((x, call([x])))
    assert recorder.captures == 2
    for (x, (d, b)), kept in zip(found, keeper, strict=True):
        a = x * 0.5 + 1
        assert torch.equal(b, a * 0.5 + 1)
        assert torch.equal(kept, b[4:])
        torch.testing.assert_close(d, 2 * b + a, rtol=0, atol=1e-6)


def test_an_alias_that_a_library_returns_is_not_given_out(keeper: list) -> None:
    steps = [
        *made(STEP, "a", "x"),
        *made(STEP, "b", "a"),
        {"do": "item", "name": "i", "from": "b", "dtype": "f32"},
        call_of("aten.mul.Tensor", ["u"], ref("b"), ref("i")),
        call_of("ferrite.alias", ["v"], ref("b")),
    ]
    steps[4] = {**steps[4], "from": "first"}
    steps.insert(4, {"do": "view", "name": "first", "base": "b", **layout([1]), "offset": 0})
    call, _ = graphed(program([eight("x")], KERNELS, steps, [{"value": "v"}], "cuda"), least=2)
    found = [(x, call([x])[0]) for x in torch.randn(5, 8)]
    for x, v in found:
        assert torch.equal(v, (x * 0.5 + 1) * 0.5 + 1)


def test_two_names_of_one_memory_do_not_enter_a_part_together() -> None:
    steps = [
        *made(STEP, "a", "x"),
        call_of("ferrite.alias", ["v"], ref("a")),
        call_of("graph_parts_unknown.op.default", ["k"], ref("x")),
        *made(JOIN, "b", "a", "v"),
        *made(JOIN, "c", "b", "v"),
    ]
    mapping = program([eight("x")], KERNELS, steps, [{"value": "c"}], "cuda")
    found = partition(Program.from_mapping(mapping), 2)
    assert found.parts == 0
    assert "begins a row with a and v, whose memory others may know as well" in str(found.obstacles)


@pytest.mark.usefixtures("keeper")
@pytest.mark.parametrize("where", ["given", "made"])
def test_a_part_whose_values_lie_elsewhere_runs_from_the_host(where: str, caplog) -> None:
    """As random states of attention do, which are on the host outside of a capture, whatever the operator says."""
    mapping = program(
        [eight("x")],
        KERNELS,
        [*made(STEP, "a", "x"), *made(STEP, "b", "a"), call_of("graph_parts.keep.default", ["k"], ref("b"))],
        [{"value": "k"}],
        "cuda",
    )
    made_ = Program.from_mapping(mapping)
    engine, recorder = InterpretedEngine.load(made_), Recorder()

    class Elsewhere(torch.Tensor):
        device = torch.device("meta")

    def capture(run, pool):
        results, replay = recorder(run)
        return tuple(each.as_subclass(Elsewhere) if where == "made" else each for each in results), replay

    port = graph_recorder.Recorder(capture, device=DEVICE)
    call = graphed_host(made_, engine.first(DEVICE), built(engine), DEVICE, port, 2)
    for x in torch.randn(4, 8):
        given = x.as_subclass(Elsewhere) if where == "given" else x
        assert torch.equal(call([given])[0], (x * 0.5 + 1) * 0.5 + 1)
    name = "x" if where == "given" else "b"
    assert f"runs without a CUDA graph: {name} lies on meta" in caplog.text


def test_a_driver_that_refuses_in_a_capture_costs_only_the_graph(caplog) -> None:
    def capture(run, pool):
        raise DriverError("launching step: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)")

    call, _ = graphed(with_item(), capture, least=2)
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(4):
        torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    assert "runs without a CUDA graph: launching step: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" in caplog.text


def test_a_call_that_somebody_records_runs_from_the_host() -> None:
    made_ = Program.from_mapping(with_item())
    engine, recorder, recorded = InterpretedEngine.load(made_), Recorder(), [True]
    call = graphed_host(
        made_,
        engine.first(DEVICE),
        built(engine),
        DEVICE,
        graph_recorder.Recorder(recorder, lambda: recorded[0]),
        2,
    )
    x, w = torch.randn(8), torch.randn(8)
    for _ in range(3):
        call([x, w])
    assert recorder.captures == 0
    recorded[0] = False
    for _ in range(2):
        call([x, w])
    assert recorder.captures == 2


def test_sizes_that_come_again_have_graphs_of_their_own() -> None:
    steps = []
    for source, out in (("x", "a"), ("a", "b"), ("b", "c")):
        steps += [{"do": "alloc", "name": out, **layout(["n"], strides=[1])}, launch(TIMES, source, out, "n", 2.0)]
    inputs = [{"name": "n", "kind": "scalar", "dtype": "i64"}, {**eight("x"), "shape": ["n"]}]
    made_ = Program.from_mapping(program(inputs, [TIMES], steps, [{"value": "c"}], "cuda"))
    engine, recorder = InterpretedEngine.load(made_), Recorder()
    call = graphed_host(
        made_,
        engine.first(DEVICE),
        built(engine),
        DEVICE,
        graph_recorder.Recorder(recorder),
        3,
    )
    kept = []  # so that each input lies elsewhere
    for turn in range(SHAPES.calls + 3):
        for size in (5, 7):
            kept.append(x := torch.randn(size))
            assert torch.equal(call([size, x])[0], x * 8), turn
    assert recorder.captures == 2
    x = torch.randn(6)
    assert torch.equal(call([6, x])[0], x * 8)
    assert recorder.captures == 2


def kept_by_two(between: list[dict]) -> dict:
    """Two rows of two launches, each of which counts in one buffer that is kept from call to call."""
    steps = [
        {"do": "keep", "name": "k", **layout([8])},
        launch(STEP, "k", "k"),
        *made(JOIN, "a", "x", "k"),
        *between,
        launch(STEP, "k", "k"),
        *made(JOIN, "b", "a", "k"),
    ]
    return program([eight("x")], KERNELS, steps, [{"value": "b"}], "cuda")


def test_a_buffer_that_is_kept_has_its_kernels_in_one_section() -> None:
    found = partition(Program.from_mapping(kept_by_two([call_of("mylib.op.default", ["u"], ref("x"))])), 2)
    assert found.parts == 0
    assert [each.reason for each in found.obstacles] == [
        "begins a row among kernels with a common buffer that is kept",
        "calls mylib.op.default, which is not torch's own and may decide on the host",
        "begins a row among kernels with a common buffer that is kept",
    ]
    assert partition(Program.from_mapping(kept_by_two([])), 2).parts == 1


def test_what_has_a_data_dependent_size_stays_with_the_host() -> None:
    steps = [
        {**call_of("aten.nonzero.default", ["r"], ref("x")), "binds": [["u", 0, 0]]},
        call_of("aten.neg.default", ["s"], ref("r")),
        {"do": "view", "name": "v", "base": "s", **layout([1, 1]), "offset": 0},
        call_of("aten.neg.default", ["t"], ref("v")),
    ]
    found = obstacles(Program.from_mapping(program([eight("x")], [], steps, [{"value": "t"}], "cuda")))
    assert [str(each) for each in found.values()][1:] == [
        "step 1 uses r, whose size may change",
        "step 3 uses v, whose size may change",
    ]


def test_memory_that_users_write_has_no_second_name_in_a_part() -> None:
    steps = [
        *made(STEP, "a", "x"),
        call_of("ferrite.alias", ["v"], ref("a")),
        call_of("mylib.write.default", [], ref("a")),
        *made(JOIN, "c", "v", "x"),
        *made(JOIN, "d", "c", "x"),
    ]
    found = partition(Program.from_mapping(program([eight("x")], KERNELS, steps, [{"value": "d"}], "cuda")), 2)
    assert [section.is_part for section in found.sections] == [False, True, False]
    assert found.obstacles[0].values in {("a", "v"), ("v", "v"), ("a", "a")}


def test_an_expanded_value_is_copied_into_a_part_and_back() -> None:
    call, recorder = graphed(
        program(
            [{**eight("x"), "shape": [4, 2], "strides": [0, 1]}, eight("y")],
            KERNELS,
            [call_of("aten.mul.Tensor", ["a"], ref("x"), ref("x")), call_of("aten.neg.default", ["b"], ref("a"))],
            [{"value": "b"}],
            "cuda",
        )
    )
    for x in torch.randn(5, 2):
        assert torch.equal(call([x.expand(4, 2), torch.zeros(8)])[0], -x.expand(4, 2) * x)
    assert recorder.captures == 1


def test_a_call_follows_the_call_before_in_its_stream() -> None:
    followed: list = []

    def follow(before):
        followed.append(before)
        return len(followed)

    made_ = Program.from_mapping(with_item())
    engine = InterpretedEngine.load(made_)
    recorder = graph_recorder.Recorder(Recorder(), follow=follow)
    call = graphed_host(made_, engine.first(DEVICE), built(engine), DEVICE, recorder, 2)
    for _ in range(4):
        call([torch.randn(8), torch.randn(8)])
    assert followed == [None, 1, 2]


def test_sections_launch_the_kernels_of_the_whole_through_the_driver() -> None:
    pool, streams = FakePool(), FakeStreams()
    machine = fake_machine(pool=pool)
    made_ = Program.from_mapping(with_item())
    engine = CudaEngine(made_, streams.platform(), lambda index: machine)
    x, w = torch.randn(8), torch.randn(8)
    device = torch.device("cpu", 0)
    engine.first(device)([x, w])

    def redirect(args):
        raise AssertionError("a section is on the device of the whole")

    call = graphed_host(
        made_,
        engine.steady(device, redirect),
        lambda section: engine.of_section(section).steady(device, redirect),
        device,
        graph_recorder.Recorder(Recorder()),
        2,
    )
    compiled = len(pool.jobs)
    for _ in range(4):
        x = torch.randn(8)
        torch.testing.assert_close(call([x, w]), expected_with_item(x, w), rtol=0, atol=1e-6)
    assert (call.played, call.from_host) == (12, 3)
    assert len(pool.jobs) == compiled


@pytest.mark.usefixtures("keeper")
def test_what_is_freed_but_for_a_view_that_comes_later_crosses() -> None:
    steps = [
        *made(STEP, "a", "x"),
        {"do": "view", "name": "v", "base": "a", **layout([8]), "offset": 0},
        {"do": "free", "names": ["a"]},
        *made(STEP, "b", "v"),
        call_of("graph_parts.keep.default", ["k"], ref("x")),
        *made(JOIN, "c", "v", "b"),
        *made(JOIN, "d", "c", "k"),
    ]
    call, recorder = graphed(program([eight("x")], KERNELS, steps, [{"value": "d"}], "cuda"), least=2)
    for x in torch.randn(5, 8):
        a = x * 0.5 + 1
        torch.testing.assert_close(call([x])[0], a + (a * 0.5 + 1) + x, rtol=0, atol=1e-6)
    assert recorder.captures == 2
