"""Control flow: choices, loops and repeated regions are graphs of one program, in every way that a program is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

import ferrite_torch
from against_eager import assert_same_type, compiled, compiled_or_eager, own_only, own_statistics, tensors_of
from control_flow_programs import PROGRAMS, Program, block, choice
from ferrite_runtime import Bundle, Options, load
from ferrite_torch.diagnostics.statistics import all_steps, compiled_programs
from ferrite_torch.graphs import control_flow
from sampling import sampled

pytestmark = own_only("it counts steps of our programs")

CALLS = ("if", "while", "call")
BY_NAME = {program.name: program for program in PROGRAMS}


def drawn(count: int, *, needs_grad: bool = False) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count)).requires_grad_(needs_grad)


def check(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert_same_type(mine, theirs)


@contextmanager
def skipped_where_torch_fails(program: Program, x: Tensor, *, dynamic: bool) -> Iterator[None]:
    """Skips a test that fails where torch refuses its program, whatever compiles it, or calls it with other numbers.

    Outside of compiled functions torch compiles each call of `torch.cond` by itself: 2.15 takes no floats there that
    were others before.
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception:
        torch._dynamo.reset()
        try:
            torch.compile(program.run, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x)
            for _ in range(2):
                program.run(x)
        except Exception as error:  # noqa: BLE001  # whatever torch raises
            pytest.skip(f"torch refuses this: {str(error).splitlines()[0]}")
        raise


def check_calls(program: Program, mapping: Any) -> None:
    """Checks the calls of a program: how many there are, and that none is a step of its own."""
    kinds = [step["do"] for step in all_steps(mapping)]
    assert sum(kind in CALLS for kind in kinds) == program.calls
    assert len(mapping.get("graphs", ())) == program.graphs
    targets = {step["target"] for step in all_steps(mapping) if step["do"] == "extern"}
    assert not {target for target in targets if target.startswith("captured.")}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", BY_NAME)
def test_inference(name: str, *, dynamic: bool) -> None:
    program = BY_NAME[name]
    fast = compiled(program.run, dynamic=dynamic, fullgraph=True)
    with skipped_where_torch_fails(program, drawn(6), dynamic=dynamic):
        for size in program.sizes if dynamic else program.sizes[:1]:
            for sign in (1, -1):
                x = drawn(size) * sign
                check(fast(x), program.run(x))
    assert not own_statistics()["fallbacks"]
    if program.run is not BY_NAME["choice_by_size"].run:
        assert own_statistics()["graphs"] == 1
        check_calls(program, compiled_programs()[0])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [program.name for program in PROGRAMS if program.has_gradient])
def test_training(name: str, *, dynamic: bool) -> None:
    program = BY_NAME[name]
    fast = compiled(program.run, dynamic=dynamic, fullgraph=True)
    with skipped_where_torch_fails(program, drawn(6, needs_grad=True), dynamic=dynamic):
        for size in program.sizes if dynamic else program.sizes[:1]:
            x = drawn(size, needs_grad=True)
            mine, theirs = tensors_of(fast(x)), tensors_of(program.run(x))
            check(mine, theirs)
            sums = [[each.sum() for each in results if each.requires_grad] for results in (mine, theirs)]
            found, expected = (torch.autograd.grad(each, x) for each in sums)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    statistics = own_statistics()
    assert not statistics["fallbacks"]
    assert not [op for op in statistics["externs"] if op.startswith("higher_order.")]  # type: ignore[attr-defined]
    if program.graphs:
        assert all(mapping.get("graphs") for mapping in compiled_programs()[:2])


# How a program is written and read does not depend on what its graphs compute: a sample.
@pytest.mark.filterwarnings("ignore:Pred is a Python constant")
@pytest.mark.parametrize("name", sampled(BY_NAME, 3))
def test_bundles(name: str) -> None:
    """A bundle has the graphs, and runs them where nothing is trusted."""
    program, x = BY_NAME[name], drawn(6)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return program.run(x)

    bundle = ferrite_torch.export(Model(), (x,), targets=["cpu"])
    (made,) = bundle.programs.values()
    check_calls(program, made.to_mapping())
    loaded = load(Bundle.from_bytes(bundle.to_bytes()), options=Options(interpret=True))
    with skipped_where_torch_fails(program, x, dynamic=False):
        for sign in (1, -1):
            check(loaded(x * sign), program.run(x * sign))


@pytest.mark.parametrize("name", sampled(BY_NAME, 3))
def test_stored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second compilation finds what the first has stored, and the graph calls what it called."""
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    program, x = BY_NAME[name], drawn(6)
    for place in range(2):
        torch._dynamo.reset()
        ferrite_torch.reset_statistics()
        fast = torch.compile(program.run, backend="ferrite", fullgraph=True, dynamic=False, options={"fallback": False})
        with skipped_where_torch_fails(program, x, dynamic=False):
            for sign in (1, -1):
                check(fast(x * sign), program.run(x * sign))
        assert own_statistics()["recalled"] == place
        check_calls(program, compiled_programs()[0])


def test_control_flow_is_explained() -> None:
    (graph,) = ferrite_torch.explain(choice, drawn(6)).graphs
    assert len(graph.kernels) == 4
    place = f"{choice.__code__.co_filename}:{choice.__code__.co_firstlineno + 2}"
    ((text, count),) = graph.calls
    assert (text, count) == (f"if @true_graph_0 (1 launch) else @false_graph_0 (1 launch): cond ({place})", 1)


def test_many_blocks_are_one_graph() -> None:
    def stack(x: Tensor) -> Tensor:
        for _ in range(12):
            x = block(x) + x
        return x

    x = drawn(6)
    check(compiled(stack, fullgraph=True)(x), stack(x))
    (mapping,) = compiled_programs()
    assert [step["do"] for step in mapping["steps"]].count("call") == 12
    assert len(mapping["graphs"]) == 1
    assert len(mapping["kernels"]) <= 3


@torch.compiler.nested_compile_region
def of_two(x: Tensor, y: Tensor, unread: Tensor) -> Tensor:
    return (x + y).sin()


def test_what_a_region_does_not_read_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch leaves out what such a parameter is, behind a choice in a graph with symbolic sizes."""
    own, forgotten = control_flow.complete_parameters, []

    def forgetful(function: torch.fx.GraphModule, operands: Sequence[Any]) -> None:
        unread = [node for node in function.graph.find_nodes(op="placeholder") if not node.users]
        forgotten.extend(node.name for node in unread if node.meta.pop("val", None) is not None)
        own(function, operands)

    monkeypatch.setattr(control_flow, "complete_parameters", forgetful)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return of_two(of_two(x, y, y * 2), y, y * 3)

    inputs = drawn(4), drawn(4) + 1
    assert torch.allclose(compiled(function, dynamic=True)(*inputs), function(*inputs))
    assert forgotten
    assert any(step["do"] == "call" for step in compiled_programs()[-1]["steps"])


def test_a_loop_reads_its_condition_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over integers reads nothing; one over tensors reads one bool a turn, and one more to end."""
    reads: list[int] = []
    read = torch.Tensor.__bool__

    def counting(self: Tensor) -> bool:
        reads.append(1)
        return read(self)

    def function(x: Tensor, limit: Tensor) -> Tensor:
        _, y = while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x))
        return y

    fast, x = compiled(function, fullgraph=True), drawn(6)
    check(fast(x, torch.tensor(5)), function(x, torch.tensor(5)))
    monkeypatch.setattr(torch.Tensor, "__bool__", counting)
    fast(x, torch.tensor(5))
    assert len(reads) == 6


def test_branches_that_disagree_are_refused_by_torch() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x[1:], lambda x: x.sum(), (x * 2,))

    with pytest.raises(Exception, match=r"(?i)cond"):
        compiled_or_eager(function, fullgraph=True)(torch.ones(4))


PREDICATES = {
    "an integer": lambda x: x.argmax().item() > 20,
    "two integers": lambda x: (x.argmax().item() > 20) & (x.argmin().item() < 40),
    "a number of elements": lambda x: x[x > 0].shape[0] > 24,
    "a float": lambda x: x.sum().item() > 0,
    "a bool": lambda x: (x.sum() > 0).item(),
}


@pytest.mark.parametrize("name", PREDICATES)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_a_data_dependent_number_decides(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(PREDICATES[name](x), lambda x: x.sin(), lambda x: x - 1, (x * 2,)) + 1

    fast = compiled(function, fullgraph=True)
    for sign in (1, -1, 1):
        check(fast(drawn(6) * sign), function(drawn(6) * sign))
    (mapping,) = compiled_programs()
    kinds = [step["do"] for step in all_steps(mapping)]
    assert kinds.count("if") == 1
    targets = [step["target"] for step in all_steps(mapping) if step["do"] == "extern"]
    assert not [target for target in targets if target.startswith("captured.")]


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_a_step_of_its_own_takes_a_data_dependent_truth() -> None:
    """The branches give unlike integers, of which there is no form: torch runs the choice."""

    def function(x: Tensor) -> Any:
        found, number = torch.cond(x.argmax().item() > 20, lambda x: (x.sin(), 1), lambda x: (x - 1, 2), (x * 2,))
        return found + number

    fast = compiled(function, fullgraph=True)
    for sign in (1, -1):
        check(fast(drawn(6) * sign), function(drawn(6) * sign))


def test_random_numbers_in_a_branch_are_those_of_the_seed() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: x - 1, (x,))

    fast, x = compiled(function, fullgraph=True), torch.ones(1000)
    torch.manual_seed(3)
    first, second = fast(x), fast(x)
    torch.manual_seed(3)
    assert fast(x).equal(first)
    assert fast(x).equal(second)
    assert not first.equal(second)
    assert 0.4 < first.count_nonzero() / 1000 < 0.6
