"""Convolutions are put channels-last where they gain, with what is between them; users see the layouts of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ferrite_torch
from ferrite_torch.devices.facts import convolution_precision
from ferrite_torch.rewrites.layouts import convolution_layouts
from ferrite_torch.rewrites.layouts.convolution_layouts import Effect


def gains(node: torch.fx.Node) -> Effect:
    """Returns what a GPU's library would gain: the test has CPUs, whose library keeps the layouts as well."""
    weight = node.args[1 if "backward" not in str(node.target) else 2].meta["val"]
    return Effect.GAIN if min(weight.shape[:2]) >= 8 else Effect.NONE


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Makes convolutions gain; holds the number of copies of each graph."""
    counts: list[int] = []
    assign = convolution_layouts.assign_layouts

    def counting(graph: torch.fx.Graph) -> int:
        counts.append(assign(graph, gains))
        graph.lint()
        return counts[-1]

    monkeypatch.setattr("ferrite_torch.capture.joint_graphs.assign_layouts", counting)
    monkeypatch.setattr("ferrite_torch.pipeline.assign_layouts", counting)
    torch._dynamo.reset()
    yield counts
    torch._dynamo.reset()


class Block(nn.Module):
    """A residual block with a stride."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, padding=1, stride=2, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.shortcut = nn.Conv2d(into, out, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.shortcut(x))


class Net(nn.Module):
    """Stem, two blocks, a group norm, and results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 16))
        self.norm = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16 * 4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.blocks(F.max_pool2d(F.gelu(self.stem(x)), 2))
        z = self.norm(y)
        return self.head(z.flatten(1)), F.interpolate(z, scale_factor=2.0), y, y.mean((2, 3)), y.transpose(1, 2)


def compared(net: nn.Module, x: Tensor, *, trains: bool, dynamic: bool = False) -> None:
    other = copy.deepcopy(net)
    mine = torch.compile(other, backend="ferrite", dynamic=dynamic, options={"fallback": False, "use_cache": False})
    found = []
    for function, module in ((net, net), (mine, other)):
        given = x.detach().clone().requires_grad_(trains)
        with torch.set_grad_enabled(trains):
            results = function(given)
            if trains:
                sum(result.square().sum() for result in results).backward()
        grads = [given.grad, *(parameter.grad for parameter in module.parameters())] if trains else []
        found.append([*results, *grads, *module.buffers()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, atol=2e-3, rtol=2e-4)  # sums of up to 3456 products, in another order
        assert two.stride() == one.stride()


def test_inference(counted: list[int]) -> None:
    compared(Net().eval(), torch.randn(2, 3, 16, 16), trains=False)
    assert counted[0] > 3


def test_training(counted: list[int]) -> None:
    compared(Net().train(), torch.randn(2, 3, 16, 16), trains=True)
    assert counted[0] > 3


def test_any_batch(counted: list[int]) -> None:
    compared(Net().eval(), torch.randn(3, 3, 16, 16), trains=False, dynamic=True)
    assert counted[0] > 3


@pytest.mark.parametrize("dims", [2, 3])
def test_transposed_and_grouped(counted: list[int], dims: int) -> None:
    convolve = getattr(F, f"conv{dims}d")
    transpose = getattr(F, f"conv_transpose{dims}d")

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([torch.randn(16, 8, *[3] * dims), torch.randn(16, 2, *[3] * dims)])

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = torch.tanh(convolve(x, self.weights[0]))
            z = convolve(y, self.weights[1], groups=8)
            return transpose(y, self.weights[0], stride=2).abs(), z, torch.cat([z, z + 1], 1)

    compared(Program(), torch.randn(2, 8, *[6] * dims), trains=True)
    assert counted[0] > 1


def test_results_that_share_memory_and_reads_by_strides(counted: list[int]) -> None:
    weight = torch.randn(8, 8, 3, 3)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, weight).exp()
        return y.as_strided((4,), (2,), 1).clone(), y.view(-1)[3:9].sum(), y[:, 1:].contiguous()

    x = torch.randn(2, 8, 6, 6)
    mine = torch.compile(program, backend="ferrite", options={"fallback": False, "use_cache": False})
    with torch.no_grad():
        for one, two in zip(mine(x), program(x), strict=True):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
            assert one.stride() == two.stride()
    assert counted


def written_back(x: Tensor, weight: Tensor) -> Tensor:
    x.copy_(F.conv2d(x, weight, padding=1))
    return x.relu()


def twice(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(x, weight, padding=1).sin(), weight, padding=1)


@pytest.mark.parametrize("program", [written_back, twice])
def test_written_inputs_and_results_lie_as_before(
    counted: list[int], program: Callable[[Tensor, Tensor], Tensor]
) -> None:
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 8, 3, 3)
    given = x.clone()
    mine = torch.compile(program, backend="ferrite", options={"fallback": False, "use_cache": False})
    with torch.no_grad():
        found, expected = mine(given, weight), program(x, weight)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(given, x, atol=1e-4, rtol=1e-4)
    assert (found.stride(), given.stride()) == (expected.stride(), x.stride())


@pytest.mark.usefixtures("counted")
def test_axes_of_one_element_have_the_strides_of_eager() -> None:
    def program(x: Tensor, weight: Tensor, narrow: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, weight)
        return F.conv2d(y.relu(), narrow), y.mean((2, 3), keepdim=True), y[:, :1].contiguous()

    given = torch.randn(2, 8, 6, 6), torch.randn(8, 8, 3, 3), torch.randn(1, 8, 3, 3)
    mine = torch.compile(program, backend="ferrite", options={"fallback": False, "use_cache": False})
    with torch.no_grad():
        for found, expected in zip(mine(*given), program(*given), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
            assert found.stride() == expected.stride()


def test_layouts_are_kept_where_that_is_asked_for(counted: list[int]) -> None:
    options = {"layout": "keep", "use_cache": False}
    torch.compile(twice, backend="ferrite", options=options)(torch.randn(2, 8, 5, 5), torch.randn(8, 8, 3, 3))
    assert not counted
    with pytest.raises(ferrite_torch.OptionError, match="layout"):
        ferrite_torch.parse_options(None, {"layout": "best"})


def test_graphs_compile_where_convolutions_and_recurrent_nets_differ_in_precision(counted: list[int]) -> None:
    """Torch's older flag, one for both, raises then when it is read."""
    before = torch.backends.cudnn.conv.fp32_precision
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 8, 3, 3)
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        assert convolution_precision() == "ieee"
        found = torch.compile(twice, backend="ferrite", options={"fallback": False})(x, weight)
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    torch.testing.assert_close(found, twice(x, weight), atol=1e-4, rtol=1e-4)
    assert counted
