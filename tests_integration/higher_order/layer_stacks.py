"""Models of layers that repeat, with every way to be different, and how they are compiled and compared with eager's."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ferrite_torch

WIDTH, DEPTH = 8, 5


class Layer(nn.Module):
    """A block of ten ops, with every way to be different."""

    def __init__(self, number: int = 0, width: int = WIDTH, slope: float = 0.1, drop: float = 0.0) -> None:
        super().__init__()
        self.number, self.slope, self.drop = number, slope, drop
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.wide(self.norm(x)), self.slope)
        y = self.narrow(y.sin() * y.sigmoid() + y.tanh())
        return x + F.dropout(y, self.drop, self.training)


class Numbered(Layer):
    """A block that computes with the number of its layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 0.1 * self.number)


class Counting(Layer):
    """A block that updates a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Normed(Layer):
    """A block whose norm keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.batch(x))


class Averaging(Layer):
    """A block that keeps averages of what it sees, and reads them before and after they change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        before = self.seen.clone()
        self.seen.lerp_(x.detach().mean(0), 0.1)
        return super().forward(x * before.cos()) + self.seen


class Caching(Layer):
    """A block that writes a row of a cache and reads all of it."""

    def __init__(self, rows: int = 6) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(rows, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.cache[2] = x[0].detach().cos()
        return super().forward(x + self.cache[:6])


class Masking(Layer):
    """A block that makes a mask of positions itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.where(torch.arange(WIDTH) > 2, x, torch.full((), 0.5)))


class Halved(Layer):
    """A block that writes to one half of a tensor and reads the other."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.ones(2, WIDTH)
        self.left, self.right = both[0], both[1]

    def forward(self, x: Tensor) -> Tensor:
        self.left.add_(x.detach()[0])
        return super().forward(x + self.left * self.right)


class Viewing(Layer):
    """A block that returns a view of what it is given, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x[:, :2]


class Frozen(Layer):
    """A block whose gate has no derivative."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = x.sigmoid() * 2
        return super().forward(x) * gate


class Residual(nn.Module):
    """Two residual branches, as layers of transformers have them; dropout and a factor for each column on request."""

    def __init__(self, drop: float = 0.0, *, scaled: bool = False) -> None:
        super().__init__()
        self.drop = drop
        scales = [nn.Parameter(torch.linspace(0.5, 1.5, WIDTH)) for _ in range(2)] if scaled else [None, None]
        self.scales = nn.ParameterList(scales)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        mixing = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.branches = nn.ModuleList(
            (mixing, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)))
        )

    def forward(self, x: Tensor) -> Tensor:
        for norm, branch, scale in zip(self.norms, self.branches, self.scales, strict=True):
            y = branch(norm(x))
            y = y if scale is None else scale * y
            x = x + (F.dropout(y, self.drop, self.training) if self.drop else y)
        return x


class Stack(nn.Module):
    """Layers one after the other, between a first and a last one."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.call(layer, x)
        return x.sin()

    def call(self, layer: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = layer(x)
        return found


class Calling(Stack):
    """Calls its layers in a way of its own."""

    def __init__(self, layers: list[nn.Module], how: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__(layers)
        self.call = how  # type: ignore[method-assign]


def layers(make: Callable[[int], nn.Module] = lambda number: Layer(), count: int = DEPTH) -> list[nn.Module]:
    return [make(number) for number in range(count)]


def shared() -> Stack:
    """Returns a model that calls one layer five times."""
    return Stack([Layer()] * DEPTH)


def tied() -> Stack:
    """Returns a model whose layers share a weight."""
    model = Stack(layers())
    for layer in model.layers:
        layer.wide.weight = model.layers[0].wide.weight  # type: ignore[union-attr]
    return model


def hooked() -> Stack:
    """Returns a model with a hook on one layer."""
    model = Stack(layers())
    model.layers[2].register_forward_hook(lambda module, given, result: result * 2)
    return model


def evaluated() -> Stack:
    """Returns a model with dropout in all layers but one."""
    model = Stack(layers(lambda number: Layer(drop=0.5)))
    model.layers[2].eval()
    return model


def counting_together() -> Stack:
    """Returns a model whose layers count with one buffer."""
    model = Stack(layers(lambda number: Counting()))
    for layer in model.layers:
        layer.calls = model.layers[0].calls
    return model


def told(layer: nn.Module, x: Tensor) -> Tensor:
    """Calls a layer between two reads of what it writes to."""
    found: Tensor = layer(x * layer.calls.cos())  # type: ignore[operator]
    return found * layer.calls.sin()  # type: ignore[operator]


def frozen() -> Stack:
    """Returns a model with a layer that is not trained."""
    model = Stack(layers())
    model.layers[4].requires_grad_(False)
    return model


def autocast(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = layer(x)
    return found.float()


def both(layer: nn.Module, x: Tensor) -> Tensor:
    found, seen = layer(x)
    mixed: Tensor = found + seen.mean()
    return mixed


MODELS: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "equal": (lambda: Stack(layers()), [5]),
    "of one layer": (shared, [5]),
    "with tied weights": (tied, [5]),
    "with an odd slope": (lambda: Stack(layers(lambda number: Layer(slope=0.2 if number == 1 else 0.1))), [4]),
    "of two kinds": (lambda: Stack(layers(lambda number: Layer(slope=0.1 * (1 + number % 2)), 6)), [3, 3]),
    "with numbers that are not read": (lambda: Stack(layers(Layer)), [5]),
    "with numbers": (lambda: Stack(layers(Numbered)), []),
    "with a hook": (hooked, [4]),
    "with a layer that is not trained": (frozen, [4]),
    "with a counter": (lambda: Stack(layers(lambda number: Counting())), [5]),
    "with one counter": (counting_together, [5]),
    "with a counter that is read around them": (lambda: Calling(layers(lambda number: Counting()), told), [5]),
    "with statistics": (lambda: Stack(layers(lambda number: Normed())), [4]),
    "with averages": (lambda: Stack(layers(lambda number: Averaging())), [5]),
    "with a cache": (lambda: Stack(layers(lambda number: Caching())), [4]),
    "with a mask of positions": (lambda: Stack(layers(lambda number: Masking())), [4]),
    "with halves of a tensor": (lambda: Stack(layers(lambda number: Halved())), []),
    "with views": (lambda: Calling(layers(lambda number: Viewing()), both), []),
    "with a gate": (lambda: Stack(layers(lambda number: Frozen())), []),
    "of two": (lambda: Stack(layers(count=2)), []),
    "in sequence": (lambda: nn.Sequential(*layers()), [5]),
    "called by keyword": (lambda: Calling(layers(), lambda layer, x: layer(x=x)), [5]),
    "with ops between": (lambda: Calling(layers(), lambda layer, x: layer(x.cos()).exp().log()), [5]),
    "checkpointed": (lambda: Calling(layers(), lambda layer, x: checkpoint(layer, x, use_reentrant=False)), []),
}
"""By name, a model and how often each of its regions is called, the most first."""


WRITING = (
    "with a counter",
    "with one counter",
    "with a counter that is read around them",
    "with statistics",
    "with averages",
    "with a cache",
)


def regions() -> list[list[int]]:
    """Returns of each program that was compiled how often it calls each of its graphs, the most first."""
    programs = ferrite_torch.compiled_programs()
    calls = [Counter(step["graph"] for step in program["steps"] if step["do"] == "call") for program in programs]
    return [sorted(count.values(), reverse=True) for count in calls]


def twice(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """Returns a model with its copy."""
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    named = {"fallback": False, "use_cache": False, "repeat_blocks": True, **options}
    return torch.compile(model, backend="ferrite", fullgraph=True, options=named)


def drawn(rows: int = 6) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows)).requires_grad_()


def check_training(run: Callable[..., Any], model: nn.Module, twin: nn.Module, rows: int = 6) -> None:
    """Fails unless results, gradients and buffers are those of eager mode."""
    x, again = drawn(rows), drawn(rows)
    found, expected = run(x), twin(again)
    tolerance = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found, expected, **tolerance)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-3, atol=1e-3)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3, msg=name)
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def check_slope(run: Callable[..., Any], x: Tensor) -> None:
    """Compares the gradient of the sum of what is computed with its slope: both draw the same masks."""
    torch.manual_seed(5)
    run(x).sum().backward()
    assert x.grad is not None
    step = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    def at(shift: float) -> Tensor:
        torch.manual_seed(5)
        found: Tensor = run((x.detach() + shift * step).requires_grad_()).double().sum()
        return found.detach()

    slope = (at(1e-2) - at(-1e-2)) / 2e-2
    torch.testing.assert_close(slope, (x.grad * step).double().sum(), rtol=1e-2, atol=1e-3)
