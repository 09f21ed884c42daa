"""More memory-bound functions for `benchmarks/kernels/run.py`: losses, norms with their backward passes, odd sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.cases import Case, gelu_bias, halved, layer_norm, softmax_rows, storage_bytes

Make = Callable[[torch.dtype, int], tuple[Any, ...]]
VOCABULARY = 8192
"""Rows of the table of the embedding cases."""


def log_softmax_rows(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def over_the_largest(x: Tensor) -> Tensor:
    return x / x.abs().amax(-1, keepdim=True)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(widened(x), -1)


def widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def mean_loss(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(widened(x), labels)


def softmax_columns(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def softmax_between(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def rms_norm_between(x: Tensor) -> Tensor:
    wide = widened(x)
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6)).to(x.dtype)


def best_of_rows(x: Tensor) -> Tensor:
    return x.argmax(-1)


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = widened(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def swiglu_packed(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = widened(x)
    scale = wide.abs().amax(-1, keepdim=True) / 448
    return (wide / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def rms_norm_quantised_blocks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a norm in eight bits, with a scale for each 128 columns of a row."""
    blocks = widened(rms_norm(x, weight)).reshape(x.shape[0], -1, 128)
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    return (blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, variance, weight, bias, training=True))


def dropout_residual(x: Tensor, residual: Tensor) -> Tensor:
    return F.dropout(x, 0.1) + residual


def dropout_error(outputs: Tensor, x: Tensor, residual: Tensor) -> float:
    """Returns how far each result is from what it is with or without its element, and how far off the share is."""
    kept, dropped = (x.double() / 0.9 + residual.double()), residual.double()
    near = torch.minimum((outputs.double() - kept).abs(), (outputs.double() - dropped).abs())
    off = near.square().sum() / outputs.double().square().sum()
    share = ((outputs.double() - dropped).abs() < (outputs.double() - kept).abs()).double().mean()
    return float(off.sqrt()) + max(0.0, abs(float(share) - 0.1) - 0.01)


def adam_step(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns parameters and moments after a step of Adam, written with operations over lists."""
    quarter = len(tensors) // 4
    parameters, gradients, means, squares = (list(tensors[i * quarter : (i + 1) * quarter]) for i in range(4))
    means = list(torch._foreach_lerp(means, gradients, 0.1))
    squares = list(torch._foreach_mul(squares, 0.999))
    squares = list(torch._foreach_addcmul(squares, gradients, gradients, 0.001))
    steps = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    moved = torch._foreach_addcdiv(parameters, means, list(steps), -1e-3)
    return (*moved, *means, *squares)


def written_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def gathered_rows(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


def added_rows(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.index_add(0, index, x)


def dequantised_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    wide = widened(x)
    return (weight.to(wide.dtype) * scale.to(wide.dtype)[:, None]) @ wide


def dequantised_linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype) * scale.to(x.dtype)[:, None])


def residual_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return residual + F.linear(x, weight)


def gated_linear(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def matrix(count: int, width: int) -> Make:
    """Returns a maker of one matrix; float32 gets half as many rows."""
    return lambda dtype, scale: (torch.randn(max(1, halved(count, dtype) // scale), width, dtype=dtype),)


def vector(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    return (torch.randn((1 << 26) // scale, dtype=dtype),)


def square_matrix(count: int, width: int) -> Make:
    """Returns a maker of a matrix that is as wide for every type."""
    return lambda dtype, scale: (torch.randn(max(1, count // scale), width, dtype=dtype),)


def between(count: int, points: int, *, trains: bool = False) -> Make:
    """Returns a maker of matrices of so many rows of 1024, and of a gradient of the result if they are trained."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        x = torch.randn(max(1, halved(count, dtype) // scale), points, 1024, dtype=dtype)
        return (x.requires_grad_(), torch.randn_like(x)) if trains else (x,)

    return make


def labelled(count: int, width: int, *, trains: bool = False) -> Make:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        (x,) = matrix(count, width)(dtype, scale)
        labels = torch.randint(width, (x.shape[0],))
        return (x.requires_grad_(), labels, torch.ones((), dtype=torch.float32)) if trains else (x, labels)

    return make


def with_weights(count: int, width: int, weights: int) -> Make:
    """Returns a maker of a matrix, vectors of its width, and a gradient of the result, all but that to be trained."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        (x,) = matrix(count, width)(dtype, scale)
        vectors = (torch.randn(width, dtype=dtype).requires_grad_() for _ in range(weights))
        return x.requires_grad_(), *vectors, torch.randn_like(x)

    return make


def row_and_weight(width: int) -> Make:
    """Returns a maker of a matrix and a vector of its width, neither of which is trained."""
    return lambda dtype, scale: (*matrix(16384, width)(dtype, scale), torch.randn(width, dtype=dtype))


def images(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    shape = (max(1, 16 // scale), 320, 64, 64)
    x = torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last)
    return x, torch.randn(320, dtype=dtype), torch.randn(320, dtype=dtype)


def batch(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    x = torch.randn(max(1, halved(128, dtype) // scale), 256, 56, 56, dtype=dtype)
    vectors = (torch.rand(256, dtype=dtype) + 0.5 for _ in range(4))
    return x.to(memory_format=torch.channels_last), *vectors


def table(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    return torch.randn(16384, 1024, dtype=dtype), torch.randint(16384, (131072 // scale,))


def sparse_sum(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    count = 262144 // scale
    return torch.randn(16384, 128, dtype=dtype), torch.randint(16384, (count,)), torch.randn(count, 128, dtype=dtype)


def embedding_gradient(gradient: Tensor, index: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(gradient, index, VOCABULARY, -1, False)


def looked_up(places: Callable[[int], Tensor]) -> Make:
    """Returns a maker of gradients of rows of a table, and of the row of each."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        count = halved(131072, dtype) // scale
        return torch.randn(count, 512, dtype=dtype), places(count)

    return make


def uniform_places(count: int) -> Tensor:
    return torch.randint(VOCABULARY, (count,))


def zipf_places(count: int) -> Tensor:
    """Returns rows of which the n-th most frequent is 1 / n times as frequent as the most frequent."""
    weights = 1.0 / torch.arange(1, VOCABULARY + 1, dtype=torch.float32)
    return torch.multinomial(weights, count, replacement=True)


def one_place(count: int) -> Tensor:
    return torch.full((count,), VOCABULARY // 3, dtype=torch.int64)


def quantised_weight(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    shape = (16384 // scale, 4096)
    return torch.randn(4096, dtype=dtype), torch.randint(-127, 127, shape, dtype=torch.int8), torch.rand(shape[0])


def few_rows(rows: int, width: int, count: int, matrices: int = 1) -> Make:
    """Returns a maker of a few rows, and of the weights of linear layers from ``width`` to ``count``."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        weights = (torch.randn(count // scale, width, dtype=dtype) / math.sqrt(width) for _ in range(matrices))
        return torch.randn(rows, width, dtype=dtype), *weights

    return make


def rows_and_residual(rows: int, width: int, count: int) -> Make:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return *few_rows(rows, width, count)(dtype, scale), torch.randn(rows, count // scale, dtype=dtype)

    return make


def rows_and_quantised(rows: int) -> Make:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return torch.randn(rows, 4096, dtype=dtype), *quantised_weight(dtype, scale)[1:]

    return make


def lists_of_parameters(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    """Returns parameters, gradients and moments of sixteen layers."""
    shapes = [(max(1, halved(2048, dtype) // scale), 1024)] * 14 + [(1024,)] * 2
    return tuple(torch.rand(shape, dtype=dtype) for _ in range(4) for shape in shapes)


def pair(count: int, width: int) -> Make:
    return lambda dtype, scale: (*matrix(count, width)(dtype, scale), *matrix(count, width)(dtype, scale))


def attention_heads(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    shape = (8, 16, max(64, halved(2048, dtype) // scale), 64)
    return tuple(torch.randn(shape, dtype=dtype) for _ in range(3))


def attention_flops(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Returns the operations of both products of attention."""
    return 2 * q.shape[:-1].numel() * k.shape[-2] * (k.shape[-1] + v.shape[-1])


def read_again(x: Tensor, *_: Any) -> int:
    """Returns the bytes of the input that a backward pass reads a second time."""
    return storage_bytes(x)


def gathered_bytes(rows: Tensor, index: Tensor) -> int:
    """Returns what gathering reads beside the table: each place reads a row."""
    return min(0, index.shape[0] * rows.shape[1] * rows.element_size() - storage_bytes(rows))


def side(name: str, function: Callable[..., Any], make: Make, **more: Any) -> Case:
    """Returns a case without a bar."""
    return Case(name, function, make, bar=False, **more)


def trained(name: str, function: Callable[..., Any], make: Make) -> Case:
    """Returns a case that runs forward and backward: the input is read by both."""
    return Case(name, function, make, bar=False, extra_bytes=read_again, trains=True)


PRODUCTS = "matrix products, whose time at the rate of a large one is the bound here"

LIMIT_CASES: tuple[Case, ...] = (
    side("logsumexp 50304", log_sum_exp, matrix(4096, 50304)),
    side("loss 128k", mean_loss, labelled(8192, 131072)),
    side("loss 50257", mean_loss, labelled(8192, 50257)),
    trained("loss 128k f+b", mean_loss, labelled(8192, 131072, trains=True)),
    trained("loss 32000 f+b", mean_loss, labelled(8192, 32000, trains=True)),
    side("softmax 128k", softmax_rows, matrix(2048, 131072)),
    side("softmax 50304", softmax_rows, matrix(4096, 50304)),
    side("softmax 80000", softmax_rows, matrix(2048, 80000)),
    side("log softmax 151936", log_softmax_rows, matrix(1024, 151936)),
    side("by largest 256000", over_the_largest, matrix(1024, 256000)),
    side("softmax 3000", softmax_rows, matrix(32768, 3000)),
    side("softmax dim 0", softmax_columns, square_matrix(4096, 16384)),
    side("softmax middle 8", softmax_between, between(8192, 8)),
    side("softmax middle 200", softmax_between, between(320, 200)),
    side("argmax 128k", best_of_rows, matrix(8192, 131072)),
    side("cumsum 16k rows", running_sum, matrix(16384, 8192)),
    side("dropout+residual", dropout_residual, pair(16384, 4096), error=dropout_error),
    side("adam of lists", adam_step, lists_of_parameters),
    side("written attention", written_attention, attention_heads, limit=PRODUCTS, flops=attention_flops),
    side("cumsum flat", running_sum, vector),
    side("rms norm 5000", rms_norm, row_and_weight(5000)),
    side("swiglu packed", swiglu_packed, matrix(8192, 28672)),
    side("fp8 rows", quantised_rows, matrix(16384, 4096)),
    side("rms norm fp8 blocks", rms_norm_quantised_blocks, row_and_weight(4096)),
    side("group norm silu", group_norm_silu, images),
    # As for the barred batch norm: the statistics need all of x, which no cache holds, before the first result.
    side("batch norm relu", batch_norm_relu, batch, extra_bytes=lambda x, *_: storage_bytes(x)),
    side("gather rows", gathered_rows, table, extra_bytes=gathered_bytes),
    side("index add", added_rows, sparse_sum),
    side("embedding grad", embedding_gradient, looked_up(uniform_places)),
    side("embedding grad zipf", embedding_gradient, looked_up(zipf_places)),
    side("embedding grad one", embedding_gradient, looked_up(one_place)),
    side("int8 product", dequantised_product, quantised_weight),
    side("int8 product m=4", dequantised_linear, rows_and_quantised(4)),
    *(side(f"linear m={rows}", F.linear, few_rows(rows, 4096, 14336)) for rows in (1, 2, 4, 8, 16)),
    *(side(f"linear+residual m={rows}", residual_linear, rows_and_residual(rows, 14336, 4096)) for rows in (1, 4)),
    *(side(f"gated linear m={rows}", gated_linear, few_rows(rows, 4096, 14336, 2)) for rows in (1, 4)),
    trained("layer norm f+b", layer_norm, with_weights(16384, 4096, 2)),
    trained("layer norm 8192 f+b", layer_norm, with_weights(8192, 8192, 2)),
    trained("layer norm 768 f+b", layer_norm, with_weights(65536, 768, 2)),
    trained("rms norm f+b", rms_norm, with_weights(16384, 4096, 1)),
    trained("rms norm middle 24 f+b", rms_norm_between, between(2730, 24, trains=True)),
    trained("gelu+bias f+b", gelu_bias, with_weights(16384, 4096, 1)),
)
