"""Tiny models with random weights: what a compiler meets in practice, small enough for the interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, BATCH, LENGTH = 48, 2, 6

Inputs = dict[str, Tensor]


def token_ids() -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def two_token_ids() -> Inputs:
    return {**token_ids(), "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def pixels() -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16)}


def pixels_and_ids() -> Inputs:
    return {**pixels(), "input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def image() -> Inputs:
    return {"x": torch.randn(BATCH, 3, 12, 12)}


def channels_last_image() -> Inputs:
    return {"x": torch.randn(BATCH, 3, 12, 12).to(memory_format=torch.channels_last)}


def features() -> Inputs:
    return {"x": torch.randn(5, 16)}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model by its class in transformers (or a maker here), its configuration, and what it is called with.

    `result` is the output to judge: the position in the tuple that the model returns. `branches` marks models whose own
    code branches on data, in some versions and dtypes (layer drop, a look for infinities): no single graph. `kinks`
    marks models whose gradient jumps at many points, so that a rounding near one of them changes it visibly.
    """

    name: str
    model: str | Callable[[], nn.Module]
    config: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[], Inputs] = token_ids
    result: int = 0
    branches: bool = False
    kinks: bool = False


class Judged(nn.Module):
    """Narrows a transformers model to one output tensor."""

    def __init__(self, model: nn.Module, result: int) -> None:
        super().__init__()
        self.model = model
        self.result = result

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model(**inputs, return_dict=False)[self.result]


def build(architecture: Architecture) -> nn.Module:
    """Returns the model in float32 on the host, weights drawn from torch's default generator."""
    if callable(architecture.model):
        return architecture.model()
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, architecture.model)
    settings = dict(architecture.config)
    attention = settings.pop("attn_implementation", "sdpa")
    model = kind._from_config(kind.config_class(**settings), attn_implementation=attention)
    spread_weights(model)
    return Judged(model, architecture.result)


def smooth(model: nn.Module) -> None:
    """Replaces the layers of a model whose gradients jump by like ones whose gradients do not."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            match child:
                case nn.ReLU():
                    setattr(parent, name, nn.SiLU(inplace=child.inplace))
                case nn.MaxPool2d():
                    setattr(parent, name, nn.AvgPool2d(child.kernel_size))


def spread_weights(model: nn.Module) -> None:
    """Moves parameters off the constants (zeros, ones) that initialisation leaves, which would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


class MultiLayerPerceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(24)
        self.second = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.second(F.gelu(self.norm(self.first(x)))), dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x) + self.shortcut(x))


class SmallResidualNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(ResidualBlock(4, 4, 1), ResidualBlock(4, 8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def channels_last_residual_network() -> nn.Module:
    return SmallResidualNetwork().to(memory_format=torch.channels_last)


class ConvolutionalMixer(nn.Module):
    """Depthwise and pointwise convolutions, group norm, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, stride=2)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.squeeze = nn.Conv2d(8, 2, 1)
        self.excite = nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x + F.hardswish(self.norm(self.depth(x)))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.head((x * gate).flatten(2).amax(-1))


ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 16,
}
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "attention_dropout": 0.0,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MULTI_HEAD = {name: value for name, value in DECODER.items() if name != "num_key_value_heads"}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SEQUENCES = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
BLOOM = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "n_layer": 1,
    "n_head": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "use_cache": False,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
CLIP_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "eos_token_id": 2,
}
CLIP_VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 1,
    "n_heads": 2,
    "hidden_dim": 24,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_position_embeddings": 16,
}
OPT = {
    **MULTI_HEAD,
    "ffn_dim": 24,
    "word_embed_proj_dim": 16,
    "dropout": 0.0,
}
DISENTANGLED = {
    **ENCODER,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("mlp", MultiLayerPerceptron, inputs=features),
    Architecture("resnet", SmallResidualNetwork, inputs=image, kinks=True),
    Architecture("resnet-channels-last", channels_last_residual_network, inputs=channels_last_image, kinks=True),
    Architecture("convmixer", ConvolutionalMixer, inputs=image),
    Architecture("gpt2", "GPT2LMHeadModel", GPT2),
    Architecture("gpt2-plain-attention", "GPT2LMHeadModel", {**GPT2, "n_layer": 1, "attn_implementation": "eager"}),
    Architecture("bert", "BertForMaskedLM", ENCODER),
    Architecture("roberta", "RobertaModel", {**ENCODER, "max_position_embeddings": 24}),
    Architecture("distilbert", "DistilBertModel", DISTIL),
    Architecture("albert", "AlbertModel", {**ENCODER, "embedding_size": 8}),
    Architecture("electra", "ElectraModel", {**ENCODER, "embedding_size": 8}),
    Architecture("deberta-v2", "DebertaV2Model", {**DISENTANGLED, "attn_implementation": "eager"}),
    Architecture("llama", "LlamaForCausalLM", {**DECODER, "num_hidden_layers": 2}),
    Architecture("llama-plain-attention", "LlamaForCausalLM", {**DECODER, "attn_implementation": "eager"}),
    Architecture("mistral", "MistralForCausalLM", {**DECODER, "sliding_window": 4}),
    Architecture("qwen2", "Qwen2ForCausalLM", DECODER),
    Architecture("gemma", "GemmaForCausalLM", {**DECODER, "head_dim": 4}),
    Architecture("phi", "PhiForCausalLM", {**DECODER, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    Architecture("opt", "OPTForCausalLM", OPT, branches=True),
    Architecture("gpt-neox", "GPTNeoXForCausalLM", {**MULTI_HEAD, "hidden_dropout": 0.0}),
    Architecture("bloom", "BloomForCausalLM", {**BLOOM, "attn_implementation": "eager"}),
    Architecture("falcon", "FalconForCausalLM", {**MULTI_HEAD, "hidden_dropout": 0.0, "alibi": False}),
    Architecture("t5", "T5ForConditionalGeneration", {**T5, "attn_implementation": "eager"}, two_token_ids),
    Architecture("bart", "BartModel", SEQUENCES, two_token_ids, branches=True),
    Architecture("vit", "ViTModel", VISION, pixels),
    Architecture("clip", "CLIPModel", {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION}, pixels_and_ids),
)
