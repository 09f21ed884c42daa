"""Kernels of any forms and sizes in one launch: a launch for each level of dependences, and eager's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, widened
from ferrite_torch import compiled_programs

SHAPES = ((10, 10), (10,), (20, 10), (20,), (7, 20))
"""Parameters of a small model: five shapes."""


def launches() -> int:
    """Returns the launches of the graphs compiled last, those that are stored or kept aside left out."""
    return sum(step["do"] == "launch" for program in compiled_programs() for step in program["steps"])


def parts() -> list[list[str]]:
    """Returns the forms of the parts of each kernel that has any."""
    kernels = [kernel for program in compiled_programs() for kernel in program["kernels"]]
    return [[part["form"] for part in kernel["parts"]] for kernel in kernels if "parts" in kernel]


def check(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Compares a function to eager."""
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    mine = compiled(function, fullgraph=True, options={"fallback": False}, **options)(*arguments)
    assert_all_close(mine, function(*arguments), function(*map(widened, arguments)))


@pytest.mark.parametrize("device", devices())
def test_sums_of_different_sizes_are_one_launch(device: str) -> None:
    def sums(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.sum(), b.sum(-1), c.sum(0)

    check(sums, *(torch.randn(shape, device=device) for shape in ((100,), (20, 300), (70, 33))), dynamic=False)
    assert launches() == 1


def norm_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns a result of each form: pointwise, rows, columns, a scan, a norm and a gather."""
    a, b, c, d, e, f = tensors
    index = torch.arange(5, device=f.device) * 2
    return (
        torch.nn.functional.gelu(a) + 1,
        b.square().mean(-1),
        c.amax(0),
        d.cumsum(-1),
        torch.softmax(e, -1),
        torch.nn.functional.layer_norm(f, f.shape[-1:]),
        f[index % f.shape[0]].sum(-1),
    )


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_kernels_of_all_forms_are_parts_of_one_launch(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = ((3, 77), (20, 130), (130, 24), (5, 50), (9, 200), (6, 65))
    check(norm_like, *(torch.randn(shape, device=device).to(dtype) for shape in shapes), dynamic=False)
    assert launches() == 1
    assert {"pointwise", "persistent", "scan"} <= {form for forms in parts() for form in forms}


@pytest.mark.parametrize("device", devices())
def test_looped_reductions_are_parts(device: str) -> None:
    torch.manual_seed(0)

    def rows(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return a.sum(-1), b.amax(-1), torch.exp(c)

    options = {"fallback": False, "policy": {"persistent_elements": 64, "split_minimum": 1 << 20}}
    tensors = [torch.randn(shape, device=device) for shape in ((7, 500), (3, 50), (40, 3))]
    mine = compiled(rows, fullgraph=True, dynamic=False, options=options)(*tensors)
    assert_all_close(mine, rows(*tensors), rows(*map(widened, tensors)))
    assert sorted(parts()[-1]) == ["looped", "persistent", "pointwise"]


@pytest.mark.parametrize("device", devices())
def test_rows_of_unlike_length_take_turns(device: str) -> None:
    torch.manual_seed(0)

    def rows(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a.sum(-1), b.sum(-1)

    check(rows, torch.randn(5, 1024, device=device), torch.randn(5, 2500, device=device), dynamic=False)
    assert launches() == 1
    assert "turn = " in compiled_programs()[-1]["kernels"][0]["source"]


@pytest.mark.parametrize("device", devices())
def test_lists_of_six_sizes_are_one_launch(device: str) -> None:
    sizes = (10, 20, 30, 300, 500, 1000)
    tensors = [torch.randn(n, device=device) for n in sizes]

    def scale(*tensors: Tensor) -> Sequence[Tensor]:
        return torch._foreach_add(torch._foreach_mul(list(tensors), 2.0), list(tensors), alpha=0.5)

    check(scale, *tensors, dynamic=False)
    assert launches() == 1


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=["AdamW", "SGD"])
def test_a_step_over_five_shapes_is_two_launches_at_most(
    kind: type[torch.optim.Optimizer],
    foreach: bool,  # noqa: FBT001
    device: str,
) -> None:
    def optimizer() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in SHAPES]
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {"capturable": device == "cuda"}
        return made, kind(made, lr=0.1, foreach=foreach, fused=False, **extra)

    (mine, my_step), (eager, eager_step) = optimizer(), optimizer()
    step = torch.compile(my_step.step, backend="ferrite")
    for seed in range(3):
        torch.manual_seed(seed)
        for one, other in zip(mine, eager, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        step()
        eager_step.step()
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one, other)
    *_, last = compiled_programs()
    assert 1 <= sum(each["do"] == "launch" for each in last["steps"]) <= 2


def drawn_shapes(seed: int, count: int) -> list[tuple[int, ...]]:
    """Returns shapes of up to three dims, one of them of one element, and one larger than a block."""
    draw = Random(seed)
    shapes = [tuple(draw.choice((2, 3, 7, 8, 16, 20)) for _ in range(draw.randint(1, 3))) for _ in range(count - 2)]
    return [*shapes, (1,), (3, 1111)]


def adam(*tensors: Tensor) -> None:
    """Changes parameters and moments in place."""
    count = len(tensors) // 4
    parameters, gradients, means, squares = (list(tensors[k * count : (k + 1) * count]) for k in range(4))
    torch._foreach_lerp_(means, gradients, 0.1)
    torch._foreach_mul_(squares, 0.9)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.1)
    roots = torch._foreach_add(torch._foreach_sqrt(squares), 1e-6)
    torch._foreach_addcdiv_(parameters, means, roots, -0.1)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_over_lists_of_any_shapes_is_one_launch_with_few_texts(
    seed: int, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(seed)
    shapes = drawn_shapes(seed, 40) * 4
    mine = [torch.rand(shape, device=device).add_(0.1).to(dtype) for shape in shapes]
    eager, wide = [each.clone() for each in mine], [widened(each) for each in mine]
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    compiled(adam, fullgraph=True, dynamic=False, options={"fallback": False})(*mine)
    adam(*eager)
    adam(*wide)
    assert_all_close(mine, eager, wide)
    assert launches() == 1
    # Of whole vectors, of others, of one element; torch 2.11 traces the last op of the first tensor in another order.
    assert len(parts()[-1]) <= (4 if torch.__version__.startswith("2.11") else 3)


@pytest.mark.parametrize("device", devices())
def test_a_list_whose_addresses_change_from_call_to_call(device: str) -> None:
    def doubled(*tensors: Tensor) -> Sequence[Tensor]:
        return torch._foreach_mul(list(tensors), 2.0)

    torch._dynamo.reset()
    call = compiled(doubled, fullgraph=True, dynamic=False, options={"fallback": False})
    for seed in range(3):
        torch.manual_seed(seed)
        tensors = [torch.randn(shape, device=device) for shape in drawn_shapes(0, 30)]
        torch.testing.assert_close(tuple(call(*tensors)), tuple(2 * each for each in tensors))


@pytest.mark.parametrize("device", devices())
def test_clipping_twelve_gradients_is_three_launches(device: str) -> None:
    sizes = (10, 20, 30, 300, 500, 1000, 40, 50, 60, 70, 80, 4096)

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(n, device=device) for n in sizes]

    def clip(*grads: Tensor) -> Tensor:
        norms = torch._foreach_norm(list(grads))
        total = torch.linalg.vector_norm(torch.stack(norms))
        torch._foreach_mul_(list(grads), torch.clamp(1.0 / (total + 1e-6), max=1.0))
        return total

    mine, eager = gradients(), gradients()
    total = compiled(clip, fullgraph=True, dynamic=False, options={"fallback": False})(*mine)
    torch.testing.assert_close(total, clip(*eager))
    torch.testing.assert_close(mine, eager)
    assert launches() <= 3


@pytest.mark.parametrize("device", devices())
def test_averages_of_weights_are_one_launch(device: str) -> None:
    def average(*tensors: Tensor) -> None:
        half = len(tensors) // 2
        torch._foreach_lerp_(list(tensors[:half]), list(tensors[half:]), 0.1)

    def tensors() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(shape, device=device) for shape in (*SHAPES, *SHAPES)]

    mine, eager = tensors(), tensors()
    compiled(average, fullgraph=True, dynamic=False, options={"fallback": False})(*mine)
    average(*eager)
    torch.testing.assert_close(mine, eager)
    assert launches() == 1


@pytest.mark.parametrize("device", devices())
def test_sizes_may_be_symbolic(device: str) -> None:
    def three(a: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return a.sum(-1), torch.exp(w), (a @ w).amax(-1)

    run = compiled(three, fullgraph=True, options={"fallback": False})
    for n in (3, 9, 130, 257):
        torch.manual_seed(n)
        tensors = [torch.randn(shape, device=device) for shape in ((n, 40), (40, 6))]
        torch.testing.assert_close(run(*tensors), three(*tensors))
    assert [len(forms) for forms in parts()] == [3, 3, 3]  # of three rows; of any number, with 32 and 64 bits


@pytest.mark.parametrize("count", [2, 17, 40])
def test_many_small_reductions_are_one_launch(count: int) -> None:
    def sums(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.square().sum(-1) for tensor in tensors)

    check(sums, *(torch.randn(2 + k % 5, 10 + 3 * k) for k in range(count)), dynamic=False)
    assert launches() == 1
