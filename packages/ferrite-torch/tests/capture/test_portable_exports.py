"""What is exported on a CPU is for GPUs: no graph has an op that only the CPU's library has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from ferrite_runtime import Bundle, Options, load

MODELS: dict[str, tuple[nn.Module, Any]] = {
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (torch.randn(2, 3, 8),)),
    "attention without weights": (nn.MultiheadAttention(8, 2), (*(torch.randn(3, 2, 8),) * 3, None, False)),
    "lstm": (nn.LSTM(3, 4, 2, bidirectional=True), (torch.randn(5, 2, 3),)),
    "lstm of half types": (nn.LSTM(3, 4).bfloat16(), (torch.randn(5, 2, 3).bfloat16(),)),
    "gru": (nn.GRU(3, 4, batch_first=True), (torch.randn(2, 5, 3),)),
}
PORTABLE = {"aten.addmm.default", "aten.mm.default", "aten.bmm.default", "aten.scaled_dot_product_attention.default"}


def externs_of(bundle: Bundle) -> set[str]:
    return {step.target for program in bundle.programs.values() for step in program.steps if hasattr(step, "target")}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_layers_with_kernels_of_the_cpu_are_exported_for_gpus(name: str, *, training: bool) -> None:
    model, inputs = MODELS[name]
    model.train(training)
    bundle = ferrite_torch.export(model, inputs, targets=["sm_90"], prebuilt=False, training=training)
    assert externs_of(bundle) <= PORTABLE
    weights = dict(model.state_dict(keep_vars=True))
    loaded = load(Bundle.from_bytes(bundle.to_bytes()), weights=weights, options=Options(interpret=True))
    # States are below 1 and rounded in each of five steps, in half types to 2**-9.
    rtol, atol = (2e-2, 5 * 2.0**-9) if "half" in name else (2e-4, 1e-5)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(loaded(*inputs), model(*inputs), rtol=rtol, atol=atol)


def test_attention_inside_of_torchs_layers_stays_one_call() -> None:
    model, inputs = MODELS["encoder layer"]
    bundle = ferrite_torch.export(model.eval(), inputs, targets=["sm_90"], prebuilt=False)
    assert "aten.scaled_dot_product_attention.default" in externs_of(bundle)


def test_what_export_sets_aside_is_there_afterwards() -> None:
    def attend(x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    was_enabled, x = torch.backends.mkldnn.enabled, torch.randn(1, 2, 4, 8)
    ferrite_torch.export(attend, (x,), targets=["cpu"])
    assert torch.backends.mkldnn.enabled == was_enabled
    torch.testing.assert_close(torch.compile(attend, backend="ferrite")(x), attend(x))
    torch.testing.assert_close(torch.compile(attend, backend="aot_eager")(x), attend(x))
