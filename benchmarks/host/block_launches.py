"""Counts what kernels a training step of a GPT launches, and their bytes, as it is and with repeated blocks.

    python benchmarks/host/block_launches.py                    # 4 and 8 layers, 8 rows of 512 tokens, bfloat16
    python benchmarks/host/block_launches.py --layers 12 --drop 0.1

Needs no GPU: kernels are compiled for one that does nothing (`idle_gpu.py`), and library calls run on the host. Bytes
are what each kernel reads and writes at least, as its program says. Attention is that of the host.

A call of a region counts with all that it launches. Of two numbers of layers it is also said what a further layer adds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path

WAYS = ("whole", "blocks")


def launched(program: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many kernels a call of a program launches, and the bytes that these read and write."""
    graphs = {graph["name"]: graph["steps"] for graph in program.get("graphs", ())}
    kernels = {kernel["id"]: kernel["facts"]["bytes"] for kernel in program["kernels"]}

    def of(steps: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        count = total = 0
        for step in steps:
            if step["do"] == "launch":
                count, total = count + 1, total + kernels[step["kernel"]]
            elif step["do"] == "call":
                inside = of(graphs[step["graph"]])
                count, total = count + inside[0], total + inside[1]
        return count, total

    return of(program["steps"])


def count(layers: int, way: str, drop: float) -> list[tuple[int, int]]:
    """Returns what a forward and a backward through so many layers launch."""
    import torch

    import ferrite_torch
    from benchmarks.models.gpt import GPT

    torch.manual_seed(0)
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    model = GPT(layers, 768).bfloat16()
    for block in model.blocks:
        block.attention.output = torch.nn.Sequential(block.attention.output, torch.nn.Dropout(drop))
        block.inner.append(torch.nn.Dropout(drop))
    options = {"fallback": False, "use_cache": False, "repeat_blocks": way == "blocks", "tune": "none"}
    tokens = torch.randint(0, 512, (8, 512))
    torch.compile(model, backend="ferrite", options=options)(tokens).float().square().mean().backward()
    return [launched(program) for program in ferrite_torch.compiled_programs()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="4,8", help="numbers of layers, the fewest first")
    parser.add_argument("--drop", type=float, default=0.0, help="of dropout at the end of both branches of a layer")
    plan = parser.parse_args()
    from benchmarks.host.idle_gpu import install

    install()
    layers = [int(part) for part in plan.layers.split(",")]
    for way in WAYS:
        found = [count(number, way, plan.drop) for number in layers]
        for number, parts in zip(layers, found, strict=True):
            show(way, f"{number} layers", parts)
        if len(layers) > 1:
            more = layers[-1] - layers[0]
            pairs = zip(found[0], found[-1], strict=True)
            show(way, "a layer", [((b[0] - a[0]) / more, (b[1] - a[1]) / more) for a, b in pairs])
    return 0


def show(way: str, what: str, parts: Sequence[tuple[float, float]]) -> None:
    """Prints launches and bytes of a forward and a backward."""
    cells = [
        f"{name} {count:g} launches, {size / 2**20:.1f} MiB"
        for name, (count, size) in zip(("forward", "backward"), parts, strict=True)
    ]
    print(f"{way:8}{what:12}{'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
