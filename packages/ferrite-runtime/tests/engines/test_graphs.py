"""Parts of programs played again: what is copied, what is read in place, and what cannot be captured."""

from __future__ import annotations

import inspect

import pytest

from engines.test_cuda_engine import accumulate
from ferrite_runtime.engines import graph_recorder
from ferrite_runtime.engines.cuda_graphs import GraphedProgram
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.graph_obstacles import obstacles
from ferrite_runtime.engines.graph_parts import partition
from ferrite_runtime.engines.graphed_part import written_inputs
from ferrite_runtime.formats.program import Program
from runtime_kernels import layout, one_kernel, pointwise, program, scaled, tensor_input

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
DEVICE = torch.device("cpu")


class Recorder:
    """Plays by running again, into the results of the first time, as a graph does; recording leaves no trace."""

    def __init__(self, fail: str = "") -> None:
        self.captures = 0
        self.replays = 0
        self.fail = fail

    def __call__(self, run, pool=None):
        if self.fail:
            raise RuntimeError(self.fail)
        self.captures += 1
        held = [value for value in inspect.getclosurevars(run).nonlocals["held"] if hasattr(value, "data_ptr")]
        before = [value.clone() for value in held]
        results = run()
        for value, kept in zip(held, before, strict=True):
            value.copy_(kept)

        def replay() -> None:
            self.replays += 1
            for old, new in zip(results, run(), strict=True):
                if old is not new:
                    old.copy_(new)

        return results, replay


def graphed(mapping: dict, recorder: Recorder | None = None, least: int = 1):
    made = Program.from_mapping(mapping)
    recorder = recorder or Recorder()
    engine = InterpretedEngine.load(made)

    def build(section: Program):
        return engine.of_section(section).first(DEVICE)

    return GraphedProgram(made, engine.first(DEVICE), build, graph_recorder.Recorder(recorder), least), recorder


def only(call: GraphedProgram):
    """Returns what is captured of a program whose calls are all alike."""
    (generation,) = call.generations.values()
    return generation


def test_graphs_that_call_each_other_are_looked_at_once() -> None:
    negated = {"do": "extern", "target": "aten.neg.default", "args": [{"ref": "x"}], "kwargs": {}, "results": ["b"]}
    steps, graphs = [negated], []
    for level in range(40):
        given = {"name": f"g{level}", "inputs": [tensor_input("x", [4])], "outputs": [{"value": "b"}]}
        graphs.append({**given, "steps": steps})
        call = {"do": "call", "graph": f"g{level}", "args": ["x"], "sizes": []}
        steps = [{**call, "results": [name]} for name in "ab"]
    mapping = program([tensor_input("x", [4], device="cuda")], [], steps, [{"value": "b"}], "cuda")
    found = partition(Program.from_mapping(mapping | {"graphs": graphs}))
    assert found.sections[0].launches == 2**40
    assert {each.reason.rpartition(", ")[2] for each in found.obstacles} == {"which lies on cpu"}


def test_moving_inputs_are_copied_in_and_results_out() -> None:
    call, recorder = graphed(one_kernel(pointwise("a * b", 2)))
    weight = torch.randn(1000)
    kept = []
    for _ in range(5):
        x = torch.randn(1000)
        kept.append((x, call([x, weight])[0]))
    assert recorder.captures == 1
    assert recorder.replays == 4
    assert only(call).moving == {"in0"}
    for x, result in kept:
        assert torch.equal(result, x * weight)


def test_an_input_that_starts_to_move_is_captured_again() -> None:
    call, recorder = graphed(one_kernel(pointwise("a * b", 2)))
    x, weight = torch.randn(1000), torch.randn(1000)
    for _ in range(3):
        call([x, weight])
    assert only(call).moving == set()
    other = torch.randn(1000)
    assert torch.equal(call([x, other])[0], x * other)
    assert recorder.captures == 2
    x.fill_(3.0)
    assert torch.equal(call([x, weight])[0], x * weight)
    assert recorder.captures == 2


def accumulating() -> dict:
    kernel = accumulate(64)
    steps = [{"do": "launch", "kernel": kernel["id"], "args": ["a", "s"]}]
    return program([tensor_input("a", [64]), tensor_input("s", [64])], [kernel], steps, [{"value": "s"}])


def test_inputs_that_a_program_writes_are_copied_back() -> None:
    assert written_inputs(Program.from_mapping(accumulating())) == {1}
    call, _ = graphed(accumulating())
    a = torch.randn(64)
    for _ in range(4):
        total = torch.randn(64)
        expected = total + a
        (result,) = call([a, total])
        assert result is total
        assert torch.equal(total, expected)


def test_what_cannot_be_captured_is_said_and_runs_on(caplog) -> None:
    kernel = scaled()
    steps = [
        {"do": "alloc", "name": "o", **layout([100])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o", "n", 2.0]},
    ]
    inputs = [tensor_input("x", [100]), {"name": "n", "kind": "scalar", "dtype": "i64"}]
    call, recorder = graphed(program(inputs, [kernel], steps, [{"value": "o"}]))
    x = torch.randn(100)
    for _ in range(3):
        assert torch.equal(call([x, 100])[0], x * 2)
    assert recorder.captures == 0
    assert "step 1 uses the number n, which may change" in caplog.text


def test_a_capture_that_fails_costs_only_the_graph(caplog) -> None:
    call, _ = graphed(one_kernel(pointwise("a + 1")), Recorder("operation not permitted when stream is capturing\n..."))
    x = torch.randn(1000)
    for _ in range(3):
        assert torch.equal(call([x])[0], x + 1)
    assert caplog.text.count("runs without a CUDA graph: operation not permitted when stream is capturing") == 1


def test_a_number_from_the_device_is_an_obstacle_and_a_view_of_an_input_is_none() -> None:
    kernel = pointwise("a + 1", size=8)
    steps = [
        {"do": "view", "name": "v", "base": "x", **layout([8]), "offset": 1},
        {"do": "view", "name": "first", "base": "x", **layout([1]), "offset": 0},
        {"do": "item", "name": "i", "from": "first", "dtype": "f32"},
    ]
    mapping = program([tensor_input("x", [9])], [kernel], steps, [{"value": "v"}])
    found = obstacles(Program.from_mapping(mapping))
    assert list(map(str, found.values())) == ["step 2 reads the number i on the host"]
    call, _ = graphed(mapping)
    x = torch.randn(9)
    assert call([x])[0].data_ptr() == x[1:].data_ptr()


def test_inputs_that_never_rest_end_the_captures(caplog) -> None:
    names = "abcdef"
    call, recorder = graphed(one_kernel(pointwise(" + ".join(names), 6)))
    tensors = [torch.randn(1000) for _ in names]
    call(list(tensors))
    for place in range(6):
        call(list(tensors))
        tensors[place] = tensors[place].clone()
    assert torch.allclose(call(list(tensors))[0], sum(tensors))
    assert recorder.captures == 4
    assert "moved after each of 4 captures" in caplog.text
