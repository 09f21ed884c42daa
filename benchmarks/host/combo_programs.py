"""Programs of many small independent kernels: optimizers' steps, clipping, averages of weights, mixed reductions.

Models are lists of the shapes of their parameters: a step sees nothing else of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]


def transformer(
    layers: int,
    width: int,
    vocabulary: int,
    *,
    inner: int = 0,
    places: int = 0,
    biases: bool = True,
    grouped: int = 0,
    gated: bool = False,
) -> list[Shape]:
    """Returns the shapes of the parameters of a transformer; ``grouped`` is the width of keys and values."""
    inner, keys = inner or 4 * width, grouped or width
    shapes: list[Shape] = [(vocabulary, width)] + ([(places, width)] if places else [])
    for _ in range(layers):
        products = [(width, width), (keys, width), (keys, width), (width, width), (inner, width), (width, inner)]
        products += [(inner, width)] if gated else []
        shapes += products + ([(rows,) for rows, _ in products] if biases else [])
        shapes += [(width,)] * (4 if biases else 2)
    return [*shapes, *[(width,)] * (2 if biases else 1)]


def residual_network(blocks: Sequence[int], *, bottleneck: bool) -> list[Shape]:
    """Returns the shapes of the parameters of a ResNet of basic blocks or bottlenecks."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        outer = inner * (4 if bottleneck else 1)
        for block in range(count):
            kernels = [(inner, width, 1), (inner, inner, 3), (outer, inner, 1)]
            kernels = kernels if bottleneck else [(inner, width, 3), (inner, inner, 3)]
            kernels += [(outer, width, 1)] if block == 0 and (width != outer or stage) else []
            for rows, columns, size in kernels:
                shapes += [(rows, columns, size, size), (rows,), (rows,)]
            width = outer
    return [*shapes, (1000, width), (1000,)]


MODELS: dict[str, list[Shape]] = {
    "gpt2": transformer(12, 768, 50257, places=1024),
    "distilgpt2": transformer(6, 768, 50257, places=1024),
    "bert-base": transformer(12, 768, 30522, places=512),
    "distilbert": transformer(6, 768, 30522, places=512),
    "bert-tiny": transformer(2, 128, 30522, places=512),
    "deit-tiny": transformer(12, 192, 1000, places=197),
    "deit-small": transformer(12, 384, 1000, places=197),
    "whisper-tiny": transformer(8, 384, 51865, places=448),
    "t5-small": transformer(12, 512, 32128, inner=2048, biases=False),
    "smollm-135m": transformer(30, 576, 49152, inner=1536, biases=False, grouped=192, gated=True),
    "resnet18": residual_network((2, 2, 2, 2), bottleneck=False),
    "resnet50": residual_network((3, 4, 6, 3), bottleneck=True),
}
"""By name, shapes as in the published models, but for parameters that layers share and the order of a layer's own."""


@dataclass(frozen=True)
class Program:
    """A function of tensors, which may change them in place.

    Attributes:
        name: for the table.
        function: takes the tensors.
        shapes: of the tensors.
        levels: launches that its dependences ask for at least, two-stage reductions counted as one.
        half: whether the tensors are of bfloat16.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    levels: int = 1
    half: bool = False

    def tensors(self, device: str) -> list[Tensor]:
        """Returns tensors to call it with, the same each time."""
        generator = torch.Generator(device).manual_seed(0)
        dtype = torch.bfloat16 if self.half else torch.float32
        return [torch.rand(shape, device=device, generator=generator).add_(0.1).to(dtype) for shape in self.shapes]


def _lists(tensors: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    length = len(tensors) // count
    return [list(tensors[k * length : (k + 1) * length]) for k in range(count)]


def adamw(*tensors: Tensor) -> None:
    """Changes parameters and moments as `torch.optim.AdamW` with ``foreach`` does, at a late step."""
    parameters, gradients, means, squares = _lists(tensors, 4)
    torch._foreach_mul_(parameters, 1 - 1e-3 * 0.01)
    torch._foreach_lerp_(means, gradients, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, 0.99)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(parameters, means, roots, -1e-3)


def adam_one_by_one(*tensors: Tensor) -> None:
    """Does the same tensor by tensor, as with ``foreach=False``."""
    for parameter, gradient, mean, square in zip(*_lists(tensors, 4), strict=True):
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(mean, (square.sqrt() / 0.99).add_(1e-8), value=-1e-3)


def sgd(*tensors: Tensor) -> None:
    """Changes parameters and momentum as `torch.optim.SGD` with ``foreach`` does."""
    parameters, gradients, momentum = _lists(tensors, 3)
    torch._foreach_mul_(momentum, 0.9)
    torch._foreach_add_(momentum, gradients)
    torch._foreach_add_(parameters, momentum, alpha=-1e-3)


def clip(*gradients: Tensor) -> Tensor:
    """Scales gradients as `torch.nn.utils.clip_grad_norm_` does; returns their norm."""
    norms = torch._foreach_norm(list(gradients))
    total = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(list(gradients), torch.clamp(1.0 / (total + 1e-6), max=1.0))
    return total


def average(*tensors: Tensor) -> None:
    """Moves averages of weights toward the weights (EMA)."""
    averages, weights = _lists(tensors, 2)
    torch._foreach_lerp_(averages, weights, 0.001)


def row_sums(*tensors: Tensor) -> list[Tensor]:
    """Returns the sum of each row."""
    return [tensor.sum(-1) for tensor in tensors]


def norms(*tensors: Tensor) -> list[Tensor]:
    """Returns each tensor normalised along its rows."""
    return [torch.nn.functional.layer_norm(tensor, tensor.shape[-1:]) for tensor in tensors]


def loops(*tensors: Tensor) -> list[Tensor]:
    """Returns an activation of each tensor."""
    return [torch.nn.functional.gelu(tensor) for tensor in tensors]


def mixed(*tensors: Tensor) -> list[Tensor]:
    """Returns something else of each tensor in turn: rows, columns, softmax, an activation, running sums."""
    kinds: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.square().mean(-1),
        lambda x: x.amax(0),
        lambda x: torch.softmax(x, -1),
        torch.nn.functional.silu,
        lambda x: x.cumsum(-1),
    )
    return [kinds[k % len(kinds)](tensor) for k, tensor in enumerate(tensors)]


def heads(*tensors: Tensor) -> list[Tensor]:
    """Returns the losses of several classification heads."""
    return [-torch.log_softmax(tensor, -1)[:, 0].mean() for tensor in tensors]


def programs() -> Iterator[Program]:
    """Yields all programs."""
    for name, shapes in MODELS.items():
        yield Program(f"adamw {name}", adamw, tuple(shapes * 4))
    for name in ("deit-tiny", "deit-small", "resnet18", "resnet50"):
        yield Program(f"sgd {name}", sgd, tuple(MODELS[name] * 3))
    for name in ("bert-tiny", "resnet18"):
        yield Program(f"adam, one by one, {name}", adam_one_by_one, tuple(MODELS[name] * 4))
    for name in ("bert-tiny", "deit-tiny", "deit-small", "distilbert", "t5-small", "resnet18", "resnet50"):
        yield Program(f"clip {name}", clip, tuple(MODELS[name]), levels=3)
    for name in ("bert-tiny", "deit-tiny", "deit-small", "resnet18", "resnet50", "whisper-tiny"):
        yield Program(f"ema {name}", average, tuple(MODELS[name] * 2))
    for count in (2, 4, 8, 16, 32, 64):
        yield Program(f"{count} sums of rows", row_sums, tuple((16 + 8 * (k % 7), 100 + 77 * k) for k in range(count)))
    for count in (3, 12, 48):
        yield Program(f"{count} norms", norms, tuple((64 + 32 * (k % 5), 192 + 64 * (k % 9)) for k in range(count)))
    for count in (4, 16, 64):
        yield Program(f"{count} loops", loops, tuple((1000 + 3777 * k,) for k in range(count)))
    for count in (5, 20, 60):
        yield Program(f"{count} mixed", mixed, tuple((24 + 8 * (k % 11), 64 + 48 * (k % 13)) for k in range(count)))
    yield Program("10 mixed, bf16", mixed, tuple((128, 256 + 128 * k) for k in range(10)), half=True)
    yield Program("3 norms, large", norms, ((4096, 768), (2048, 1024), (8192, 384)))
    yield Program("2 unlike sums", row_sums, ((2048, 4096), (65536, 64)))
    yield Program("large beside small", loops, ((1 << 24,), (5000,), (300,)))
    yield Program("8 heads", heads, tuple((256, 10 + 37 * k) for k in range(8)), levels=2)
    yield Program("24 heads", heads, tuple((64, 100 + 50 * k) for k in range(24)), levels=2)
