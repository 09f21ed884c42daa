"""The functions that `benchmarks/kernels/run.py` measures, with their inputs and the bytes that they must move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.models.architectures import rotary_table, rotate

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Case:
    """One function. `make(dtype, scale)` returns its tensors, with rows (or batches) divided by `scale`.

    `bar` marks the cases of the published bar; the others are shown beside them. `extra_bytes` are what the function
    moves that is neither an input nor an output, or (negative) inputs of which it needs only a part. A case that
    `trains` runs forward and backward; its last tensor is the gradient of the result. `limit` says what takes longer
    than memory, where something does; of matrix products, `flops` gives the operations, and the bound is their time at
    the rate of the library's products. `error` gives the error of results that no reference run can tell, because they
    are random. What `convolves` may have its factors rounded to TF32 by the library, unless its user forbids that.
    """

    name: str
    function: Callable[..., Any]
    make: Callable[[torch.dtype, int], tuple[Any, ...]]
    bar: bool = True
    extra_bytes: Callable[..., int] | None = None
    trains: bool = False
    limit: str = ""
    flops: Callable[..., int] | None = None
    error: Callable[..., float] | None = None
    convolves: bool = False


def outcome(case: Case, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Returns what a function computes, and for a case that trains the gradients; the last input is the result's."""
    if not case.trains:
        return function(*inputs)
    *given, gradient = inputs
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    result = function(*given)
    return (result.detach(), *torch.autograd.grad(result, leaves, gradient))


def unavoidable_bytes(case: Case, inputs: tuple[Any, ...], outputs: Any) -> int:
    """Returns the bytes of all inputs read once and all outputs written once."""
    tensors = [x for x in (*inputs, *flatten(outputs)) if isinstance(x, Tensor)]
    total = sum(storage_bytes(x) for x in tensors)
    return total + (case.extra_bytes(*inputs) if case.extra_bytes else 0)


def flatten(outputs: Any) -> tuple[Tensor, ...]:
    """Returns the tensors of a function's result."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    return tuple(x for x in outputs if isinstance(x, Tensor))


def storage_bytes(x: Tensor) -> int:
    """Returns the bytes that `x` touches: broadcast dims count once."""
    elements = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        elements *= size if stride else 1
    return elements * x.element_size()


def rows(count: int, width: int) -> Callable[[torch.dtype, int], tuple[Any, ...]]:
    """Returns a maker of one `[count, width]` tensor; float32 gets half as many rows: the same bytes."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return (torch.randn(halved(count, dtype) // scale, width, dtype=dtype),)

    return make


def halved(count: int, dtype: torch.dtype) -> int:
    return count * 2 // torch.empty((), dtype=dtype).element_size()


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    wide = total if total.dtype == torch.float64 else total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(total.dtype) * weight, total


def softmax_rows(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def batch_norm_training(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    # The running statistics move with every repetition; the result does not depend on them.
    return F.batch_norm(x, mean, variance, weight, bias, training=True)


def layer_norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return aten.native_layer_norm_backward(grad, x, x.shape[-1:], mean, rstd, weight, bias, [True, True, True])


def softmax_backward(grad: Tensor, output: Tensor) -> Tensor:
    return aten._softmax_backward_data(grad, output, -1, output.dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels)


def concatenate(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x * 2, y + 1), dim=-1)


def with_bias(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(32768, 4096)(dtype, scale)
    return x, torch.randn(4096, dtype=dtype)


def two_halves(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    return rows(8192, 14336)(dtype, scale) + rows(8192, 14336)(dtype, scale)


def square_pair(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    n, m = 8192 // scale, halved(16384, dtype) // scale
    return torch.randn(n, m, dtype=dtype), torch.randn(m, n, dtype=dtype)


def rotary(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    cos, sin = rotary_table(2048, 128, 10000.0)
    x = torch.randn(max(1, halved(16, dtype) // scale), 32, 2048, 128, dtype=dtype)
    device = x.device
    return x, cos.to(device, dtype), sin.to(device, dtype)


def normalised(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(32768, 4096)(dtype, scale)
    return x, torch.randn(4096, dtype=dtype), torch.randn(4096, dtype=dtype)


def residual(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    make = rows(16384, 4096)
    return *make(dtype, scale), *make(dtype, scale), torch.randn(4096, dtype=dtype)


def middle(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    return (torch.randn(halved(64, dtype) // min(scale, 32), 1024, 2048, dtype=dtype),)


def images(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    x = torch.randn(max(2, halved(128, dtype) // scale), 256, 56, 56, dtype=dtype)
    x = x.to(memory_format=torch.channels_last)
    return x, *(torch.rand(256, dtype=torch.float32) + 0.5 for _ in range(4))


def normalised_backward(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(16384, 4096)(dtype, scale)
    weight, bias = torch.randn(4096, dtype=dtype), torch.randn(4096, dtype=dtype)
    _, mean, rstd = aten.native_layer_norm(x, [4096], weight, bias, 1e-5)
    return torch.randn_like(x), x, mean, rstd, weight, bias


def softmax_pair(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(32768, 4096)(dtype, scale)
    return torch.randn_like(x), torch.softmax(x, -1)


def classified(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(4096, 50304)(dtype, scale)
    return x, torch.randint(50304, x.shape[:1])


def halves(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    make = rows(32768, 2048)
    return make(dtype, scale) + make(dtype, scale)


def sort_rows(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.sort(dim=-1, stable=True))


def largest(count: int) -> Callable[[Tensor], Tensor]:
    """Returns the function that gives the largest so many of each row; their positions are not defined for ties."""
    return lambda x: x.topk(count, -1).values


def segments(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(524288, 256)(dtype, scale)
    return x, torch.randint(4096, x.shape[:1])


def sum_segments(x: Tensor, places: Tensor) -> Tensor:
    return x.new_zeros(4096, x.shape[1]).index_add(0, places, x)


def largest_of_segments(x: Tensor, places: Tensor) -> Tensor:
    start = x.new_full((4096, x.shape[1]), -100.0)
    return start.scatter_reduce(0, places[:, None].expand_as(x), x, "amax")


def boundaries(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    (x,) = rows(32768, 4096)(dtype, scale)
    return torch.linspace(-4, 4, 1000).to(dtype), x


def find_places(edges: Tensor, x: Tensor) -> Tensor:
    return torch.searchsorted(edges, x, out_int32=True)


SORTING = "comparisons: sorting n keys takes about log² n / 2 steps, each of which moves all of them between threads"
SEARCHING = "a search: for each element ten reads of the edges, each of which waits for the one before it"

CASES: tuple[Case, ...] = (
    Case("gelu+bias", gelu_bias, with_bias),
    Case("swiglu", swiglu, two_halves),
    Case("transpose+add", transpose_add, square_pair),
    Case("rope", rotate, rotary),
    Case("layer norm", layer_norm, normalised),
    Case("rms norm+residual", rms_norm_residual, residual),
    Case("softmax 1k", softmax_rows, rows(131072, 1024)),
    Case("softmax 4k", softmax_rows, rows(32768, 4096)),
    Case("row sums", lambda x: x.sum(-1), rows(65536, 4096)),
    Case("column sums", lambda x: x.sum(0), rows(65536, 4096)),
    Case("full sum", lambda x: x.sum(), rows(65536, 4096)),
    Case("var_mean middle", lambda x: torch.var_mean(x, 1), middle),
    # The statistics need all of x before the first result can be written: x is read twice.
    Case("batch norm training", batch_norm_training, images, extra_bytes=lambda x, *_: storage_bytes(x)),
    Case("layer norm backward", layer_norm_backward, normalised_backward, bar=False),
    Case("softmax backward", softmax_backward, softmax_pair, bar=False),
    Case("cat", concatenate, halves, bar=False),
    Case("cross entropy", cross_entropy, classified, bar=False),
    Case("sort 128", sort_rows, rows(262144, 128), bar=False, limit=SORTING),
    Case("sort 1k", sort_rows, rows(32768, 1024), bar=False, limit=SORTING),
    Case("sort 2k", sort_rows, rows(16384, 2048), bar=False, limit=SORTING),
    Case("topk 8 of 128", largest(8), rows(524288, 128), bar=False, limit=SORTING),
    Case("topk 50 of 2k", largest(50), rows(32768, 2048), bar=False, limit=SORTING),
    Case("cumsum rows", lambda x: x.cumsum(-1), rows(32768, 4096), bar=False),
    Case("cumsum of two lines", lambda x: x.cumsum(-1), rows(2, 1 << 25), bar=False),
    Case("cumsum columns", lambda x: x.cumsum(0), rows(4096, 32768), bar=False),
    Case("sum segments", sum_segments, segments, bar=False),
    Case("largest of segments", largest_of_segments, segments, bar=False),
    Case("searchsorted", find_places, boundaries, bar=False, limit=SEARCHING),
)
