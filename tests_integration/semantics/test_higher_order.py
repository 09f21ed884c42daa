"""Higher-order ops in compiled functions: each is one step between kernels, and what surrounds it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ferrite_torch
from against_eager import assert_same_type, compiled, own_only, own_statistics, tensors_of
from ferrite_torch.diagnostics.statistics import compiled_programs

pytestmark = own_only("it counts steps of our programs")

OP = "hop_tests::add_to"


@torch.library.custom_op(OP, mutates_args=("x",))
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def recurrence(x: Tensor) -> tuple[Tensor, Tensor]:
    state, y = scan(lambda state, row: (state * 0.5 + row, state.sin()), torch.zeros(8), x * 2)
    return y.relu() + x, state + 1


def rows(x: Tensor) -> Tensor:
    return map_rows(lambda row, first: row.sin() + first, x * 2, x[0]).relu() + x


def combined(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a * b + a + b, x * 0.5, 0, combine_mode="generic").relu() + x


def combined_in_reverse(x: Tensor) -> Tensor:
    return associative_scan(torch.maximum, x * 0.5, 0, reverse=True, combine_mode="generic").relu() + x


def attention(x: Tensor) -> Tensor:
    q = x.repeat(16, 2)[None, None]
    bias = x.sum(0)

    def score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + (i - j) * 0.1 + bias[0]

    return flex_attention(q * 2, q + 1, q.sin(), score_mod=score).relu() + q


def masked_attention(x: Tensor) -> Tensor:
    q = x.repeat(16, 2)[None, None]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 96, 96, device="cpu")
    return flex_attention(q * 2, q + 1, q.sin(), block_mask=mask).relu() + q


def written_operand(x: Tensor) -> Tensor:
    y = x * 2
    torch.ops.hop_tests.add_to(y, x)
    return y.relu() + x


def written_view(x: Tensor) -> Tensor:
    y = x * 2
    torch.ops.hop_tests.add_to(y[1:3], x[2:4])
    return y.relu() + x


def strictly(x: Tensor) -> Tensor:
    return torch._higher_order_ops.strict_mode(lambda x: (x.sin() + 1,), (x * 2,))[0].relu()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its steps that are no kernels, how many kernels there are at least, and where it has no derivative.

    ``sizes`` are the rows that the dynamic form is called with.
    """

    program: Callable[[Tensor], Any]
    steps: tuple[str, ...]
    kernels: int = 2
    has_gradient: bool = True
    sizes: tuple[int, ...] = (6, 4, 7)


CASES = {
    each.program.__name__: each
    for each in (
        Case(recurrence, ()),
        Case(rows, ()),
        Case(combined, (), sizes=(6,)),
        Case(combined_in_reverse, (), sizes=(6,)),
        Case(attention, (), has_gradient=False, sizes=(6,)),
        Case(masked_attention, (), has_gradient=False, sizes=(6,)),
        Case(written_operand, ("hop_tests.add_to.default",), has_gradient=False),
        Case(written_view, ("hop_tests.add_to.default",), has_gradient=False),
        Case(strictly, (), kernels=1, has_gradient=False),
    )
}


def drawn(count: int, *, needs_grad: bool = False) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count)).requires_grad_(needs_grad)


def skip_where_torch_fails(program: Callable[[Tensor], Any], x: Tensor) -> None:
    """Skips a test where AOTAutograd refuses a program, whatever compiles it: the gradient of `scan` in torch 2.11."""
    try:
        torch.compile(program, backend="aot_eager", fullgraph=True)(x)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        pytest.skip(f"torch refuses this: {str(error).splitlines()[0]}")
    torch._dynamo.reset()


def check(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert_same_type(mine, theirs)


def check_steps(case: Case) -> None:
    found = own_statistics()
    assert not found["fallbacks"]
    assert found["kernels"] >= case.kernels
    names = {name.removeprefix("higher_order.") for name in found["externs"]}  # type: ignore[attr-defined]
    assert set(case.steps) <= names


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_inference(name: str, *, dynamic: bool) -> None:
    case = CASES[name]
    fast = compiled(case.program, dynamic=dynamic, fullgraph=True)
    for size in case.sizes if dynamic else case.sizes[:1]:
        x = drawn(size)
        check(fast(x), case.program(x))
    check_steps(case)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_gradient])
def test_training(name: str, *, dynamic: bool) -> None:
    case = CASES[name]
    skip_where_torch_fails(case.program, drawn(6, needs_grad=True))
    fast = compiled(case.program, dynamic=dynamic, fullgraph=True)
    for size in case.sizes if dynamic else case.sizes[:1]:
        x = drawn(size, needs_grad=True)
        mine, theirs = tensors_of(fast(x)), tensors_of(case.program(x))
        check(mine, theirs)
        wanted = [each for each in theirs if each.requires_grad]
        found = torch.autograd.grad([each.sum() for each in mine if each.requires_grad], x)
        torch.testing.assert_close(found, torch.autograd.grad([each.sum() for each in wanted], x), rtol=1e-4, atol=1e-5)
    check_steps(case)
    assert own_statistics()["graphs"] >= 2


def test_what_is_printed_is_printed_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        torch._higher_order_ops.print("first {}", y.sum())  # type: ignore[attr-defined]
        z = y.relu()
        torch._higher_order_ops.print("second {}", z.sum())  # type: ignore[attr-defined]
        return z + x

    if not hasattr(torch._higher_order_ops, "print"):
        pytest.skip("this torch prints nothing")
    x = torch.ones(4)
    check(compiled(function, fullgraph=True)(x), x * 3)
    assert capsys.readouterr().out.split("\n")[:2] == ["first 8.0", "second 8.0"]
    assert not own_statistics()["fallbacks"]


@pytest.fixture
def strict_mode_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an op that only wraps its function stand for one that nothing here knows."""
    monkeypatch.setattr("ferrite_torch.rewrites.wrapped_calls._OPERANDS", {})


@pytest.mark.usefixtures("strict_mode_is_unknown")
def test_a_step_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "ferrite_torch")
    for _ in range(2):
        torch._dynamo.reset()
        compiled(strictly)(drawn(6))
    (said,) = [each.getMessage() for each in caplog.records if each.name.startswith("ferrite_torch")]
    assert f"({__file__}:{strictly.__code__.co_firstlineno + 1})" in said
    assert "the higher-order op strict_mode has no lowering" in said
    assert "What to do: " in said


@pytest.mark.usefixtures("strict_mode_is_unknown")
def test_a_step_is_explained() -> None:
    (graph,) = ferrite_torch.explain(strictly, drawn(6)).graphs
    assert [(op, count) for op, _, count in graph.externs] == [("higher_order.strict_mode", 1)]
    assert len(graph.kernels) == 2


@pytest.mark.usefixtures("strict_mode_is_unknown")
def test_an_error_inside_a_step_names_its_line() -> None:
    @torch.library.custom_op("hop_tests::fail", mutates_args=())
    def fail(x: Tensor) -> Tensor:
        raise ValueError("not today")

    fail.register_fake(torch.empty_like)

    def function(x: Tensor) -> Tensor:
        return torch._higher_order_ops.strict_mode(lambda x: (fail(x) * 1,), (x * 2,))[0] + 1  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="not today") as found:
        compiled(function)(torch.ones(4, 2))
    assert f"{__file__}:{function.__code__.co_firstlineno + 1}" in "".join(found.value.__notes__)


@pytest.mark.usefixtures("strict_mode_is_unknown")
def test_a_step_stays_out_of_cuda_graphs() -> None:
    from ferrite_runtime.engines.graph_obstacles import obstacles
    from ferrite_runtime.engines.graphed_part import written_inputs
    from ferrite_runtime.formats.program import Program

    compiled(strictly)(drawn(6))
    program = Program.from_mapping(compiled_programs()[0])
    assert any("captured.strict_mode." in each.reason for each in obstacles(program).values())
    assert written_inputs(program) == frozenset()
