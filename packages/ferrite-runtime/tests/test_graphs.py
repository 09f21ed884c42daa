"""Whole programs played again: what is copied, what is read in place, and what cannot be captured."""

from __future__ import annotations

import pytest

from ferrite_runtime.engines.cuda_graphs import GraphedProgram, obstacles, written_inputs
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.formats.program import Program
from runtime_kernels import layout, one_kernel, pointwise, program, scaled, tensor_input
from test_cuda_engine import accumulate

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
DEVICE = torch.device("cpu")


class Recorder:
    """Plays by running again, into the results of the first time, as a graph does."""

    def __init__(self, fail: str = "") -> None:
        self.captures = 0
        self.replays = 0
        self.fail = fail

    def __call__(self, run):
        if self.fail:
            raise RuntimeError(self.fail)
        self.captures += 1
        results = run()

        def replay() -> None:
            self.replays += 1
            for old, new in zip(results, run(), strict=True):
                if old is not new:
                    old.copy_(new)

        return results, replay


def graphed(mapping: dict, recorder: Recorder | None = None):
    made = Program.from_mapping(mapping)
    recorder = recorder or Recorder()
    return GraphedProgram(made, InterpretedEngine.load(made).first(DEVICE), recorder), recorder


def test_graphs_that_call_each_other_are_looked_at_once() -> None:
    last, graphs = "g0", [{"name": "g0", "inputs": [tensor_input("x", [4])], "steps": [], "outputs": [{"value": "x"}]}]
    for level in range(1, 40):
        calls = [{"do": "call", "graph": last, "args": ["x"], "sizes": [], "results": [name]} for name in "ab"]
        last = f"g{level}"
        graphs.append({**graphs[0], "name": last, "steps": calls, "outputs": [{"value": "b"}]})
    steps = [{"do": "call", "graph": last, "args": ["x"], "sizes": [], "results": ["y"]}]
    mapping = program([tensor_input("x", [4], device="cuda")], [], steps, [{"value": "y"}], "cuda")
    (reason,) = {each.rpartition(", ")[2] for each in obstacles(Program.from_mapping(mapping | {"graphs": graphs}))}
    assert reason == "which a graph cannot read"


def test_moving_inputs_are_copied_in_and_results_out() -> None:
    call, recorder = graphed(one_kernel(pointwise("a * b", 2)))
    weight = torch.randn(1000)
    kept = []
    for _ in range(5):
        x = torch.randn(1000)
        kept.append((x, call([x, weight])[0]))
    assert recorder.captures == 1
    assert recorder.replays == 4
    assert call._moving == {0}
    for x, result in kept:
        assert torch.equal(result, x * weight)


def test_an_input_that_starts_to_move_is_captured_again() -> None:
    call, recorder = graphed(one_kernel(pointwise("a * b", 2)))
    x, weight = torch.randn(1000), torch.randn(1000)
    for _ in range(3):
        call([x, weight])
    assert call._moving == set()
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
    assert "its input n is no tensor" in caplog.text


def test_a_capture_that_fails_costs_only_the_graph(caplog) -> None:
    call, _ = graphed(one_kernel(pointwise("a + 1")), Recorder("operation not permitted when stream is capturing\n..."))
    x = torch.randn(1000)
    for _ in range(3):
        assert torch.equal(call([x])[0], x + 1)
    assert caplog.text.count("runs without a CUDA graph: operation not permitted when stream is capturing") == 1


def test_views_of_inputs_and_numbers_from_the_device_are_obstacles() -> None:
    kernel = pointwise("a + 1", size=8)
    steps = [
        {"do": "view", "name": "v", "base": "x", **layout([8]), "offset": 1},
        {"do": "item", "name": "i", "from": "x", "dtype": "f32"},
    ]
    mapping = program([tensor_input("x", [9])], [kernel], steps, [{"value": "v"}])
    found = list(obstacles(Program.from_mapping(mapping)))
    assert found == ["step 1 reads i from the device", "its output v shares storage with its input x"]


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
