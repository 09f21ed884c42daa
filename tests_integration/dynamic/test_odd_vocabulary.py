"""Language models' heads over a vocabulary of an odd length, trained at many sizes: products on extended operands."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ferrite_torch
from against_eager import compiled, devices, own_only
from ferrite_torch.lowering.products import matrix_products
from ferrite_torch.thresholds import PRODUCTS

pytestmark = own_only("it looks at its programs")

WORDS, WIDTH = 1003, 64
SIZES = ((4, 16), (3, 7), (1, 33), (8, 64), (5, 13))


class Head(nn.Module):
    """The last layers of a language model, whose product is tied to its embedding, with their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(self.norm(self.words(tokens)), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("device", devices())
def test_logits_stay_in_the_rows_that_their_product_made(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "DEVICES", (device,))
    monkeypatch.setattr(matrix_products, "PRODUCTS", replace(PRODUCTS, extended_flops=1, odd_flops_per_byte=0))
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    torch.manual_seed(0)
    mine = Head().to(device, torch.bfloat16)
    theirs, exact = copy.deepcopy(mine), copy.deepcopy(mine).float()
    run = compiled(mine, dynamic=True)
    for size in SIZES:
        tokens, labels = (torch.randint(WORDS, size, device=device) for _ in range(2))
        errors = []
        loss = exact(tokens, labels)
        loss.backward()
        for call, model in ((run, mine), (theirs, theirs)):
            result = call(tokens, labels)
            result.backward()
            pairs = [
                (result.detach(), loss.detach()),
                *((p.grad, q.grad) for p, q in zip(model.parameters(), exact.parameters(), strict=True)),
            ]
            errors.append([float((one.float() - other).norm() / other.norm()) for one, other in pairs])
            model.zero_grad()
        exact.zero_grad()
        for found, eager in zip(*errors, strict=True):
            assert found <= 2 * eager + 2e-3
    programs = ferrite_torch.compiled_programs()
    assert len(programs) <= 4, "one row, and any number of rows"
    pitch = matrix_products.extended_extent(WORDS, torch.bfloat16.itemsize)
    assert [pitch, 1] in [value.get("strides") for value in programs[-1]["inputs"]]
