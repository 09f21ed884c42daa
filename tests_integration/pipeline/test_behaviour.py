"""What a compiled function does beside computing: randomness, lists, fallbacks, options, errors, streams."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import backend, compiled, compiled_or_eager, observed_work, own_only
from behaviour_checks import Function, each_device

# Operators that no compiler knows


@torch.library.custom_op("ferrite_tests::swap", mutates_args=())
def swap(x: Tensor, y: Tensor) -> list[Tensor]:
    return [y.clone(), x.clone()]


@swap.register_fake
def _(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.empty_like(y), torch.empty_like(x)]


@torch.library.custom_op("ferrite_tests::double_in_place", mutates_args=("x",))
def double_in_place(x: Tensor) -> None:
    x.mul_(2)


@double_in_place.register_fake
def _(x: Tensor) -> None:
    pass


# Randomness


@each_device
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5),
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.rand(4, 5, device=x.device) + torch.randn(4, 5, device=x.device),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.randint_like(x, 10),
    ],
    ids=["dropout", "rand_like", "randn_like", "rand and randn", "bernoulli", "randint_like"],
)
def test_random_numbers_follow_the_seed(device: str, function: Function) -> None:
    x = torch.randn(4, 5, device=device)
    called = compiled(function, fullgraph=True)
    torch.manual_seed(11)
    first, second = called(x), called(x)
    torch.manual_seed(11)
    again = called(x)
    torch.manual_seed(12)
    other = called(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.isfinite(first).all()


@each_device
def test_random_numbers_have_their_distribution(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand_like(x), torch.randn_like(x)

    uniform, normal = compiled(function, fullgraph=True)(torch.empty(2000, device=device))
    assert 0.0 <= uniform.min().item() < 0.05
    assert 0.95 < uniform.max().item() < 1.0
    assert abs(uniform.mean().item() - 0.5) < 0.04
    assert abs(normal.mean().item()) < 0.12
    assert 0.9 < normal.std().item() < 1.1


# Optimisers and lists


@each_device
def test_foreach_lists(device: str) -> None:
    def function(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_addcmul_(xs, ys, ys, 0.1)
        return torch._foreach_sqrt(torch._foreach_abs(xs))

    shapes = [(3,), (2, 4), (5, 1), ()]
    mine = [torch.randn(shape, device=device) for shape in shapes]
    theirs, others = [x.clone() for x in mine], [torch.randn(shape, device=device) for shape in shapes]
    actual, eager = compiled(function, fullgraph=True)(mine, others), function(theirs, others)
    for a, e in zip([*actual, *mine], [*eager, *theirs], strict=True):
        assert torch.allclose(a, e, atol=1e-6)


@each_device
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_equal_lists_have_programs_of_their_own(device: str, *, dynamic: bool, in_place: bool) -> None:
    def function(xs: list[Tensor], ys: list[Tensor], factor: Tensor) -> list[Tensor]:
        if in_place:
            torch._foreach_lerp_(xs, ys, 0.1)
            torch._foreach_mul_(ys, factor)
            return []
        moved = torch._foreach_lerp(xs, ys, 0.1)
        return [*moved, *torch._foreach_mul(moved, factor)]

    shapes = [(37, 6)] * 5 + [(3,)] * 2
    mine = [[torch.randn(shape, device=device) for shape in shapes] for _ in range(2)]
    theirs = [[x.clone() for x in xs] for xs in mine]
    factor = torch.tensor(0.25, device=device)
    actual = compiled(function, fullgraph=True, dynamic=dynamic)(*mine, factor)
    eager = function(*theirs, factor)
    for a, e in zip([*actual, *mine[0], *mine[1]], [*eager, *theirs[0], *theirs[1]], strict=True):
        assert torch.allclose(a, e, atol=1e-6)
    if not dynamic:
        from ferrite_torch import compiled_programs

        (kernel,) = compiled_programs()[-1]["kernels"]  # one launch of two lists, whose tensors have one text
        assert [part["facts"]["numel"] for part in kernel["parts"]] == [5 * 37 * 6 + 2 * 3]


@each_device
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_compiled_optimizer_step(device: str, kind: str) -> None:
    def trained(wrap: Callable[[Function], Function]) -> list[Tensor]:
        torch.manual_seed(4)
        weights = [torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 4), (5,))]
        extra = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(weights, lr=0.1, foreach=True, **extra)
        step = wrap(optimizer.step)
        for _ in range(3):
            for w in weights:
                w.grad = w.detach() * 0.5 + 0.1
            step()
        return [w.detach() for w in weights]

    for mine, theirs in zip(trained(compiled), trained(lambda step: step), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


# Fallbacks, options, errors


@each_device
def test_complex_numbers_fall_back(device: str) -> None:
    x = torch.randn(4, dtype=torch.complex64, device=device)
    y = torch.randn(4, device=device)
    actual, power = compiled(lambda x, y: (x * y + 1, (x * x.conj()).real * 2), fullgraph=True)(x, y)
    assert torch.allclose(actual, x * y + 1)
    assert torch.allclose(power, (x * x.conj()).real * 2, atol=1e-6)


@each_device
def test_operator_without_a_lowering_falls_back(device: str) -> None:
    x = torch.randn(3, 3, device=device)
    matrix = x @ x.t() + 3 * torch.eye(3, device=device)
    actual = compiled(lambda m: torch.linalg.cholesky(m) * 2, fullgraph=True)(matrix)
    assert torch.allclose(actual, torch.linalg.cholesky(matrix) * 2, atol=1e-5)


@each_device
def test_operator_of_somebody_else_falls_back(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        a, b = torch.ops.ferrite_tests.swap(x + 1, y * 2)
        return a - b

    x, y = torch.randn(3, device=device), torch.randn(3, device=device)
    assert torch.allclose(compiled(function, fullgraph=True)(x, y), y * 2 - (x + 1))


@each_device
def test_operator_that_mutates_falls_back(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        torch.ops.ferrite_tests.double_in_place(y)
        torch.ops.ferrite_tests.double_in_place(x)
        return y + x

    x = torch.ones(3, device=device)
    assert compiled_or_eager(function, fullgraph=True)(x).tolist() == [6.0] * 3
    assert x.tolist() == [2.0] * 3


def test_library_error_stays_the_library_s() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) + 1

    try:
        torch.compile(function, backend="aot_eager")(-torch.eye(3))
    except RuntimeError:
        with pytest.raises(RuntimeError, match=r"(?i)cholesky|positive"):
            compiled(function, fullgraph=True)(-torch.eye(3))
    else:
        pytest.skip("this torch drops the check of the result before any backend sees it: 2.11 does")


@own_only("options are the backend's own")
@each_device
def test_mode_is_accepted(device: str) -> None:
    x = torch.randn(4, device=device)
    assert torch.allclose(compiled(lambda x: x * 2, mode="default")(x), x * 2)


@own_only("options are the backend's own")
def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="no_such_option"):
        compiled(lambda x: x * 2, options={"no_such_option": 1})(torch.randn(4))


@own_only("options are the backend's own")
def test_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="no-such-mode"):
        compiled(lambda x: x * 2, mode="no-such-mode")(torch.randn(4))


@own_only("the name is registered by ferrite_torch")
def test_backend_is_listed() -> None:
    import ferrite_torch  # noqa: F401

    assert backend() in torch._dynamo.list_backends()


@own_only("asks ferrite for its counts")
@pytest.mark.parametrize(
    ("dtype", "size", "calls"),
    [
        (torch.bfloat16, 1024, 0),
        (torch.bfloat16, 1025, 1),
        (torch.float32, 512, 0),
        (torch.float32, 513, 1),
        (torch.int8, 600, 0),
        (torch.int64, 600, 1),
    ],
)
def test_long_rows_are_sorted_by_the_library(dtype: torch.dtype, size: int, calls: int) -> None:
    torch.manual_seed(0)
    x = torch.randperm(3 * size).view(3, size).remainder(101).to(dtype)
    with observed_work() as work:
        compiled(lambda x: torch.sort(x, stable=True, dim=-1), fullgraph=True)(x)
    assert work.extern_calls == calls


@own_only("asks ferrite for its counts")
@each_device
def test_extern_calls_are_counted(device: str) -> None:
    with observed_work() as work:
        compiled(lambda x: torch.linalg.cholesky(x @ x.t() + 3 * torch.eye(3, device=device)), fullgraph=True)(
            torch.randn(3, 3, device=device)
        )
    assert work.extern_calls >= 2


@each_device
def test_nothing_is_logged_as_a_warning(device: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiled(lambda x: torch.softmax(x, -1), fullgraph=True)(torch.randn(3, 4, device=device))
    assert not [record for record in caplog.records if record.name.startswith("ferrite")]


@pytest.mark.gpu
def test_another_stream() -> None:
    x = torch.randn(1 << 16, device="cuda")
    called = compiled(lambda x: x * 2 + 1, fullgraph=True)
    called(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = called(x)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(result, x * 2 + 1)


@pytest.mark.gpu
def test_inside_a_cuda_graph() -> None:
    x = torch.randn(256, 64, device="cuda")
    called = compiled(lambda x: torch.softmax(x, -1) + x, fullgraph=True)
    called(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = called(x)
    x.normal_()
    graph.replay()
    assert torch.allclose(result, torch.softmax(x, -1) + x, atol=1e-6)


@pytest.mark.gpu
def test_host_and_device_in_one_graph() -> None:
    x, y = torch.randn(5, device="cuda"), torch.randn(5)
    a, b = compiled(lambda x, y: (x * 2 + y.to("cuda"), y + 1))(x, y)
    assert torch.allclose(a.cpu(), x.cpu() * 2 + y)
    assert torch.equal(b, y + 1)


OUT_OF_BOUNDS: dict[str, Function] = {
    "index": lambda x, i: x[i] * 2,
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "masked_scatter": lambda x, i: x.masked_scatter(i[:, None] >= 0, x[0, :2]),
}


@own_only("other backends read on")
@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_an_index_out_of_bounds_is_an_error_that_names_its_line(name: str) -> None:
    call = compiled(OUT_OF_BOUNDS[name], fullgraph=True)
    x = torch.randn(2, 3)
    if name != "masked_scatter":  # there, every index is one too many
        call(x, torch.tensor([1, 0]))
    with pytest.raises(IndexError, match=rf"aten.{name}.*test_behaviour.py:\d+\).*: index out of bounds of"):
        call(x, torch.tensor([0, 2]))


@own_only("other backends read on")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i] * 0,
        lambda x, i: x[i] & 0,
        lambda x, i: x[i] | -1,
        lambda x, i: x[i] % 1,
        lambda x, i: x[i] ** 0,
    ],
)
def test_an_index_out_of_bounds_is_an_error_whatever_is_made_of_the_element(function: Function) -> None:
    call, x = compiled(function, fullgraph=True), torch.arange(5)
    assert torch.equal(call(x, torch.tensor([4])), function(x, torch.tensor([4])))
    with pytest.raises(IndexError, match="index out of bounds of 5 elements"):
        call(x, torch.tensor([5]))


ON_A_GPU: dict[str, tuple[str, str, str]] = {
    "an index": ("lambda x, i: x[i] * 2", "torch.tensor([0, 4])", "index out of bounds of 4 elements"),
    "a negative index": (
        "lambda x, i: x.index_add(0, i, torch.ones(2, 3, device=x.device))",
        "torch.tensor([0, -1])",
        "index out of bounds of 4 elements",
    ),
    "an index that no load needs": (
        "lambda x, i: torch.arange(4, device=x.device)[i]",
        "torch.tensor([4])",
        "index out of bounds",
    ),
    "a probability": (
        "lambda x, p: torch.bernoulli(p)",
        "torch.tensor([0.5, 1.5])",
        "probabilities have to be in [0, 1]",
    ),
}
REFUSED_ON_A_GPU = """
import torch, ferrite_torch
call = torch.compile({function}, backend="ferrite", options={options})
x = torch.zeros(4, 3, device="cuda")
call(x, {given}.cuda())
torch.cuda.synchronize()
"""


def stderr_on_a_gpu(name: str, options: dict[str, bool]) -> tuple[int, str]:
    """Makes a call in another process: an assertion of a kernel ends the process's use of the GPU."""
    function, given, _ = ON_A_GPU[name]
    program = REFUSED_ON_A_GPU.format(function=function, given=given, options=options)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where nothing is installed, too
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


@own_only("an option of ferrite")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_what_eager_refuses_stops_a_kernel(name: str) -> None:
    status, stderr = stderr_on_a_gpu(name, {})
    assert status != 0
    assert "test_behaviour" in stderr or "aten." in stderr
    assert ON_A_GPU[name][2] in stderr


@own_only("an option of ferrite")
@pytest.mark.gpu
def test_on_a_gpu_checks_can_be_left_out() -> None:
    status, stderr = stderr_on_a_gpu("a probability", {"check_indices": False})
    assert status == 0, stderr
