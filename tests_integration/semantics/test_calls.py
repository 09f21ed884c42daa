"""How a compiled function may be called: shared and overlapping arguments, views, modes, gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from against_eager import compiled, compiled_or_eager, devices, is_own, observed_work
from bitwise import assert_same_bits, check_bits

each_device = pytest.mark.parametrize("device", devices())


def both(function: Callable[..., object], make: Callable[[], tuple[Tensor, ...]]) -> None:
    """Runs a function that changes its inputs, compiled and not, each on inputs of its own; all must end up equal."""
    mine, theirs = make(), make()
    torch._dynamo.reset()
    actual = compiled(function, fullgraph=True)(*mine)
    assert_same_bits(actual, function(*theirs), "results")
    assert_same_bits(mine, theirs, "inputs")


@each_device
def test_inputs_that_overlap_and_change(device: str) -> None:
    def make() -> tuple[Tensor, ...]:
        base = torch.arange(12.0, device=device)
        return base[:8], base[4:]

    def function(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a[:4] + b[:4]

    both(function, make)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("lengths", [(20, 21, 15, 20), (15, 40), (30, 10)])
def test_inputs_that_overlap_where_nothing_tells_what_they_are_views_of(
    lengths: tuple[int, ...], *, inference: bool
) -> None:
    """As in inference mode: AOTAutograd takes all that their storage holds, and does not guard how much that is."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(1)
        return a.sum() + b

    called = compiled_or_eager(function, dynamic=False)  # eagerly where there is less of a storage than at first
    with torch.inference_mode(inference):
        for length in lengths:
            mine, theirs = torch.arange(float(length)), torch.arange(float(length))
            actual = called(mine[:6].data, mine[4:10].data)
            assert_same_bits(actual, function(theirs[:6], theirs[4:10]), "results")
            assert_same_bits(mine, theirs, "inputs")


def windows(*starts: int) -> Callable[[], tuple[Tensor, ...]]:
    """Returns a function that makes views of four elements each of one tensor."""

    def make() -> tuple[Tensor, ...]:
        base = torch.arange(24.0)
        return tuple(base[start : start + 4] for start in starts)

    return make


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize(
    "places",
    [((0, 1), (1, 2), (2, 3)), ((0, 8), (1, 9), (2, 12)), ((0, 8), (0, 4), (0, 0), (0, 8)), ((0, 1), (0, 12), (0, 1))],
    ids=["overlapping", "apart", "apart at first", "overlapping at first"],
)
def test_inputs_that_change_and_move_to_each_other(
    places: tuple[tuple[int, int], ...], *, dynamic: bool | None
) -> None:
    """Dynamo does not guard where views begin: a graph compiled for some places must not be run for others."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b * 3

    call = compiled_or_eager(function, dynamic=dynamic)
    for place in places:
        mine, theirs = windows(*place)(), windows(*place)()
        assert_same_bits(call(*mine), function(*theirs), "results")
        assert_same_bits([view._base for view in mine], [view._base for view in theirs], "inputs")


OVERLAPPING: dict[str, Callable[[Tensor], object]] = {
    "expanded": lambda x: x.expand(3, 3).add_(1),
    "a view of an expanded one": lambda x: x.expand(3, 3).t()[0].add_(1),
    "windows": lambda x: x.unfold(0, 2, 1).mul_(2),
    "strided": lambda x: x.as_strided((2, 2), (1, 1)).add_(1),
    "filled": lambda x: x.expand(3, 3).zero_(),
    "an element": lambda x: x.expand(3, 3).__setitem__(0, 5.0),
    "out": lambda x: torch.add(x, 1, out=torch.zeros(3).expand(3, 3)),
    "an activation in place": lambda x: torch.relu_(x.expand(3, 3)),
    "several at once": lambda x: torch._foreach_add_([x.expand(3, 3)], 1),
    "expanded to one": lambda x: x[:1].expand(1).add_(1),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_writes_to_elements_that_share_memory(name: str) -> None:
    """They end as in eager mode, in an error as well."""

    def outcome(call: Callable[[Tensor], object]) -> tuple[list[float], str]:
        x = torch.arange(3.0)
        try:
            call(x)
        except RuntimeError as error:
            return x.tolist(), str(error)[:60]
        return x.tolist(), ""

    assert outcome(compiled_or_eager(OVERLAPPING[name])) == outcome(OVERLAPPING[name])


WINDOWS: dict[str, Callable[[Tensor], object]] = {
    "windows with gaps": lambda x: x.unfold(0, 2, 3).mul_(2),
    "a rest": lambda x: x.unfold(0, 2, 2).mul_(2),
    "an element of them": lambda x: x.unfold(0, 3, 4)[1].add_(1),
    "a view of a view": lambda x: x[1:].unfold(0, 2, 3).t()[..., 0].fill_(7),
    "copied into": lambda x: x.unfold(0, 2, 3).copy_(x[:2].clone()),
    "out": lambda x: torch.sub(x.unfold(0, 2, 2), 1, out=x.unfold(0, 2, 2)),
    "set": lambda x: x.unfold(0, 2, 2).__setitem__(0, 5.0),
    "windows that tile": lambda x: x[:6].unfold(0, 2, 2).mul_(2),
    "part of an overlap": lambda x: x.unfold(0, 2, 1)[0].add_(1),
    "rest of an intermediate": lambda x: x.copy_((y := x * 2, y.unfold(0, 2, 2).neg_())[0]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_writes_through_windows_leave_the_rest_alone(name: str) -> None:
    def outcome(call: Callable[[Tensor], object]) -> list[float]:
        x = torch.arange(1.0, 8.0)
        call(x)
        return x.tolist()

    assert outcome(compiled_or_eager(WINDOWS[name])) == outcome(WINDOWS[name])


LISTS: dict[str, tuple[Callable[[Tensor, Tensor], object], bool]] = {
    "one tensor twice": (lambda x, y: torch._foreach_mul_([x, x], 2.0), False),
    "a number for each": (lambda x, y: torch._foreach_mul_([x, x], [2.0, 3.0]), False),
    "an intermediate": (lambda x, y: x.copy_((z := x * 1, torch._foreach_add_([z, z, z], 1.0))[0]), False),
    "a part and all": (lambda x, y: torch._foreach_mul_([x[0], x], 2.0), False),
    "parts that overlap": (lambda x, y: torch._foreach_mul_([x[:2], x[1:]], 2.0), False),
    "transposed": (lambda x, y: torch._foreach_mul_([x, x.t()], 2.0), False),
    "every second and others": (lambda x, y: torch._foreach_mul_([x.view(-1)[::2], x.view(-1)[1:7]], 2.0), False),
    "every second and every third": (lambda x, y: torch._foreach_mul_([x.view(-1)[::2], x.view(-1)[::3]], 2.0), False),
    "a row and a column": (lambda x, y: torch._foreach_mul_([x[0], x[:, 0]], 2.0), False),
    "even and odd": (lambda x, y: torch._foreach_mul_([x.view(-1)[::2], x.view(-1)[1::2]], 2.0), True),
    "a column twice": (lambda x, y: torch._foreach_mul_([x[:, 0], x[:, 0]], 2.0), False),
    "read after it is written": (lambda x, y: torch._foreach_add_([x, y], [y, x]), False),
    "copied in turn": (lambda x, y: torch._foreach_copy_([x, y], [y, x]), False),
    "a factor that is written": (lambda x, y: torch._foreach_addcmul_([x, y], [y, x], [y, y], value=0.5), False),
    "read before it is written": (lambda x, y: torch._foreach_add_([x, y], [y, y * 2]), True),
    "rows": (lambda x, y: torch._foreach_mul_(list(x.unbind()), 2.0), True),
    "columns": (lambda x, y: torch._foreach_mul_([x[:, 0], x[:, 1]], 2.0), True),
}
"""Ops on lists, each with whether it is compiled."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", LISTS)
def test_ops_on_lists_write_a_tensor_that_is_there_twice_in_turn(name: str, *, dynamic: bool) -> None:
    function, is_compiled = LISTS[name]

    def outcome(call: Callable[[Tensor, Tensor], object]) -> list[Tensor]:
        tensors = [torch.arange(1.0, 13.0).view(3, 4), torch.full((3, 4), 0.5)]
        call(*tensors)
        return tensors

    with observed_work() as work:
        actual = outcome(compiled_or_eager(function, dynamic=dynamic))
    assert_same_bits(actual, outcome(function), "inputs")
    assert bool(work.graphs) == is_compiled or not is_own()


def test_a_storage_that_is_filled_and_freed_inside_is_the_users() -> None:
    """As sharded parameters are gathered and released by those who write it out."""

    def unsharded(parameter: Tensor, shard: Tensor) -> Tensor:
        parameter.untyped_storage().resize_(parameter.numel() * 4)
        with torch.no_grad():
            parameter.copy_(shard)
        total = (parameter * 2).sum()
        parameter.untyped_storage().resize_(0)
        return total

    parameter, shard = torch.empty(4, 6), torch.randn(4, 6)
    parameter.untyped_storage().resize_(0)
    call = compiled_or_eager(unsharded)
    for _ in range(2):
        torch.testing.assert_close(call(parameter, shard), (shard * 2).sum())
        assert parameter.untyped_storage().size() == 0


@each_device
def test_one_tensor_as_two_inputs_that_change(device: str) -> None:
    def make() -> tuple[Tensor, ...]:
        x = torch.arange(6.0, device=device)
        return x, x

    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(a)
        return a + b

    both(function, make)


@each_device
def test_change_through_a_strided_view(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        x.t()[1:].mul_(3)
        x[:, ::2] += 1
        return x.sum(0)

    both(function, lambda: (torch.arange(20.0, device=device).view(4, 5),))


@each_device
def test_change_of_bits_through_another_type(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return (x.view(torch.int32) + 1).view(torch.float32) - x

    both(function, lambda: (torch.arange(8.0, device=device),))


@each_device
def test_results_of_out(device: str) -> None:
    def function(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        torch.add(a, b, out=out)
        torch.mul(out, a, out=out)
        return out

    def make() -> tuple[Tensor, ...]:
        return torch.ones(3, 4, device=device), torch.full((4,), 2.0, device=device), torch.zeros(3, 4, device=device)

    both(function, make)


@each_device
def test_in_place_operation_keeps_its_type(device: str) -> None:
    def function(i: Tensor, h: Tensor) -> None:
        i.add_(2)
        i.mul_(h.to(torch.int32))
        h.add_(0.1)
        h.clamp_(max=i[0])

    def make() -> tuple[Tensor, ...]:
        return torch.arange(6, dtype=torch.int32, device=device), torch.ones(6, dtype=torch.bfloat16, device=device)

    both(function, make)


def sharing(results: tuple[Tensor, ...], x: Tensor) -> list[list[bool]]:
    """Returns which results lie in the same memory as which others, and as the input."""
    places = [tensor.untyped_storage().data_ptr() for tensor in (*results, x)]
    return [[place == other for other in places] for place in places]


@each_device
def test_views_of_results_and_of_inputs(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y, y[1:], y.t(), x.view(-1), x[..., 0], x.view(torch.int32)

    x = torch.arange(12.0, device=device).view(3, 4)
    actual, eager = compiled(function, fullgraph=True)(x), function(x)
    assert_same_bits(actual, eager)
    assert sharing(actual, x) == sharing(eager, x)


@each_device
def test_view_of_a_result_as_another_type(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y, y.view(torch.int32)

    x = torch.arange(12.0, device=device)
    assert sharing(compiled(function, fullgraph=True)(x), x) == sharing(function(x), x)


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=before)


@each_device
@pytest.mark.usefixtures("deterministic")
def test_deterministic_algorithms(device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 16, device=device)
    check_bits(lambda x: (x.relu() + 1, torch.empty_like(x) * 0 == 0), x, native=False)
    index = torch.randint(0, 8, (64,), device=device)
    values = torch.randn(64, 16, device=device)
    called = compiled_or_eager(lambda x, i, v: x.index_add(0, i, v))
    found = [called(x, index, values) for _ in range(3)]
    assert all(torch.equal(found[0], again) for again in found)


@each_device
def test_modes_of_inference(device: str) -> None:
    x = torch.randn(5, device=device, requires_grad=True)
    function = compiled(lambda x: x.exp() * 2)
    assert function(x).requires_grad
    with torch.inference_mode():
        found = function(x)
        assert found.is_inference()
        assert not found.requires_grad
        made = torch.ones(5, device=device)
        torch.testing.assert_close(function(made), made.exp() * 2)
    with torch.no_grad():
        assert not function(x).requires_grad
    assert function(x).requires_grad


@each_device
def test_tensors_of_inference_mode_are_written_in_that_mode_alone(device: str) -> None:
    """Dynamo guards what a tensor is, and not the mode of a call: the second is of the program of the first."""
    function = compiled(lambda x: x.add_(1).sum())
    with torch.inference_mode():
        made = torch.zeros(3, device=device)
        assert function(made).item() == 3
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        function(made)
    with torch.inference_mode():
        before = made.sum().item()
        assert function(made).item() == before + 3
    assert function(torch.zeros(3, device=device)).item() == 3


@each_device
def test_gradient_of_a_gradient_is_right_or_refused(device: str) -> None:
    """AOTAutograd does not trace the backward of a backward: asking for it says so, never gives a wrong number."""
    x = torch.linspace(0.1, 1.0, 7, dtype=torch.float64, device=device).requires_grad_()

    def second(function: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(first.sum(), x)
        return again

    def function(x: Tensor) -> Tensor:
        return torch.sin(x) * torch.exp(x)

    expected = second(function)
    try:
        found = second(compiled(function))
    except RuntimeError as error:
        assert "double backward" in str(error) or "twice" in str(error) or "create_graph" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, expected)


@each_device
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, True), (True, True, True)])
def test_gradients_of_some_inputs(device: str, wanted: tuple[bool, ...]) -> None:
    def leaves() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4, 3, dtype=torch.float64, device=device).requires_grad_(flag) for flag in wanted]

    def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (a * b.sigmoid() + c.exp()).sum(0) + torch.where(a > 0, a, b).sum(0)

    mine, theirs = leaves(), leaves()
    compiled(function)(*mine).sum().backward()
    function(*theirs).sum().backward()
    for a, e in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (e.grad is None)
        if e.grad is not None:
            torch.testing.assert_close(a.grad, e.grad)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_and_inside(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device)

    def inside(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, dtype=dtype):
            c = a @ b
            return c, c + a, c.exp(), torch.softmax(c, -1)

    def plain(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        c = a @ b
        return c, c + a, c.exp()

    for x, y in zip(compiled(inside)(a, b), inside(a, b), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
    with torch.autocast(device, dtype=dtype):
        mine, theirs = compiled(plain)(a, b), plain(a, b)
    for x, y in zip(mine, theirs, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


@each_device
def test_constants_in_a_graph(device: str) -> None:
    table = torch.tensor([1.0, 2.0, 3.0], device=device)
    check_bits(lambda x: x * torch.tensor([1.5, 2.5, -0.0], device=device) + table, torch.ones(2, 3, device=device))
    check_bits(lambda x: x + torch.full((), float("nan"), device=device), torch.ones(3, device=device))
    check_bits(lambda x: (x, torch.ones(2, device=device), 3, None)[:2], torch.ones(3, device=device), native=False)
