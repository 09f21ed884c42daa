"""What a chunked loss needs of memory, as the plan of its program says: no chunk's logits wait for another chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.model.schedule import CallExtern
from ferrite_torch.diagnostics.statistics import GraphRecord
from ferrite_torch.inspection.explanation import Observing

ROWS, WIDTH, CLASSES = 4096, 4096, 128256


def plain(h: Tensor, w: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, w).float(), labels)


def everything(h: Tensor, w: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    logits = torch.tanh(F.linear(h, w, b).float() / 30.0) * 30.0
    z = torch.logsumexp(logits, -1)
    return F.cross_entropy(logits, labels, label_smoothing=0.1) + 1e-4 * z.square().mean()


def plans(loss: Callable[..., Tensor], choice: str, classes: int = CLASSES) -> dict[str, GraphRecord]:
    """Returns what a step becomes, by kind of graph, without a tensor of these sizes."""
    observing = Observing(None, {"fallback": False, "chunk_losses": choice})
    with FakeTensorMode(allow_non_fake_inputs=True):
        h, w, b = (torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True)
                   for shape in ((ROWS, WIDTH), (classes, WIDTH), (classes,)))  # fmt: skip
        result = torch.compile(loss, backend=observing)(h, w, b, torch.empty(ROWS, dtype=torch.int64))
        torch.autograd.grad(result, [h, w, b], allow_unused=True)
    return {record.kind: record for record in observing.ledger.programs}


def waiting(record: GraphRecord) -> int:
    """Returns the most bytes alive at once beside the inputs."""
    inputs = record.schedule.inputs
    peak = footprint(record.schedule, [value.name for value in inputs]).peak
    return int(peak - sum(storage_bytes(value.type) for value in inputs))


def products(record: GraphRecord) -> list[Any]:
    calls = (step.definition.target for step in record.schedule.steps if isinstance(step, CallExtern))
    return [target for target in calls if "mm" in target]


@pytest.mark.parametrize(("loss", "classes"), [(plain, CLASSES), (plain, 50257), (everything, CLASSES)])
def test_a_third_of_the_logits_is_enough(loss: Callable[..., Tensor], classes: int) -> None:
    found = plans(loss, "auto", classes)
    padded = -(-classes // 64) * 64
    logits, gradients = ROWS * classes * 2, (padded + ROWS + 1) * WIDTH * 2
    weight = padded * WIDTH * 2 if classes < padded else 0  # its copy
    assert waiting(found["forward"]) - gradients - weight <= logits / 3
    assert waiting(found["backward"]) <= logits / 64
    assert len(products(found["forward"])) == 3 * 4
    assert not products(found["backward"])


def test_separate_kernels_need_them_whole() -> None:
    found = plans(plain, "never")
    assert waiting(found["forward"]) >= ROWS * CLASSES * 2
    assert len(products(found["backward"])) == 2


def test_without_gradients_one_chunk_is_alive() -> None:
    observing = Observing(None, {"fallback": False})
    with FakeTensorMode(allow_non_fake_inputs=True):
        h, w = (torch.empty(n, WIDTH, dtype=torch.bfloat16) for n in (ROWS, CLASSES))
        torch.compile(plain, backend=observing)(h, w, w[:, 0], torch.empty(ROWS, dtype=torch.int64))
    (record,) = observing.ledger.programs
    assert waiting(record) <= ROWS * CLASSES * 2 * 0.26
    assert len(products(record)) == 4
