"""Distributed tensors, whose graphs take a mesh of devices and return it, and calls to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import distributed_training
from against_eager import assert_close, assert_worked, compiled, gradients, observed_work

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed import _functional_collectives as collectives  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

RANKS = 2
TRAINED = ["data_parallel", "accumulation", "repeated_blocks", "fsdp_whole", "fsdp_blocks"]
"""What is trained on the CPU: of several buckets, with gradients that are added up on the way, of equal blocks. Tensor
parallel training is checked by `check_tensor_parallel`."""
PLAN: dict[str, ParallelStyle] = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def join(folder: Path, rank: int, ranks: int) -> DeviceMesh:
    """Makes this process one of a group and returns the mesh of all."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks)
    torch._dynamo.reset()
    return init_device_mesh("cpu", (ranks,))


@pytest.fixture(name="mesh")
def mesh_fixture(tmp_path: Path) -> Iterator[DeviceMesh]:
    yield join(tmp_path, 0, 1)
    dist.destroy_process_group()


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def gram(x: Tensor) -> Tensor:
    return (x @ x.T).relu() * 2


def test_a_distributed_tensor_is_one_again(mesh: DeviceMesh) -> None:
    with observed_work() as work:
        call = compiled(gram, fullgraph=True)
        for size in (4, 6, 7):
            x = distribute_tensor(torch.randn(size, 3), mesh, [Shard(0)])
            found, eager = call(x), gram(x)
            assert isinstance(found, DTensor)
            assert found.device_mesh is mesh
            assert found.placements == eager.placements
            assert_close(found.to_local(), eager.to_local(), gram(x.to_local().double()))
    assert_worked(work)


def test_it_is_made_and_left_inside(mesh: DeviceMesh) -> None:
    def function(x: Tensor) -> Tensor:
        shared = DTensor.from_local(x.sin(), mesh, [Shard(0)])
        return (shared * 2).redistribute(placements=[Replicate()]).to_local().cos()

    x = torch.randn(3, 4)
    with observed_work() as work:
        found = compiled(function, fullgraph=True)(x)
    assert_close(found, function(x), (x.double().sin() * 2).cos())
    assert_worked(work)


def trained(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Returns what a module gives for x, and the gradients of its parameters, as far as they lie here."""
    y = module(x)
    found = [y.detach(), *gradients(y, list(module.parameters()))]
    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in found if grad is not None]


def check_tensor_parallel(mesh: DeviceMesh) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    mine, theirs, exact = (parallelize_module(perceptron().to(kind), mesh, PLAN) for kind in (None, None, torch.double))
    with observed_work() as work:
        found = trained(compiled(mine), x)
    for own, eager, wide in zip(found, trained(theirs, x), trained(exact, x.double()), strict=True):
        assert_close(own, eager, wide)
    assert_worked(work)


def test_tensor_parallel_training(mesh: DeviceMesh) -> None:
    check_tensor_parallel(mesh)


def work_together(rank: int, folder: Path) -> None:
    mesh = join(folder, rank, RANKS)
    check_tensor_parallel(mesh)
    check_collectives(mesh)
    distributed_training.check_all(mesh, TRAINED)
    dist.destroy_process_group()


def check_collectives(mesh: DeviceMesh) -> None:
    rank = dist.get_rank()

    def function(x: Tensor) -> Tensor:
        total = collectives.all_reduce(x.sin(), "sum", (mesh, 0))
        return collectives.all_gather_tensor(total * (rank + 1), 0, (mesh, 0)) + 1

    x = torch.arange(3.0) + rank
    with observed_work() as work:
        found = compiled(function, fullgraph=True)(x)
    assert_close(found, function(x), function(x.double()))
    assert found.shape == (3 * RANKS,)
    assert_worked(work)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="fewer than two GPUs")
def test_training_on_two_gpus(tmp_path: Path) -> None:
    distributed_training.train_all(tmp_path, "cuda", list(distributed_training.CASES))


def test_two_processes(tmp_path: Path) -> None:
    """Calls to the other process; data parallel, gathered gradients, sharded parameters, tensor parallel training.

    All in the same two processes: to start them takes longer than most of it.
    """
    torch.multiprocessing.spawn(work_together, (tmp_path,), RANKS)
