"""The models that `benchmarks/models/run.py` measures: how each is built, fed and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.architectures import Decoder, DecoderConfig, ResidualNetwork, VisionConfig, VisionTransformer

Size = Literal["full", "tiny"]


class FirstOutput(nn.Module):
    """Wraps a transformers model so that it maps tensors, token ids unless they are named, to its first output."""

    def __init__(self, model: nn.Module, names: Sequence[str] = ("input_ids",)) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]


def wide_enough(x: Tensor) -> Tensor:
    """Returns logits in float32 as trainers have them, in float64 where all is computed in it."""
    return x if x.dtype == torch.float64 else x.float()


class Loss(nn.Module):
    """Maps a call's tensors and its labels, which come last, to the mean cross entropy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch_and_labels: Tensor) -> Tensor:
        *batch, labels = batch_and_labels
        logits = self.model(*batch)
        return F.cross_entropy(wide_enough(logits.reshape(-1, logits.shape[-1])), labels.reshape(-1))


class SquaredLoss(nn.Module):
    """Maps a call's tensors and what should come out, which comes last, to the mean squared difference."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch_and_target: Tensor) -> Tensor:
        *batch, target = batch_and_target
        return F.mse_loss(wide_enough(self.model(*batch)), wide_enough(target))


@dataclass(frozen=True, slots=True)
class Workload:
    """One model with its batch: `build(size)` the module, `feed(size)` a call's tensors and, last, its labels.

    `exact` is the type in which eager's own error is told where it computes in float32.
    """

    title: str
    build: Callable[[Size], nn.Module]
    feed: Callable[[Size], tuple[Tensor, ...]]
    channels_last: bool = False
    learning_rate: float = 1e-4
    loss: Callable[[nn.Module], nn.Module] = Loss
    exact: torch.dtype = torch.float32


def gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512, "n_positions": 64} if size == "tiny" else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **small)
    return FirstOutput(GPT2LMHeadModel(config))


def bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    shape = {**small, "vocab_size": 512} if size == "tiny" else {}
    return FirstOutput(BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shape)))


def llama(size: Size) -> nn.Module:
    if size == "tiny":
        return Decoder(DecoderConfig(512, 64, 176, 2, 4, 2, 64))
    return Decoder(DecoderConfig())


def vit(size: Size) -> nn.Module:
    if size == "tiny":
        return VisionTransformer(VisionConfig(32, 8, 64, 128, 2, 4, 10))
    return VisionTransformer(VisionConfig())


def resnet(size: Size) -> nn.Module:
    return with_trained_norms(ResidualNetwork((1, 1), 16, 10) if size == "tiny" else ResidualNetwork())


def with_trained_norms(model: nn.Module) -> nn.Module:
    """Returns the model with batch norms as they look after training.

    As they are made, they multiply by 1 / sqrt(1 + 1e-5) and nothing else. Rounded to half precision that is no change
    at all, so that eager sums residuals exactly, ties rounding to even; unrounded, as in a fused kernel, it moves each
    tie below the middle, and a compiler that is more precise at each step ends up with a bias.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.1)
    return model


def tokens(batch: int, length: int, vocabulary: int) -> Callable[[Size], tuple[Tensor, Tensor]]:
    def feed(size: Size) -> tuple[Tensor, Tensor]:
        shape, top = ((2, 16), 512) if size == "tiny" else ((batch, length), vocabulary)
        return torch.randint(top, shape), torch.randint(top, shape)

    return feed


def images(batch: int, edge: int, classes: int) -> Callable[[Size], tuple[Tensor, Tensor]]:
    def feed(size: Size) -> tuple[Tensor, Tensor]:
        count, side, top = (2, 32, 10) if size == "tiny" else (batch, edge, classes)
        return torch.randn(count, 3, side, side), torch.randint(top, (count,))

    return feed


WORKLOADS: dict[str, Workload] = {
    "gpt2": Workload("GPT-2 small, 8 x 1024", gpt2, tokens(8, 1024, 50257)),
    "bert": Workload("BERT-base, 16 x 512", bert, tokens(16, 512, 30522)),
    "llama": Workload("Llama-style 4 x 2048, 4 x 2048", llama, tokens(4, 2048, 32000)),
    "vit": Workload("ViT-B/16, 64 x 224", vit, images(64, 224, 1000)),
    "resnet50": Workload("ResNet-50 NHWC, 128 x 224", resnet, images(128, 224, 1000), channels_last=True),
}
