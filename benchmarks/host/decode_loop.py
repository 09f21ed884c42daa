"""Measures what a loop on the host adds to the launches of its turns: 64 decode steps under one ``while_loop``.

    python benchmarks/host/decode_loop.py                  # a GPU
    python benchmarks/host/decode_loop.py --device cpu     # a GPU that does nothing; results are not checked

A decoder of two layers takes the likeliest token 64 times. Position, token, caches of keys and values and the tokens
so far are carried; the position is an integer, so that no turn asks the device. After tokens of 64 turns are compared,
a turn of the loop takes the difference of loops of 24 and of 8 turns, a step of the same steps unrolled, one after
the other that of 12 and of 4; what the first is longer than the second is what the loop adds. Times are the host's, on
an idle device, without waiting for it: the fastest of several calls, as what else the machine does only adds, in turns.
Loops are that short because a GPU's queue holds about 1,000 launches: with 26 in a turn the host of 64 turns waits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tools.tree import add_packages_to_path, results_folder
from benchmarks.tools.turns import Turn

WIDTHS = {"cuda": 256, "cpu": 16}
"""By device: without a GPU products run on the host, and are to take next to nothing."""
HEADS, LAYERS, VOCABULARY, LENGTH = 4, 2, 512, 64
ALL = 64
TURNS, UNROLLED = (8, 24), (4, 12)
MOST = 30.0
"""Microseconds that a turn may take the host beside its launches."""
State = tuple[Any, Tensor, Tensor, Tensor]


class Decoder(nn.Module):
    """One decode step of a small decoder: takes and returns position, token, caches and the tokens so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.mixes = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(LAYERS))
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.inners = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, position: Any, token: Tensor, caches: Tensor, found: Tensor) -> State:
        width, steps = self.width, torch.arange(LENGTH, device=token.device)
        is_now = steps == position
        x = self.tokens(token) + (self.places.weight * is_now[:, None]).sum(0)
        kept = []
        for layer in range(LAYERS):
            mixed = self.mixes[layer](F.layer_norm(x, (width,))).view(3, HEADS, 1, width // HEADS)
            cache = torch.where(is_now[:, None], mixed[1:], caches[layer])
            scores = (mixed[0] * cache[0]).sum(-1) / (width // HEADS) ** 0.5
            shares = torch.where(steps <= position, scores, -torch.inf).softmax(-1)
            x = x + self.outputs[layer]((shares[..., None] * cache[1]).sum(1).view(1, width))
            x = x + self.inners[layer](F.layer_norm(x, (width,)))
            kept.append(cache)
        chosen = self.head(F.layer_norm(x, (width,))).argmax(-1)
        return position + 1, chosen, torch.stack(kept), torch.where(is_now, chosen, found)


def loop(model: Decoder, turns: int) -> Callable[..., State]:
    """Returns a function of so many steps under one ``while_loop``."""

    def decode(token: Tensor, caches: Tensor, found: Tensor) -> State:
        return torch._higher_order_ops.while_loop(
            lambda position, *_: position < turns, model, (0, token, caches, found)
        )

    return decode


def unrolled(model: Decoder, steps: int) -> Callable[..., State]:
    """Returns a function of so many steps, one after the other."""

    def decode(token: Tensor, caches: Tensor, found: Tensor) -> State:
        state: State = (0, token, caches, found)
        for _ in range(steps):
            state = model(*state)
        return state

    return decode


def inputs(device: str, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first token, empty caches, and a place for the tokens that are found."""
    caches = torch.zeros(LAYERS, 2, HEADS, LENGTH, width // HEADS, device=device)
    return (
        torch.zeros(1, dtype=torch.int64, device=device),
        caches,
        torch.zeros(LENGTH, dtype=torch.int64, device=device),
    )


def host_microseconds(function: Callable[..., State], given: tuple[Tensor, ...]) -> float:
    """Returns the host's microseconds for a call; the device has nothing to do when it begins."""
    if given[0].is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    function(*given)
    return (time.perf_counter() - began) * 1e6


def checked(function: Callable[..., State], steps: int, plan: Any) -> Callable[..., State]:
    """Returns a function of so many steps, compiled.

    Raises:
        SystemExit: its tokens are not those of eager mode.
    """
    given = inputs(plan.device, plan.model.width)
    options = {"fallback": False}
    compiled = torch.compile(function, backend="ferrite", fullgraph=True, dynamic=False, options=options)
    found = compiled(*given)
    if plan.device == "cuda" and not torch.equal(found[3], unrolled(plan.model, steps)(*given)[3]):
        raise SystemExit(f"{steps} steps find other tokens than eager mode")
    return compiled


def measured(plan: Any) -> tuple[float, float]:
    """Returns the host's microseconds for one turn more of the loop, and for one unrolled step more."""
    counts = (*TURNS, *UNROLLED)
    makes = [loop] * len(TURNS) + [unrolled] * len(UNROLLED)
    functions = [checked(make(plan.model, count), count, plan) for make, count in zip(makes, counts, strict=True)]
    given = inputs(plan.device, plan.model.width)
    turn = Turn(plan.lock)
    turn.take()
    for function in functions * 3:
        function(*given)
    times = [[host_microseconds(function, given) for function in functions] for _ in range(plan.calls)]
    turn.end()
    fastest = [min(each) for each in zip(*times, strict=True)]
    few, many, fewest, most = fastest
    return (many - few) / (TURNS[1] - TURNS[0]), (most - fewest) / (UNROLLED[1] - UNROLLED[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--calls", type=int, default=50, help="calls of each function, of which the fastest counts")
    parser.add_argument("--lock", type=Path, help="a file; processes that name it time one after the other")
    parser.add_argument("--out", type=Path, default=results_folder())
    plan = parser.parse_args()
    add_packages_to_path()
    import ferrite_torch

    if plan.device == "cpu":
        import idle_gpu

        idle_gpu.install()
    torch.manual_seed(0)
    plan.model = Decoder(WIDTHS[plan.device]).to(plan.device)
    with torch.no_grad():
        checked(loop(plan.model, ALL), ALL, plan)
        steps = [step for program in ferrite_torch.compiled_programs() for step in program["steps"]]
        if not any(step["do"] == "while" for step in steps):
            raise SystemExit("the loop is no step of its program")
        turn, step = measured(plan)
    print(f"a turn of the loop {turn:.1f} us of the host, an unrolled step {step:.1f} us")
    print(f"the loop adds {turn - step:.1f} us an iteration to its launches (at most {MOST:.0f})")
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "decode-loop.json").write_text(json.dumps({"turn_us": turn, "step_us": step}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
