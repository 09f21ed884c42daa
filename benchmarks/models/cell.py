"""Measures one cell of the model benchmark: one model, one mode, one backend, in the process it is called in."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.accuracy import sample, sample_gradients
from benchmarks.models.precision import PRECISIONS
from benchmarks.models.variants import Variant
from benchmarks.models.wide import WIDE
from benchmarks.models.workloads import WORKLOADS, Size, Workload
from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.cores import take_cores
from benchmarks.tools.profiling import profile_step
from benchmarks.tools.turns import Turn

COMPILE_STEPS = 3  # calls that count as compilation: some compilers specialise again on the second or third
TIMED_SECONDS = 1.0  # of timed steps, of which a slow model has fewer
LEAST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """What to measure.

    Attributes:
        phase: "cold" (fresh caches) or "warm" (those of the cold process).
        dtype: one of `PRECISIONS`.
        reps: the most steps that are timed; with none, the cell only compiles and checks.
        steps: of the loss curve.
        batch: samples of a call of one of `WIDE`; zero means one of `WORKLOADS`, whose batches are their own.
        layout: of images, where `batch` says that it is asked for: "nchw" or "nhwc".
    """

    model: str
    mode: str
    backend: str
    phase: str
    size: Size
    device: str
    dtype: str
    reps: int
    steps: int
    batch: int = 0
    layout: str = ""

    @property
    def row(self) -> str:
        return f"{Variant(self.model, self.dtype, self.batch, self.layout).name}-{self.mode}"

    @property
    def key(self) -> str:
        return f"{self.row}-{self.backend}-{self.phase}"


def workload_of(cell: Cell) -> Workload:
    """Returns the cell's model and what it is called with."""
    if not cell.batch:
        return WORKLOADS[cell.model]
    return WIDE[cell.model].workload(cell.row, cell.batch, channels_last=cell.layout == "nhwc")


def wait(device: str) -> None:
    """Waits until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def build_module(cell: Cell, workload: Workload) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the module with its weights and the tensors of one call, the same in every process."""
    torch.manual_seed(0)
    dtype = PRECISIONS[cell.dtype].weights
    with torch.device(cell.device):
        model = workload.build(cell.size)
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in workload.feed(cell.size))
    model = model.to(dtype=dtype, memory_format=torch.channels_last if workload.channels_last else None)
    if workload.channels_last:
        inputs = tuple(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs)
    if cell.mode == "training":
        return workload.loss(model).train(), inputs
    return model.eval(), inputs[:-1]


def build_reference(cell: Cell, workload: Workload) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the module and the tensors of one call with the same values in a type that tells eager's error."""
    dtype = workload.exact if PRECISIONS[cell.dtype].is_single else torch.float32
    module, inputs = build_module(cell, workload)
    return module.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def inference_step(module: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    def step() -> Tensor:
        with torch.no_grad():
            return module(*inputs)

    return step


def training_step(
    module: Callable[..., Tensor], owner: nn.Module, inputs: tuple[Tensor, ...], learning_rate: float
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Returns the whole step, and the step without the optimizer, which leaves the gradients to look at."""
    optimizer = torch.optim.AdamW(owner.parameters(), lr=learning_rate, fused=True)

    def backward() -> Tensor:
        loss = module(*inputs)
        loss.backward()
        return loss.detach()

    def step() -> Tensor:
        loss = backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step, backward


def time_steps(step: Callable[[], Tensor], reps: int, device: str) -> list[float]:
    """Returns the milliseconds of each of `reps` steps, between device events where there are any."""
    if device != "cuda":
        return [elapsed(step, device)[1] * 1e3 for _ in range(reps)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(reps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]


def elapsed(step: Callable[[], Any], device: str) -> tuple[Any, float]:
    """Returns the step's result and its wall-clock seconds, device work included."""
    wait(device)
    started = time.perf_counter()
    result = step()
    wait(device)
    return result, time.perf_counter() - started


def read_reference(cell: Cell, workload: Workload, folder: Path) -> dict[str, Any]:
    """Runs the same weights exactly, without a compiler; returns its loss curve and stores its samples."""
    PRECISIONS["float32"].allow_tf32()
    module, inputs = build_reference(cell, workload)
    record: dict[str, Any] = {}
    name = f"{cell.row}-reference"
    if cell.mode == "training":
        step, backward = training_step(module, module, inputs, workload.learning_rate)
        backward()
        samples = sample_gradients(module)
        module.zero_grad(set_to_none=True)
        module, inputs = build_reference(cell, workload)  # batch norms moved in the first backward
        step, backward = training_step(module, module, inputs, workload.learning_rate)
        record["losses"] = [step().item() for _ in range(cell.steps)]
    else:
        samples = {"output": sample(inference_step(module, inputs)())}
    torch.save(samples, folder / f"{name}.pt")
    del module, inputs
    gc.collect()
    if cell.device == "cuda":
        torch.cuda.empty_cache()
    return record


def check_and_warm_up(
    cell: Cell, module: nn.Module, inputs: tuple[Tensor, ...], workload: Workload, folder: Path, turn: Turn
) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    """Compiles by calling, stores what the correctness check needs; returns the step and the record so far."""
    samples: dict[str, Tensor] = {}
    losses: list[float] = []
    spent = 0.0
    began = time.perf_counter()
    compiled = PRECISIONS[cell.dtype].around(compile_with(cell.backend, module), cell.device)
    spent += time.perf_counter() - began
    first_calls: list[float] = []
    if cell.mode == "training":
        step, backward = training_step(compiled, module, inputs, workload.learning_rate)
    else:
        step = backward = inference_step(compiled, inputs)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    turn.take_when_compiled(cell.backend)
    result, seconds = elapsed(backward, cell.device)
    turn.take()
    first_calls.append(seconds - turn.waited)
    samples = sample_gradients(module) if cell.mode == "training" else {"output": sample(result)}
    if cell.phase == "cold":
        torch.save(samples, folder / f"{cell.key}.pt")
    del result
    module.zero_grad(set_to_none=True)
    with torch.no_grad():  # the loss curve starts from the state that the reference's starts from
        for name, value in module.named_buffers():
            value.copy_(buffers[name])
    wanted = cell.steps if cell.mode == "training" and cell.phase == "cold" else COMPILE_STEPS
    for _ in range(max(wanted, COMPILE_STEPS)):
        result, seconds = elapsed(step, cell.device)
        if len(first_calls) < COMPILE_STEPS:
            first_calls.append(seconds)
        if cell.mode == "training":
            losses.append(result.item())
        del result
    return step, {"losses": losses, "first_calls_s": first_calls, "wrap_s": spent, "last_call_s": seconds}


def memory_of(step: Callable[[], Tensor], device: str) -> dict[str, float]:
    """Returns the peak of allocated memory in a steady step and over the process's life, in MiB."""
    if device != "cuda":
        return {}
    life = torch.cuda.max_memory_allocated() / 2**20
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return {"peak_step_mib": torch.cuda.max_memory_allocated() / 2**20, "peak_life_mib": life}


def measure(cell: Mapping[str, Any], folder: str, share: Sequence[int], lock: str | None) -> None:
    """Measures the cell and writes its record to `folder/<key>.json`.

    Args:
        cell: the fields of a `Cell`.
        folder: where its records and samples go.
        share: its share of the cores: the first of so many.
        lock: a file by which processes take turns on the device; none where no other uses it, or all do.
    """
    take_cores(*share)
    turn = Turn(Path(lock) if lock else None)
    write_record(Cell(**cell), Path(folder), turn)
    turn.end()


def write_record(cell: Cell, folder: Path, turn: Turn) -> None:
    workload = workload_of(cell)
    record: dict[str, Any] = {"cell": asdict(cell)}
    if cell.backend == "eager" and cell.phase == "cold":
        record["reference"] = read_reference(cell, workload, folder)
    PRECISIONS[cell.dtype].allow_tf32()
    module, inputs = build_module(cell, workload)
    wait(cell.device)
    step, checked = check_and_warm_up(cell, module, inputs, workload, folder, turn)
    record.update(checked)
    steady = record["last_call_s"]
    if cell.reps:
        record.update(memory_of(step, cell.device))
        record["times_ms"] = time_steps(step, timed_steps(cell.reps, steady), cell.device)
        steady = statistics.median(record["times_ms"]) / 1e3
        record["profile"] = profile_step(step, cell.device)
    # Nothing is taken out but waiting for a turn and the calls' own work: capture, code generation, compiler processes
    # and tuning all count.
    calls = record["first_calls_s"]
    record["compile_s"] = max(0.0, record["wrap_s"] + sum(calls) - steady * len(calls))
    record.update(count_work(cell.backend))
    (folder / f"{cell.key}.json").write_text(json.dumps(record, indent=1))


def timed_steps(most: int, seconds: float) -> int:
    """Returns how many steps of so many seconds are timed."""
    return min(most, max(LEAST_STEPS, int(TIMED_SECONDS / max(seconds, 1e-9))))
