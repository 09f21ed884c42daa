"""Trains small models in several processes, compiled and eagerly, and compares losses and parameters.

    python distributed_training.py                     two processes on the CPU, with gloo
    python distributed_training.py --device cuda       one process for each of two GPUs, with NCCL
    python distributed_training.py --case fsdp_blocks  one case

Needs torch, Triton and the five packages on PYTHONPATH. The processes meet in a file: no launcher, no network but
loopback. Ends with status 1 and a traceback if a case fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import ferrite_torch

RANKS = 2
STEPS = 3
SMALL = 5000
"""Bytes of the first bucket of gradients: less than the layers of the model have."""

Wrap = Callable[[nn.Module], nn.Module]
Case = Callable[[DeviceMesh, Wrap], list[Tensor]]


class Block(nn.Module):
    """A layer and its activation: a module of ours, as dynamo compiles no frames of torch's own containers."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x))


class Perceptron(nn.Module):
    """Three blocks with 8.4, 16.6 and 2.1 kB of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Block(32, 64), Block(64, 64), Block(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x))).sin()


class Residual(nn.Module):
    """Adds to a tensor what is made of it, by as many ops as blocks that are compiled once have at least."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(self.norm(x))
        return x + self.outer(inner * torch.sigmoid(inner) + inner.tanh() * 0.5).sin() * 0.5


class Tower(nn.Module):
    """Equal blocks, of which dynamo takes the last one into a graph with the first gradients that are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(32) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


BLOCKS = ("first", "second", "last")


def perceptron(mesh: DeviceMesh) -> Perceptron:
    torch.manual_seed(0)
    return Perceptron().to(mesh.device_type)


def batch(mesh: DeviceMesh, number: int) -> Tensor:
    """Returns the inputs of one step of this process."""
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return torch.randn(4, 32, generator=generator).to(mesh.device_type)


def trained(model: nn.Module, called: nn.Module, mesh: DeviceMesh, gathered: int = 1) -> list[Tensor]:
    """Returns the losses of a few steps and the parameters after them, as far as they lie here.

    Each step adds up the gradients of ``gathered`` batches, of which the last one only is shared with the others.
    """
    # One parameter at a time: some are distributed, some are not, which lists of both may not be.
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1, foreach=False), []
    for number in range(STEPS):
        for part in range(gathered):
            apart = model.no_sync() if part + 1 < gathered else nullcontext()  # type: ignore[operator]
            with apart:
                loss = called(batch(mesh, STEPS * part + number)).square().mean()
                loss.backward()
            found.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *map(_local, model.parameters())]


def _local(parameter: Tensor) -> Tensor:
    to_local = getattr(parameter, "to_local", None)
    found: Tensor = parameter if to_local is None else to_local()
    return found.detach().clone()


def data_parallel(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    model = DistributedDataParallel(perceptron(mesh))
    return trained(model, wrap(model), mesh)


def data_parallel_buckets(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    """Three buckets: dynamo makes a graph of each."""
    model = DistributedDataParallel(perceptron(mesh), bucket_cap_mb=0.01)
    return trained(model, wrap(model), mesh)


def accumulation(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    model = DistributedDataParallel(perceptron(mesh), bucket_cap_mb=0.01)
    return trained(model, wrap(model), mesh, gathered=2)


def repeated_blocks(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    torch.manual_seed(0)
    tower = Tower().to(mesh.device_type)
    ferrite_torch.repeat_blocks(tower)
    model = DistributedDataParallel(tower)
    found = trained(model, wrap(model), mesh)
    steps = [step["do"] for program in ferrite_torch.compiled_programs() for step in program["steps"]]
    assert "call" in steps, "no block is compiled once and called"
    return found


def fsdp_whole(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    """Sharded by blocks, and compiled as a whole: dynamo breaks the graph where parameters are gathered."""
    model = _sharded(perceptron(mesh), mesh)
    return trained(model, wrap(model), mesh)


def fsdp_blocks(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    """Each block compiled by itself, then sharded: parameters are gathered outside of the graphs."""
    model = perceptron(mesh)
    for name in BLOCKS:
        setattr(model, name, wrap(getattr(model, name)))
    model = _sharded(model, mesh)
    return trained(model, model, mesh)


def _sharded(model: Perceptron, mesh: DeviceMesh) -> Perceptron:
    from torch.distributed.fsdp import fully_shard

    for name in BLOCKS:
        fully_shard(getattr(model, name), mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(mesh: DeviceMesh, wrap: Wrap) -> list[Tensor]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"first.linear": ColwiseParallel(), "second.linear": RowwiseParallel()}
    model = parallelize_module(perceptron(mesh), mesh, plan)
    return trained(model, wrap(model), mesh)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        *(data_parallel, data_parallel_buckets, accumulation, repeated_blocks),
        *(fsdp_whole, fsdp_blocks, tensor_parallel),
    )
}


def check(name: str, mesh: DeviceMesh) -> None:
    """Trains one case compiled and eagerly.

    Raises:
        AssertionError: the two differ, or something ran eagerly.
    """
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    found = CASES[name](mesh, lambda module: torch.compile(module, backend="ferrite"))  # type: ignore[arg-type,return-value]
    counts = ferrite_torch.statistics()
    torch.testing.assert_close(found, CASES[name](mesh, lambda module: module), rtol=1e-4, atol=1e-5)
    assert counts["kernels"], f"{name}: nothing was compiled, {counts['graphs']} graphs"
    assert not counts["fallbacks"], f"{name}: ran eagerly: {counts['fallbacks']}"


def check_all(mesh: DeviceMesh, names: list[str]) -> None:
    """Trains several cases in the processes of a mesh, and says in the first how long each took.

    Raises:
        AssertionError: see `check`.
    """
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = SMALL
    for name in names:
        started = time.perf_counter()
        check(name, mesh)
        if dist.get_rank() == 0:
            print(f"{name:24}{time.perf_counter() - started:6.1f} s  same as eager mode", flush=True)  # noqa: T201  # a script


def work(rank: int, folder: str, device: str, names: list[str]) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank)
    group = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(group, init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    check_all(init_device_mesh(device, (RANKS,)), names)
    dist.destroy_process_group()


def train_all(folder: Path, device: str, names: list[str]) -> None:
    """Runs cases in processes of their own.

    Raises:
        ProcessRaisedException: one failed.
    """
    torch.multiprocessing.spawn(work, (str(folder), device, names), RANKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train_all(Path(folder), options.device, options.case)


if __name__ == "__main__":
    main()
