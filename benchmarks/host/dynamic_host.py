"""Measures what a call of a model compiled for any sizes costs the host, next to one compiled for its size.

    python benchmarks/host/dynamic_host.py --models llama,bert --modes inference,training

Needs no GPU: kernels are launched on one that does nothing (`idle_gpu.py`), extern calls run on the host, so models
are narrow. "Call" is all that a program pays: dynamo's guards, AOTAutograd, ours, and extern calls. "Program" is ours
alone, with the extern calls, of all graphs of a call. "Changing" takes other sizes from call to call, which come
again; "unprepared" is the same without the functions that are written for such sizes
(`ferrite_runtime.engines.shape_cache`), as it is where sizes do not recur. All are microseconds of this thread's
processor time, the least of several batches.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

from benchmarks.tools.tree import add_packages_to_path

LAYERS = 4
SIZES = ((3, 13), (3, 14), (4, 13))


def narrow(model: str, layers: int = LAYERS) -> nn.Module:
    """Returns a model of several layers that computes next to nothing."""
    from benchmarks.models.architectures import Decoder, DecoderConfig, ResidualNetwork, VisionConfig, VisionTransformer
    from benchmarks.models.workloads import FirstOutput

    if model == "llama":
        return Decoder(DecoderConfig(64, 16, 32, layers, 2, 1, 64))
    if model == "vit":
        return VisionTransformer(VisionConfig(32, 8, 16, 32, layers, 2, 64))
    if model == "resnet50":
        return ResidualNetwork((2, 2), 4, 64).to(memory_format=torch.channels_last)
    if model == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        shape = {"n_layer": layers, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 64}
        dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return FirstOutput(
            GPT2LMHeadModel(GPT2Config(use_cache=False, bos_token_id=0, eos_token_id=0, **dropped, **shape))
        )
    from transformers import BertConfig, BertForMaskedLM

    shape = {"num_hidden_layers": layers, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return FirstOutput(BertForMaskedLM(BertConfig(vocab_size=64, **dropped, **shape)))


def batch_of(model: str, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a batch and its labels: lines of tokens, as many images as that are tokens, or images with such edges."""
    if model == "vit":
        return torch.randn(size[0] * size[1], 3, 32, 32), torch.randint(64, (size[0] * size[1],))
    if model == "resnet50":
        images = torch.randn(size[0] + 2, 3, 2 * size[1], 2 * size[1])  # two more: as many as channels would be fixed
        return images.to(memory_format=torch.channels_last), torch.randint(64, (size[0] + 2,))
    return torch.randint(64, size), torch.randint(64, size)


class Recorder:
    """An engine whose host functions add the time that they take to ``spent``, in seconds."""

    spent = 0.0

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.first, self.wait = engine.first, engine.wait

    def steady(self, device: Any, redirect: Any) -> Callable[[list[Any]], Any]:
        host = self.engine.steady(device, redirect)

        def timed(args: list[Any]) -> Any:
            started = time.thread_time()
            results = host(args)
            Recorder.spent += time.thread_time() - started
            return results

        return timed


def step_of(module: nn.Module, mode: str, *, dynamic: bool) -> Callable[[tuple[Any, ...]], None]:
    """Returns a function that calls the compiled module on a batch, with its backward in training."""
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    parameters = list(module.parameters())

    def infer(batch: tuple[Any, ...]) -> None:
        with torch.no_grad():
            compiled(*batch)

    def train(batch: tuple[Any, ...]) -> None:
        compiled(*batch).backward()
        for parameter in parameters:
            parameter.grad = None

    return infer if mode == "inference" else train


def microseconds(
    step: Callable[[tuple[Any, ...]], None], batches: Sequence[tuple[Any, ...]], repeats: int
) -> list[float]:
    """Returns what a call takes, and what programs take in it: the least of several rounds."""
    for batch in batches:
        for _ in range(4):
            step(batch)
    calls, programs = [], []
    for _ in range(repeats):
        Recorder.spent = 0.0
        started = time.thread_time()
        for batch in batches * 4:
            step(batch)
        calls.append(time.thread_time() - started)
        programs.append(Recorder.spent)
    return [min(times) * 1e6 / (4 * len(batches)) for times in (calls, programs)]


def measure(model: str, mode: str, repeats: int) -> str:
    """Returns a row of the table."""
    from benchmarks.models.workloads import Loss
    from ferrite_runtime.engines import shape_cache

    torch.manual_seed(0)
    module = Loss(narrow(model)).train(mode == "training")
    batches = [batch_of(model, size) for size in SIZES]
    same = batches[:1] * len(batches)
    static = microseconds(step_of(module, mode, dynamic=False), same, repeats)
    step = step_of(module, mode, dynamic=True)
    thresholds, shape_cache.SHAPES = shape_cache.SHAPES, replace(shape_cache.SHAPES, calls=sys.maxsize)
    unprepared = microseconds(step, batches, repeats)
    shape_cache.SHAPES = thresholds
    for batch in batches * thresholds.calls:
        step(batch)
    dynamic = microseconds(step, same, repeats)
    changing = microseconds(step, batches, repeats)
    pairs = (static, dynamic, changing, unprepared)
    return f"{model} {mode:10}" + "".join(f"{call:9.0f} {program:8.0f}" for call, program in pairs)


def main() -> int:
    import idle_gpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llama,gpt2,bert,vit,resnet50")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--repeats", type=int, default=30)
    plan = parser.parse_args()
    torch.set_num_threads(1)
    import ferrite_torch  # noqa: F401
    from ferrite_runtime.loading import loaded_program

    idle_gpu.install()
    loaded_program.choose_engine = lambda *given: Recorder(idle_gpu.idle_engine(*given))
    print(f"{'':16}" + "".join(f"{name:>18}" for name in ("static", "dynamic", "changing", "unprepared")))
    print(f"{'':16}" + f"{'call':>9} {'program':>8}" * 4)
    for model in plan.models.split(","):
        for mode in plan.modes.split(","):
            print(measure(model, mode, plan.repeats), flush=True)
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
