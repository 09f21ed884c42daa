"""Data-dependent sizes and numbers: one graph for every value, and an error where one is not what was asked."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import devices, own_only
from ferrite_runtime import CheckFailed, GuardFailed

pytestmark = own_only("it counts ferrite's own graphs")

T = torch.tensor
MARKED = torch._dynamo.decorators.mark_unbacked

IS_NEW = torch.__version__ >= torch.torch_version.TorchVersion("2.12")
"""Before, torch takes for granted what a ``torch._check`` of a truth asks, and forgets the line of one of an extent."""


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        ferrite_torch.reset_statistics()
        yield


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    options = {"fallback": False, "verify": True, **options}
    return torch.compile(function, backend="ferrite", fullgraph=True, options=options)


def check(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], device: str = "cpu") -> Callable[..., Any]:
    """Checks that one compilation of a function does what eager does in all of some calls; returns it."""
    called = compiled(function)
    for given in calls:
        arguments = [x.to(device) for x in given]
        torch.testing.assert_close(called(*arguments), function(*arguments), equal_nan=True)
    assert ferrite_torch.statistics()["graphs"] == 1
    assert not ferrite_torch.statistics()["fallbacks"]
    return called


def held(*sizes: int) -> list[Tensor]:
    """Returns vectors of 40 elements of which so many are positive."""
    return [torch.where(torch.arange(40) % 40 < size, torch.rand(40) + 0.1, -torch.rand(40) - 0.1) for size in sizes]


SIZES = (5, 0, 1, 2, 17, 32, 33, 40)


def number(x: Tensor) -> int:
    """Returns a number that dynamo cannot trace back to an input."""
    return (x + 0).item()  # type: ignore[return-value]


# --- extents --------------------------------------------------------------------------------------------------------


def positions(x: Tensor) -> Tensor:
    found = torch.nonzero(x > 0)
    return (found * 2 + 1).sum(0)


def selected(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    kept = torch.masked_select(x, x > 0)
    return kept.sum(), torch.softmax(kept, 0), kept * 2 + 1


def rows(x: Tensor) -> Tensor:
    found = x.reshape(8, 5)
    kept = found[found[:, 0] > 0]
    return torch.relu(kept @ found[:5]) + 1


def centred(x: Tensor) -> Tensor:
    kept = x[x > 0]
    return (kept - kept.mean()) / (kept.std() + 1)


def crossed(x: Tensor) -> Tensor:
    """Lays what is found out along both axes, and reduces along each."""
    kept = x[x > 0]
    table = kept[:, None] * kept[None, :] + 1
    return table.sum(0) + table.sum(1) + table.t().contiguous()[:, :0].sum()


def distinct(x: Tensor) -> Tensor:
    values, counts = torch.unique((x * 4).relu().long(), return_counts=True)
    return (values * counts).sum() + values.float().mean()


def joined(x: Tensor) -> Tensor:
    """Uses several sizes at once, and one that follows from them."""
    high, low = x[x > 0.5], x[x < -0.5]
    return torch.cat((high, low, high)).cumsum(0) + high.numel()


def gathered(x: Tensor) -> Tensor:
    places = torch.nonzero(x > 0).squeeze(1)
    return (x[places] + places.float()).exp().sum()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", [positions, selected, rows, centred, crossed, distinct, joined, gathered])
def test_extents(function: Callable[..., Any], device: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of eager, about the deviation of one element
        check(function, [(x,) for x in held(*SIZES)], device)


def test_repetitions() -> None:
    counts = [T([1, 0, 2]), T([0, 0, 0]), T([0, 1, 0]), T([5, 7, 1])]
    check(lambda x, n: torch.repeat_interleave(x, n, dim=0).relu().sum(1) + 1, [(torch.randn(3, 2), n) for n in counts])


def test_equal_sizes() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        i, j = torch.nonzero(x > 0), torch.nonzero(y > 0)
        torch._check(i.shape[0] == j.shape[0])
        return i + j

    called = check(add, [(x, -y.flip(0)) for x, y in zip(held(5, 0, 1, 39), held(35, 40, 39, 1), strict=True)])
    with pytest.raises(CheckFailed, match=r"test_run_time_sizes.py:\d+.*== .*: .* is 5, .* is 4"):
        called(held(5)[0], held(4)[0])


def test_a_size_that_has_to_be_a_number() -> None:
    def three(x: Tensor) -> Tensor:
        places = torch.nonzero(x > 0)
        torch._check(places.shape[0] == 3)
        return places.view(1, 3) * 2

    called = check(three, [(x,) for x in held(3, 3)])
    for size in (0, 2, 40):
        with pytest.raises(CheckFailed, match=rf"places.shape\[0\] == 3 does not hold.*: places.shape\[0\] is {size}"):
            called(*held(size))


def test_marked_inputs() -> None:
    def rest(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, 0).sum(1) + x.shape[0]

    called = compiled(rest)
    for size in (4, 0, 1, 7, 128):
        x = torch.randn(size, 3)
        MARKED(x, 0)
        torch.testing.assert_close(called(x), rest(x))
    assert ferrite_torch.statistics()["graphs"] == 1


def test_marked_inputs_of_a_training_step() -> None:
    """Nothing asks a marked extent for a value on the way to a backward; 0 and 1 are no other graphs."""
    layers = [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))]
    layers.append(copy.deepcopy(layers[0]))
    called = compiled(layers[0])
    for size in (4, 1, 7, 2):
        x = torch.randn(size, 3, 6, 6)
        marked = x.clone()
        MARKED(marked, 0)
        for layer, function, given in ((layers[0], called, marked), (layers[1], layers[1], x)):
            layer.zero_grad()
            function(given).square().sum().backward()
        for mine, theirs in zip(*(layer.parameters() for layer in layers), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert ferrite_torch.statistics()["graphs"] == 2


# --- numbers --------------------------------------------------------------------------------------------------------


def counted(x: Tensor, n: Tensor) -> Tensor:
    k = number(n)
    torch._check(k >= 0)
    return torch.arange(k, device=x.device) * 2 + x.new_ones(k) * k


def front(x: Tensor, n: Tensor) -> Tensor:
    return x[: number(n)].exp().sum()


def back(x: Tensor, n: Tensor) -> Tensor:
    return x[number(n) :] * 2


def strided(x: Tensor, n: Tensor) -> Tensor:
    return x[1 : number(n) : 3] + 1


def one(x: Tensor, n: Tensor) -> Tensor:
    return x[number(n)] * 2 + 1


def scaled(x: Tensor, n: Tensor) -> Tensor:
    return x * number(n) + number(n.double() / 4) * 0.5


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", [counted, front, back, strided, one, scaled])
def test_numbers(function: Callable[..., Any], device: str) -> None:
    values = (3, 0, 1, 7, 40, 39) if function is counted else (3, 0, -3, 1, 17, -1, 39, -40)
    outside = () if function in (counted, one) else (40, 60, -60)
    check(function, [(torch.randn(40), T(n)) for n in (*values, *outside)], device)


def test_numbers_that_need_64_bits() -> None:
    def shifted(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        k = number(n)
        return (x.long() + k) * k, x * k

    check(shifted, [(torch.randn(4), T(n)) for n in (3, 0, -5, 2**31, 2**31 - 1, -(2**31) - 1, 2**40, -(2**33))])


def test_what_is_left_of_an_extent() -> None:
    """The extents ``40-u0``, and ``s0-u0``, of which no range is known."""

    def parted(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        k = number(n)
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        first, second = x.split([k, x.shape[0] - k])
        return first.sum(0), second * 2

    check(parted, [(torch.randn(40), T(n)) for n in (3, 0, 1, 39, 40)])
    inputs = [torch.randn(size, 3) for size in (40, 7, 33)]
    torch._dynamo.mark_dynamic(inputs[0], 0)
    called = compiled(parted)
    for x in inputs:
        for n in (3, 0, x.shape[0]):
            torch.testing.assert_close(called(x, T(n)), parted(x, T(n)))
    assert ferrite_torch.statistics()["graphs"] == 2


def test_views_of_an_input_stay_views() -> None:
    def parts(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x[: number(n)], x[number(n) :]

    called, x = compiled(parts), torch.randn(40)
    for n in (3, 0, -1, 50):
        for mine, theirs in zip(called(x, T(n)), parts(x, T(n)), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert not mine.numel() or mine.data_ptr() == theirs.data_ptr()


def test_part_of_an_input_is_written() -> None:
    def raised(x: Tensor, n: Tensor) -> Tensor:
        x[: number(n)].add_(1)
        return x * 2

    called = compiled(raised)
    for n in (3, 0, 40, -40):
        x = torch.zeros(40)
        torch.testing.assert_close(called(x, T(n)), raised(torch.zeros(40), T(n)))
        torch.testing.assert_close(x, (torch.arange(40) < max(n, 0)).float())


def test_floats_and_truths() -> None:
    def weighed(x: Tensor) -> tuple[Tensor, float]:
        total = x.sum().item()
        torch._check(bool((x > -100).all().item()))
        return x * total + total / 2, total

    called = check(weighed, [(torch.randn(5),) for _ in range(2)])
    if IS_NEW:
        with pytest.raises(CheckFailed, match="all"):
            called(torch.full((5,), -200.0))


def test_a_table_of_numbers() -> None:
    def table(n: Tensor) -> Tensor:
        a, b = (n + 0).tolist()
        return torch.full((a, b), 1.5).cumsum(0) + torch.zeros(a, b)

    check(table, [(T(pair),) for pair in ([2, 3], [0, 3], [3, 0], [1, 1], [31, 33])])


# --- what is asked of them ------------------------------------------------------------------------------------------


def bounded(n: Tensor) -> Tensor:
    k = (n + 0).item()
    torch._check(k >= 2)
    torch._check(k <= 8)
    return torch.zeros(k) + 1


@pytest.mark.parametrize(("value", "asked"), [(1, "k >= 2"), (9, "k <= 8"), (-1, "k >= 2")])
def test_a_bound_that_is_broken(value: int, asked: str) -> None:
    called = check(bounded, [(T(n),) for n in (2, 5, 8)])
    with pytest.raises(GuardFailed) as caught:
        called(T(value))
    line = bounded.__code__.co_firstlineno
    assert f"test_run_time_sizes.py:{line + 1}: k = (n + 0).item()" in str(caught.value) or any(
        f"test_run_time_sizes.py:{line + place}: torch._check" in str(caught.value) for place in (2, 3)
    )
    assert f"{asked} does not hold" in str(caught.value)
    assert f"k is {value}" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)  # what eager raises
    torch.testing.assert_close(called(T(3)), bounded(T(3)))


def test_a_shape_that_has_to_be_divisible() -> None:
    def paired(x: Tensor) -> Tensor:
        kept = x[x > 0]
        torch._check(kept.shape[0] % 2 == 0)
        return kept.view(-1, 2).sum(1)

    called = check(paired, [(x,) for x in held(6, 0, 2, 40)])
    line = r"torch._check\(kept.shape\[0\] % 2 == 0\).*" if IS_NEW else ""
    with pytest.raises(CheckFailed, match=rf"{line}does not hold.*: kept.shape\[0\] is 5"):
        called(*held(5))


def test_conditions_speak_of_sizes_as_the_user_does() -> None:
    def part(x: Tensor, n: Tensor) -> Tensor:
        k, m = (n + 0).tolist()
        torch._check(k >= 0)
        torch._check(k <= m)
        torch._check(m * 2 <= x.shape[0])
        return x[:k] + x[m:][:k]

    called = torch.compile(part, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    for size, pair in ((8, [2, 4]), (20, [3, 10]), (9, [0, 0])):
        x = torch.randn(size)
        torch.testing.assert_close(called(x, T(pair)), part(x, T(pair)))
    for pair, text in (([3, 2], r"k <= m does not hold.*: k is 3, m is 2"),
                       ([3, 5], r"2\*m <= x.shape\[0\] does not hold.*: m is 5, x.shape\[0\] is 9")):  # fmt: skip
        with pytest.raises(CheckFailed, match=text):
            called(torch.randn(9), T(pair))


def test_names_of_what_one_line_tells() -> None:
    def added(x: Tensor) -> Tensor:
        high, low = x[x > 0], x[x < 0]
        return high + low

    called = compiled(added)
    x = T([1.0, -1.0, 2.0, -2.0])
    torch.testing.assert_close(called(x), added(x))
    with pytest.raises(CheckFailed, match=r"high.shape\[0\] is 2, low.shape\[0\] is 1"):
        called(x[:3])


def test_conditions_with_several_parts() -> None:
    def asked(x: Tensor, n: Tensor) -> Tensor:
        k, m = (n + 0).tolist()
        torch._check(k >= 0)
        torch._check(m >= 0)
        torch._check(k != 7)
        torch._check(k * 2 + m <= 20)
        torch._check(k % 2 == 0)
        return torch.zeros(k) + x.sum() + m

    called = check(asked, [(torch.randn(3), T(pair)) for pair in ([4, 3], [0, 20], [10, 0])])
    for wrong in ([7, 0], [8, 5], [3, 0], [4, -1]):
        with pytest.raises(CheckFailed, match="does not hold"):
            called(torch.randn(3), T(wrong))


def test_an_index_outside() -> None:
    called = check(one, [(torch.randn(5), T(2))])
    for place in (5, -6):
        with pytest.raises(IndexError, match="does not hold") as caught:
            called(torch.randn(5), T(place))
        assert isinstance(caught.value, CheckFailed)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_row_outside_is_not_replaced(*, dynamic: bool) -> None:
    def replaced(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        k = (n + 0).item()
        return torch.select_scatter(x, x[0] * 2, 0, k), x.copy_(torch.select_scatter(x, x[1], 0, k))

    called = torch.compile(replaced, backend="ferrite", dynamic=dynamic, fullgraph=True, options={"fallback": False})
    for place in (3, 0, -5):
        x = torch.randn(5, 3)
        torch.testing.assert_close(called(x.clone(), T(place)), replaced(x.clone(), T(place)))
    for place in (5, -6):
        x = torch.randn(5, 3)
        kept = x.clone()
        with pytest.raises(IndexError, match="does not hold"):
            called(x, T(place))
        assert torch.equal(x, kept)


def test_nothing_is_written_before_a_check() -> None:
    def write(x: Tensor, n: Tensor) -> Tensor:
        x.add_(1)
        k = (n + 0).item()
        torch._check(k >= 0)
        torch._check(k <= 5)
        return x[:k] * 2

    called, x = compiled(write), torch.zeros(8)
    torch.testing.assert_close(called(x, T(3)), torch.full((3,), 2.0))
    torch.testing.assert_close(x, torch.ones(8))
    with pytest.raises(CheckFailed):
        called(x, T(6))


def test_a_float_that_is_not_what_was_asked() -> None:
    def shared(x: Tensor, n: Tensor) -> Tensor:
        total = x.sum().item()
        k = (n + 0).item()
        torch._check(k >= 0)
        torch._check(total > 0)
        torch._check(total * 2 + k <= 100)
        return x / total + k

    called = check(shared, [(torch.full((4,), part), T(k)) for part, k in ((1.0, 3), (0.25, 98), (12.5, 0))])
    line = shared.__code__.co_firstlineno
    first = rf"_sizes.py:{line + 4}: torch._check\(total > 0\): " if IS_NEW else ""
    second = rf"_sizes.py:{line + 5}: .* 2.*\*total \+ k <= 100.* does not hold"
    wrong = [(-1.0, 3, rf"{first}total > 0.* does not hold"), (float("nan"), 0, "total > 0.* does not hold")]
    for part, k, text in (*wrong, *([(1.0, 93, second)] if IS_NEW else [])):  # before, torch asks nothing of sums
        with pytest.raises(CheckFailed, match=text):
            called(torch.full((4,), part), T(k))


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", devices())
def test_a_training_step(device: str) -> None:
    torch.manual_seed(0)
    layer, exact = nn.Linear(6, 4, device=device), nn.Linear(6, 4, device=device)
    exact.load_state_dict(layer.state_dict())

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        kept = torch.masked_select(y, x[:, :4] > 0)
        return (kept**2).sum() + y[x[:, 0] > 0].exp().sum()

    called = compiled(lambda x: loss(layer, x))
    for x in (x.to(device) for x in (torch.randn(7, 6), torch.randn(7, 6), -torch.ones(7, 6), torch.ones(7, 6))):
        for model, function in ((layer, called), (exact, lambda x: loss(exact, x))):
            model.zero_grad()
            function(x).backward()
        for mine, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert ferrite_torch.statistics()["graphs"] == 2


FLOATS: dict[str, Callable[[float], float]] = {
    "greatest": lambda a: max(1.0, a),
    "least": lambda a: min(a, 1.0) / 2,
    "size": lambda a: abs(-a),
    **{name: getattr(math, name) for name in ("sqrt", "log2", "sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(math, name) for name in ("sinh", "cosh", "tanh")},
}


@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_floats_in_lists_are_computed_by_kernels(name: str) -> None:
    """Torch makes tensors of floats by themselves, but not of those in the lists that optimizers pass."""

    def scaled(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(torch._foreach_mul([y, y + 1], [FLOATS[name](x.sum().item()) + 1, 2.0]))

    called = compiled(scaled)
    for value in (0.7, 0.25, 1.0):
        x, y = torch.full((1,), value), torch.randn(3)
        torch.testing.assert_close(called(x, y), scaled(x, y))
    assert ferrite_torch.statistics()["extern_calls"] == 0


# --- what has no kernels --------------------------------------------------------------------------------------------


def test_a_number_without_a_form_is_refused_with_its_line() -> None:
    def root(x: Tensor, n: Tensor) -> Tensor:
        k = (n + 0).item()
        torch._check(k >= 0)
        return x.new_zeros(torch.sym_int(torch.sym_sqrt(k)))

    with pytest.raises(Exception, match=r"test_run_time_sizes.py:\d+"):
        compiled(root)(torch.randn(3), T(9))


def test_a_truth_that_leaves_a_graph_is_refused_with_its_line() -> None:
    def broken(x: Tensor) -> Tensor:
        k = (x > 0).sum().item()
        large = k >= 2
        torch._dynamo.graph_break()
        return x + 1 if large else x

    called = torch.compile(broken, backend="ferrite")
    torch.testing.assert_close(called(torch.ones(3)), torch.full((3,), 2.0))
    (reason,) = ferrite_torch.statistics()["fallbacks"]
    line = broken.__code__.co_firstlineno + 2
    assert reason == f"ge ({__file__}:{line}): a graph that returns whether k >= 2, which depends on data"
