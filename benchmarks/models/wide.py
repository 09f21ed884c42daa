"""Architectures of other people with random weights, at several batches and layouts: ``--set wide`` of `run.py`.

Convolution networks are as their libraries build them, at full depth. Transformers have their published width, heads
and inner size, but two to six layers, sequences of 128 tokens, and vocabularies of at most 52,000. Chance is taken out:
dropout and dropped paths have probability zero. Where a library is not installed, the rows of its architectures fail.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.plain import Denoiser, Generator, Interactions, UNet, WaveNet
from benchmarks.models.workloads import FirstOutput, Loss, Size, SquaredLoss, Workload, with_trained_norms

TINY_BATCH = 2
LENGTH, TINY_LENGTH = 128, 16
"""Tokens of a sequence, as it is measured and as the script is tried out."""
TINY_VOCABULARY = 512

DTYPES = ("float32", "tf32", "bfloat16", "autocast")

Feed = Callable[[Size, int], tuple[Tensor, ...]]
"""Makes the tensors of a call and, last, their labels, of a size and for a number of samples."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model and what it is called with.

    Attributes:
        library: the package that has it.
        build: makes it with random weights, of a size.
        feed: makes what it is called with.
        images: whether that is images, `[batch, channels, height, width]`, whose layout can be chosen.
        loss: the module that it is trained in.
        dtypes: what it can compute in, by the names of `PRECISIONS`.
    """

    library: str
    build: Callable[[Size], nn.Module]
    feed: Feed
    images: bool = False
    loss: Callable[[nn.Module], nn.Module] = Loss
    dtypes: tuple[str, ...] = DTYPES

    def workload(self, title: str, batch: int, *, channels_last: bool) -> Workload:
        """Returns what is measured for so many samples at once, in one of the layouts."""

        def build(size: Size) -> nn.Module:
            return with_trained_norms(without_chance(self.build(size)))

        def feed(size: Size) -> tuple[Tensor, ...]:
            return self.feed(size, TINY_BATCH if size == "tiny" else batch)

        return Workload(title, build, feed, channels_last=channels_last, loss=self.loss, exact=torch.float64)


def without_chance(model: nn.Module) -> nn.Module:
    """Returns the model with every dropout, of elements, channels or paths, at probability zero."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model


def pictures(edge: int, tiny_edge: int) -> Feed:
    """Returns what makes images, and the class of each, one of 1000."""

    def feed(size: Size, batch: int) -> tuple[Tensor, ...]:
        side = tiny_edge if size == "tiny" else edge
        return torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))

    return feed


def text(vocabulary: int, sequences: int = 1) -> Feed:
    """Returns what makes so many sequences of token ids for each sample, and labels of the last one's tokens."""

    def feed(size: Size, batch: int) -> tuple[Tensor, ...]:
        shape, top = ((batch, TINY_LENGTH), TINY_VOCABULARY) if size == "tiny" else ((batch, LENGTH), vocabulary)
        return tuple(torch.randint(top, shape) for _ in range(sequences + 1))

    return feed


def torchvision_model(name: str, edge: int = 224, tiny_edge: int = 64, **options: Any) -> Architecture:
    """Returns an image classifier of torchvision."""

    def build(size: Size) -> nn.Module:
        model: nn.Module = getattr(importlib.import_module("torchvision.models"), name)(weights=None, **options)
        return model

    return Architecture("torchvision", build, pictures(edge, tiny_edge), images=True)


def timm_model(name: str, **tiny: Any) -> Architecture:
    """Returns an image classifier of timm; `tiny` is what is other about it where the script is tried out."""

    def build(size: Size) -> nn.Module:
        options = tiny if size == "tiny" else {}
        model: nn.Module = importlib.import_module("timm").create_model(name, **options)
        return model

    return Architecture("timm", build, pictures(224, 64), images=True)


def transformer(
    model: str,
    config: str,
    shape: Mapping[str, Any],
    tiny: Mapping[str, Any],
    vocabulary: int,
    feed: Feed | None = None,
    wrap: Callable[[nn.Module], nn.Module] = FirstOutput,
    **more: Any,
) -> Architecture:
    """Returns a model of transformers.

    Args:
        model: the name of its class.
        config: that of its configuration.
        shape: what the configuration is made with, but for the vocabulary.
        tiny: what is other where the script is tried out.
        vocabulary: different tokens, zero if it is not the configuration that says so.
        feed: makes what it is called with; token ids without it.
        wrap: has it map tensors to one output.
        **more: of the architecture.
    """

    def build(size: Size) -> nn.Module:
        library = importlib.import_module("transformers")
        fields = {**shape, **tiny} if size == "tiny" else dict(shape)
        if vocabulary:
            fields["vocab_size"] = TINY_VOCABULARY if size == "tiny" else vocabulary
        return wrap(getattr(library, model)(without_dropout(getattr(library, config)(**fields))))

    return Architecture("transformers", build, feed or text(vocabulary), **more)


def without_dropout(config: Any) -> Any:
    """Returns a configuration of transformers with dropout of probability zero, that keeps no keys and values."""
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def shape(hidden: int, inner: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Returns the sizes of a transformer by the names that most configurations have for them."""
    own = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    return own | more


TINY = shape(64, 128, 2, 4)
TINY_GROUPED = {**TINY, "num_key_value_heads": 2}
BASE = shape(768, 3072, 4, 12)


def whisper() -> Architecture:
    """Returns Whisper tiny: half a minute of sound and the tokens of what is said."""
    full = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6}
    full |= {"decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    tiny = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    tiny |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_source_positions": 32}
    # Whisper's own marks are numbers of its vocabulary.
    tiny |= {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1}

    def feed(size: Size, batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 80, 64 if size == "tiny" else 3000), *text(50257)(size, batch)

    wrap = partial(FirstOutput, names=("input_features", "decoder_input_ids"))
    return transformer("WhisperForConditionalGeneration", "WhisperConfig", full, tiny, 51865, feed, wrap)


class Embeddings(nn.Module):
    """Maps token ids and images to what CLIP embeds them as, one after the other: `[batch, 2 * width]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        found = self.model(input_ids=tokens, pixel_values=images)
        return torch.cat((found.text_embeds, found.image_embeds), dim=-1)


def clip() -> Architecture:
    """Returns CLIP of text and of patches of 32 points, four layers of each."""
    words = {**shape(512, 2048, 4, 8), "attention_dropout": 0.0}
    points = {**shape(768, 3072, 4, 12), "attention_dropout": 0.0, "patch_size": 32}
    full = {"text_config": words, "vision_config": points, "projection_dim": 512}
    few = {"text_config": {**TINY, "projection_dim": 32}, "projection_dim": 32}
    few["vision_config"] = {**TINY, "image_size": 64, "patch_size": 16}

    def feed(size: Size, batch: int) -> tuple[Tensor, ...]:
        side, length, classes = (64, TINY_LENGTH, 64) if size == "tiny" else (224, 77, 1024)
        return torch.randint(500, (batch, length)), torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))

    return transformer("CLIPModel", "CLIPConfig", full, few, 0, feed, Embeddings)


def plain(build: Callable[[], nn.Module], tiny: Callable[[], nn.Module], feed: Feed, **more: Any) -> Architecture:
    """Returns a model of `benchmarks/models/plain.py`."""
    return Architecture("torch", lambda size: tiny() if size == "tiny" else build(), feed, **more)


def advertisements(size: Size, batch: int) -> tuple[Tensor, ...]:
    """Returns numbers, categories and clicks: a sample is 64 of them."""
    count, rows = (batch, 100) if size == "tiny" else (64 * batch, 20_000)
    return torch.randn(count, 13), torch.randint(rows, (count, 26)), torch.randint(2, (count,))


def scenes(size: Size, batch: int) -> tuple[Tensor, ...]:
    """Returns images and the class of each of their points."""
    side = 32 if size == "tiny" else 224
    return torch.randn(batch, 3, side, side), torch.randint(21, (batch, side, side))


def noisy(size: Size, batch: int) -> tuple[Tensor, ...]:
    """Returns noisy images, times, and the noise."""
    shape = (batch, 4, *((8, 8) if size == "tiny" else (64, 64)))
    return torch.randn(shape), torch.randint(1000, (batch,)), torch.randn(shape)


def noise(size: Size, batch: int) -> tuple[Tensor, ...]:
    """Returns noise and images."""
    return torch.randn(batch, 100, 1, 1), torch.randn(batch, 3, 64, 64).tanh()


def sound(size: Size, batch: int) -> tuple[Tensor, ...]:
    """Returns quantised sound and the samples that follow each."""
    length = 64 if size == "tiny" else 4096
    return torch.randint(256, (batch, length)), torch.randint(256, (batch, length))


WIDE: dict[str, Architecture] = {
    "alexnet": torchvision_model("alexnet"),
    "vgg16": torchvision_model("vgg16"),
    "squeezenet": torchvision_model("squeezenet1_1"),
    "googlenet": torchvision_model("googlenet", aux_logits=False, init_weights=False),
    "inception": torchvision_model("inception_v3", 299, 80, aux_logits=False, init_weights=False),
    "resnet50": torchvision_model("resnet50"),
    "resnext50": torchvision_model("resnext50_32x4d"),
    "densenet121": torchvision_model("densenet121"),
    "mobilenetv3": torchvision_model("mobilenet_v3_large"),
    "efficientnet": torchvision_model("efficientnet_b0"),
    "regnet": torchvision_model("regnet_y_400mf"),
    "convnext": torchvision_model("convnext_tiny"),
    "swin": torchvision_model("swin_t"),
    "deit": timm_model("deit_small_patch16_224", img_size=64, depth=2),
    "mixer": timm_model("mixer_s16_224", img_size=64),
    "poolformer": timm_model("poolformer_s12"),
    "nfnet": timm_model("eca_nfnet_l0"),
    "ghostnet": timm_model("ghostnet_100"),
    "gpt2": transformer(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 768, "n_layer": 4, "n_head": 12},
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
        50257,
    ),
    "opt": transformer(
        "OPTForCausalLM",
        "OPTConfig",
        {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 4, "num_attention_heads": 12},
        {
            "hidden_size": 64,
            "ffn_dim": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 64,
        },
        50272,
    ),
    "smollm": transformer(
        "LlamaForCausalLM", "LlamaConfig", shape(576, 1536, 6, 9, num_key_value_heads=3), TINY_GROUPED, 49152
    ),
    "qwen3": transformer(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        shape(1024, 3072, 4, 16, num_key_value_heads=8, head_dim=128),
        {**TINY_GROUPED, "head_dim": 16},
        32000,
    ),
    "mistral": transformer(
        "MistralForCausalLM",
        "MistralConfig",
        shape(2048, 5632, 2, 16, num_key_value_heads=4, sliding_window=64),
        {**TINY_GROUPED, "sliding_window": 8},
        32000,
    ),
    "mixtral": transformer(
        "MixtralForCausalLM",
        "MixtralConfig",
        shape(1024, 2048, 2, 16, num_key_value_heads=4, num_local_experts=8),
        {**TINY_GROUPED, "num_local_experts": 4},
        32000,
        dtypes=("bfloat16",),  # elsewhere the library's grouped product reads sizes on the host, compiled in no graph
    ),
    "mamba2": transformer(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"hidden_size": 768, "num_hidden_layers": 4, "num_heads": 24, "n_groups": 1, "chunk_size": 64},
        {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 8},
        50288,
    ),
    "bert": transformer("BertForMaskedLM", "BertConfig", BASE, TINY, 30522),
    "roberta": transformer("RobertaForMaskedLM", "RobertaConfig", BASE, TINY, 50265),
    "distilbert": transformer(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"n_layers": 4},
        {"n_layers": 2, "dim": 64, "hidden_dim": 128, "n_heads": 4},
        30522,
    ),
    "albert": transformer("AlbertForMaskedLM", "AlbertConfig", BASE, {**TINY, "embedding_size": 32}, 30000),
    "deberta": transformer(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        shape(768, 3072, 4, 12, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256),
        {**TINY, "position_buckets": 8},
        32000,
    ),
    "t5": transformer(
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 4, "num_heads": 8},
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
        32128,
        text(32128, 2),
        partial(FirstOutput, names=("input_ids", "decoder_input_ids")),
    ),
    "whisper": whisper(),
    "clip": clip(),
    "dlrm": plain(lambda: Interactions(20_000, 64), lambda: Interactions(100, 16), advertisements),
    "unet": plain(lambda: UNet(32, 4), lambda: UNet(8, 2), scenes, images=True),
    "denoiser": plain(lambda: Denoiser(128), lambda: Denoiser(32), noisy, images=True, loss=SquaredLoss),
    "dcgan": plain(lambda: Generator(64), lambda: Generator(4), noise, images=True, loss=SquaredLoss),
    "wavenet": plain(lambda: WaveNet(128, 10), lambda: WaveNet(16, 4), sound),
}
"""By the name of their rows: architectures of torchvision, timm, transformers, and of plain torch."""
