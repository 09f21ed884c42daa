"""Measures one cell of the model benchmark: one model, one mode, one backend, in the process it is called in."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.accuracy import sample, sample_gradients
from benchmarks.models.workloads import WORKLOADS, Loss, Size, Workload
from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.profiling import profile_step

COMPILE_STEPS = 3  # calls that count as compilation: some compilers specialise again on the second or third


@dataclass(frozen=True, slots=True)
class Cell:
    """What to measure. `phase` is "cold" (fresh caches) or "warm" (those of the cold process)."""

    model: str
    mode: str
    backend: str
    phase: str
    size: Size
    device: str
    dtype: str
    reps: int
    steps: int

    @property
    def key(self) -> str:
        return f"{self.model}-{self.mode}-{self.backend}-{self.phase}"


def wait(device: str) -> None:
    """Waits until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def build_module(cell: Cell, workload: Workload) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the module with its weights and the tensors of one call, the same in every process."""
    torch.manual_seed(0)
    dtype = getattr(torch, cell.dtype)
    with torch.device(cell.device):
        model = workload.build(cell.size)
        batch, labels = workload.feed(cell.size)
    layout = torch.channels_last if workload.channels_last else torch.preserve_format
    model = model.to(dtype=dtype, memory_format=layout if workload.channels_last else None)
    if batch.is_floating_point():
        batch = batch.to(dtype).to(memory_format=layout)
    if cell.mode == "training":
        return Loss(model).train(), (batch, labels)
    return model.eval(), (batch,)


def widen(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.float() if x.is_floating_point() else x for x in inputs)


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
    """Runs the same weights in float32 without a compiler; returns its loss curve and stores its samples."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    module, inputs = build_module(cell, workload)
    module, inputs = copy.deepcopy(module).float(), widen(inputs)
    record: dict[str, Any] = {}
    name = f"{cell.model}-{cell.mode}-reference"
    if cell.mode == "training":
        step, backward = training_step(module, module, inputs, workload.learning_rate)
        backward()
        samples = sample_gradients(module)
        module.zero_grad(set_to_none=True)
        module, inputs = build_module(cell, workload)  # batch norms moved in the first backward
        module, inputs = copy.deepcopy(module).float(), widen(inputs)
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
    cell: Cell, module: nn.Module, inputs: tuple[Tensor, ...], workload: Workload, folder: Path
) -> tuple[Callable[[], Tensor], dict[str, Any]]:
    """Compiles by calling, stores what the correctness check needs; returns the step and the record so far."""
    samples: dict[str, Tensor] = {}
    losses: list[float] = []
    spent = 0.0
    began = time.perf_counter()
    compiled = compile_with(cell.backend, module)
    spent += time.perf_counter() - began
    first_calls: list[float] = []
    if cell.mode == "training":
        step, backward = training_step(compiled, module, inputs, workload.learning_rate)
    else:
        step = backward = inference_step(compiled, inputs)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    result, seconds = elapsed(backward, cell.device)
    first_calls.append(seconds)
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
    return step, {"losses": losses, "first_calls_s": first_calls, "wrap_s": spent}


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


def measure(cell: Mapping[str, Any], folder: str) -> None:
    """Measures the cell and writes its record to `folder/<key>.json`."""
    write_record(Cell(**cell), Path(folder))


def write_record(cell: Cell, folder: Path) -> None:
    workload = WORKLOADS[cell.model]
    record: dict[str, Any] = {"cell": asdict(cell)}
    if cell.backend == "eager" and cell.phase == "cold":
        record["reference"] = read_reference(cell, workload, folder)
    module, inputs = build_module(cell, workload)
    wait(cell.device)
    step, checked = check_and_warm_up(cell, module, inputs, workload, folder)
    record.update(checked)
    record.update(memory_of(step, cell.device))
    times = time_steps(step, cell.reps, cell.device)
    steady = statistics.median(times) / 1e3
    record["times_ms"] = times
    # Nothing is taken out but the calls' own work: capture, code generation, compiler processes and tuning all count.
    calls = record["first_calls_s"]
    record["compile_s"] = max(0.0, record["wrap_s"] + sum(calls) - steady * len(calls))
    record.update(count_work(cell.backend))
    if cell.phase == "cold":
        record["profile"] = profile_step(step, cell.device)
    (folder / f"{cell.key}.json").write_text(json.dumps(record, indent=1))
