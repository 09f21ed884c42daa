"""Products in groups and layers of experts, forward and with gradients: eager, Inductor and Ferrite side by side.

    python benchmarks/models/grouped_products.py
    python benchmarks/models/grouped_products.py --cases layer --rounds 3

A layer of experts routes each token to some of them: `torch._grouped_mm` with two gates, their product, and back, times
the token's share, added up; in bfloat16. Eager mode is the library's. ``ferrite-own-first`` multiplies groups of any
length itself, ``ferrite`` those with few rows. Results of a backend are compared with eager mode's before anything is
timed; calls are queued while the device waits, so that the host's time does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.side_by_side import Contender, compare, keep_record, parser_of, require_errors, whole_graph
from benchmarks.tools.timing import machine_name, time_launches

MOST = 0.03
"""The largest error, of the largest element, beside eager mode's result: three roundings to bfloat16 of numbers that
are added up."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Experts, tokens, experts of a token, width, and width inside of an expert."""

    experts: int
    tokens: int
    chosen: int
    width: int
    inner: int


LAYERS = {
    "layer 64x24576x2048x1408": Sizes(64, 4096, 6, 2048, 1408),
    "layer 8x8192x2048x4096": Sizes(8, 4096, 2, 2048, 4096),
    "layer 128x512x2048x768": Sizes(128, 64, 8, 2048, 768),
}
"""Experts x rows x width x inner width."""
PRODUCTS = {
    "rows 64x24576x2048x1408": Sizes(64, 4096, 6, 2048, 1408),
    "rows 8x8192x4096x14336": Sizes(8, 4096, 2, 4096, 14336),
    "rows 128x32768x2048x768": Sizes(128, 4096, 8, 2048, 768),
    "rows 64x384x2048x1408": Sizes(64, 64, 6, 2048, 1408),
    "rows 128x512x2048x768": Sizes(128, 64, 8, 2048, 768),
}
CASES = {f"{name}{way}": sizes for name, sizes in LAYERS.items() for way in ("", " with gradients")} | PRODUCTS


def layer(x: Tensor, up: Tensor, gate: Tensor, down: Tensor, token: Tensor, share: Tensor, ends: Tensor) -> Tensor:
    """Returns what the experts of each token make of it; ``token`` and ``share`` are of rows in the experts' order."""
    rows = x[token]
    inside = F.silu(torch._grouped_mm(rows, up, offs=ends)) * torch._grouped_mm(rows, gate, offs=ends)
    return torch.zeros_like(x).index_add(0, token, torch._grouped_mm(inside, down, offs=ends) * share[:, None])


def product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(rows, weights, offs=ends)


def inputs_of(name: str, device: str) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
    """Returns a function, what it takes that may have gradients, and the rest; the same for all backends."""
    sizes = CASES[name]
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * scale).bfloat16()

    up, gate = (drawn(sizes.experts, sizes.width, sizes.inner, scale=sizes.width**-0.5) for _ in range(2))
    x, router = drawn(sizes.tokens, sizes.width), drawn(sizes.experts, sizes.width, scale=sizes.width**-0.5)
    share, chosen = (x @ router.t()).float().softmax(-1).topk(sizes.chosen, -1)
    order = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=sizes.experts).cumsum(0).int()
    token = order // sizes.chosen
    if name in PRODUCTS:
        return product, [x[token], up], [ends]
    down = drawn(sizes.experts, sizes.inner, sizes.width, scale=sizes.inner**-0.5)
    return layer, [x, up, gate, down], [token, share.flatten()[order].bfloat16(), ends]


def contender(name: str, plan: argparse.Namespace) -> tuple[Contender, Callable[[], list[Tensor]]]:
    """Returns a backend with its results compared with eager mode's, and its step."""
    function, given, rest = inputs_of(plan.case, plan.device)
    trains = plan.case.endswith("gradients")
    given = [each.requires_grad_(trains) for each in given]
    compiled = compile_with(name, function, dynamic=False, **whole_graph(name))

    def results(call: Callable[..., Tensor]) -> list[Tensor]:
        out = call(*given, *rest)
        return [out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))] if trains else [out]

    began = time.perf_counter()
    mine, found = results(compiled), Contender(name)
    found.first_seconds = time.perf_counter() - began
    pairs = zip(mine, results(function), strict=True)
    found.error = max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in pairs)
    found.work = count_work(name)
    return found, lambda: results(compiled)


def check(found: list[Contender]) -> None:
    """Fails where results of ours are off.

    Raises:
        SystemExit: they are.
    """
    require_errors(found, MOST, "a result")


def report(name: str, found: list[Contender]) -> str:
    """Returns a line: microseconds of all backends, and the largest error of any."""
    cells = "".join(f"{each.name:>20} {1e3 * statistics.median(each.times):8.1f}" for each in found)
    return f"{name:40}{cells}   error {max(each.error for each in found):.4f}"


def main() -> int:
    parser = parser_of(__doc__, 5)
    parser.set_defaults(backends=["inductor", "ferrite", "ferrite-own-first"])
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of names")
    plan = parser.parse_args()
    print(machine_name(plan.device), "- microseconds", flush=True)
    record = {}
    for name in CASES:
        if any(part in name for part in plan.cases):
            plan.case = name
            found = compare(plan, contender, check, time_launches, plan.device)
            print(report(name, found), flush=True)
            record[name] = found
    keep_record(plan, "grouped-products", rows=record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
