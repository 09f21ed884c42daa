"""What `dynamic.py` runs at many sizes: kernels and models, with the sizes."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.workloads import WORKLOADS, Loss
from benchmarks.tools.timing import time_launches

ROWS = (2, 3, 7, 64, 100, 127, 128, 129, 1000, 1023, 1024, 1025, 4096, 5000, 8191, 8192, 8193, 16384, 20000, 32768)
SEQUENCES = ((1, 128), (2, 512), (3, 77), (4, 250), (5, 256), (7, 511), (8, 1023), (8, 1024), (6, 384), (2, 1000),
             (16, 33), (12, 640))  # fmt: skip
SHORT_SEQUENCES = ((1, 128), (2, 512), (3, 77), (4, 250), (5, 256), (7, 511), (8, 321), (16, 512), (6, 384), (2, 500),
                   (16, 33), (24, 448))  # fmt: skip
"""Sizes for BERT, which has 512 positions."""
VOCABULARY = 50257
"""Rows of the table that gradients are looked up for."""
IMAGES = ((1, 224), (3, 224), (7, 192), (16, 160), (31, 128), (32, 224), (64, 128), (33, 96), (48, 224), (65, 224),
          (100, 64), (128, 224))  # fmt: skip
PATCHED = tuple((batch, 224) for batch, _ in IMAGES)
TINY = ((1, 16), (3, 16), (4, 13), (5, 16))
KERNEL_SECONDS, MODEL_SECONDS = 0.3, 1.5
"""After so many seconds at a size the least number of batches is enough: the host's mood changes more slowly."""
SAMPLED = 512
"""Elements of each gradient that are compared."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Something to run at several sizes.

    Attributes:
        make: the arguments at a size.
        build: given the backend's compiler, the function to call on them, and one of float32 that is exact.
        clock: times queued calls: of kernels on the device alone, of models as a program runs them.
        seconds: after which, at each size, no more batches are timed than there have to be.
    """

    name: str
    make: Callable[[tuple[int, ...]], tuple[Any, ...]]
    build: Callable[[Callable[[Any], Any]], Callable[..., Any]]
    exact: Callable[..., Any]
    sizes: Sequence[tuple[int, ...]]
    clock: Callable[[Callable[[], Any], int, str], float]
    seconds: float


def kernel_sweeps(plan: argparse.Namespace) -> Iterator[Sweep]:
    width, dtype = 1000, torch.float32 if plan.device == "cpu" else torch.bfloat16
    sizes = [(count,) for count in (ROWS[:4] if plan.tiny else ROWS)]

    def matrix(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (torch.randn(*size, width, dtype=dtype, device=plan.device),)

    def pair(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (*matrix(size), *matrix(size))

    def columns(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (torch.randn(512, *size, dtype=dtype, device=plan.device),)

    def looked_up(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        gradient = torch.randn(*size, 768, dtype=dtype, device=plan.device)
        torch._dynamo.mark_static(gradient, 1)  # as the rows of a table are, which is a parameter
        return gradient, torch.randint(VOCABULARY, size, device=plan.device)

    cases: dict[str, tuple[Callable[..., Any], Callable[[tuple[int, ...]], tuple[Tensor, ...]]]] = {
        "gelu": (lambda x: F.gelu(x * 2 + 1), matrix),
        "layer norm": (lambda x: F.layer_norm(x, (width,)), matrix),
        "softmax": (lambda x: torch.softmax(x, -1), matrix),
        "softmax of any length": (lambda x: torch.softmax(x, -1), columns),
        "rms norm of any length": (lambda x: x * torch.rsqrt(x.float().square().mean(-1, True) + 1e-6), columns),
        "transpose": (lambda x: (x + 1).t().contiguous(), matrix),
        "cat": (lambda x, y: torch.cat([x, y * 2], 1), pair),
        "column sums": (lambda x: x.float().sum(0), matrix),
        "embedding gradient": (
            lambda x, index: torch.ops.aten.embedding_dense_backward(x, index, VOCABULARY, -1, False),
            looked_up,
        ),
    }
    for name, (function, make) in cases.items():
        if not plan.kernels or name in plan.kernels:
            build, exact = (lambda compiler, f=function: compiler(f)), exact_call(function)
            yield Sweep(name, make, build, exact, sizes, time_launches, KERNEL_SECONDS)


def exact_call(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: function(*(x.float() if x.is_floating_point() else x for x in given))


def model_sweeps(plan: argparse.Namespace) -> Iterator[Sweep]:
    dtype = torch.float32 if plan.device == "cpu" else torch.bfloat16
    for name in plan.models:
        workload = WORKLOADS[name]
        is_image = name in ("vit", "resnet50")
        sizes = {"vit": PATCHED, "resnet50": IMAGES, "bert": SHORT_SEQUENCES}.get(name, SEQUENCES)
        if plan.tiny:
            sizes = tuple((batch, 32) for batch, _ in TINY) if is_image else TINY
        place = torch.channels_last if workload.channels_last else torch.contiguous_format
        _, labels = workload.feed("tiny" if plan.tiny else "full")
        top = int(labels.max())

        def make(
            size: tuple[int, ...], *, is_image: bool = is_image, top: int = top, place: Any = place
        ) -> tuple[Any, ...]:
            batch, length = size
            if is_image:
                given = torch.randn(batch, 3, length, length, device=plan.device, dtype=dtype)
                return given.to(memory_format=place), torch.randint(top, (batch,), device=plan.device)
            return tuple(torch.randint(top, size, device=plan.device) for _ in range(2))

        for mode in plan.modes:

            @functools.cache
            def built(kind: torch.dtype, *, name: str = name, place: Any = place, mode: str = mode) -> nn.Module:
                torch.manual_seed(0)
                model = Loss(WORKLOADS[name].build("tiny" if plan.tiny else "full")).to(plan.device, kind)
                return model.to(memory_format=place).train(mode == "training")

            yield Sweep(
                f"{name} {mode}",
                make,
                lambda compiler, built=built, mode=mode: step_of(built(dtype), compiler, mode),
                lambda *given, built=built, mode=mode: step_of(built(torch.float32), lambda model: model, mode)(
                    *(x.float() if x.is_floating_point() else x for x in given)
                ),
                sizes,
                time_calls,
                MODEL_SECONDS,
            )


def step_of(model: nn.Module, compiler: Callable[[Any], Any], mode: str) -> Callable[..., Any]:
    """Returns a function of a batch and its labels: of the loss, and in training of samples of all gradients."""
    called, parameters = compiler(model), list(model.parameters())

    def infer(batch: Tensor, labels: Tensor) -> Any:
        with torch.no_grad():
            return called(batch, labels)

    def train(batch: Tensor, labels: Tensor, *, is_judged: bool = True) -> Any:
        loss = called(batch, labels)
        loss.backward()
        samples = [sample(p.grad) for p in parameters if p.grad is not None] if is_judged else []
        for parameter in parameters:
            parameter.grad = None
        return [loss.detach(), *samples]

    return infer if mode == "inference" else train


def sample(gradient: Tensor) -> Tensor:
    """Returns elements of a gradient at equal distances."""
    flat = gradient.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].float()


def time_calls(call: Callable[[], Any], launches: int, device: str) -> float:
    """Returns milliseconds per call of calls in a row: the host's or the device's, whichever takes longer."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    started = time.perf_counter()
    for _ in range(launches):
        call()
    synchronise()
    return (time.perf_counter() - started) * 1e3 / launches
