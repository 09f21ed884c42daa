"""The loss of a language model without its logits in memory: eager, Inductor and Ferrite side by side.

    python benchmarks/models/chunked_losses.py
    python benchmarks/models/chunked_losses.py --shapes 1024x512x32000 --rounds 3

The end of a causal model as model libraries write it: a norm, a linear layer over the vocabulary, labels shifted by one
token of which some are ignored, cross entropy of float32 logits; forward and backward, in bfloat16. Ferrite computes it
in chunks of rows (decision 0070); ``ferrite-logits`` is Ferrite with that turned off: separate kernels, and logits in
memory. Gradients of the hidden states and of the layer are compared with those of float32, a thousand rows at a time,
before anything is timed. Memory is the peak of a step beyond parameters, inputs and gradients.

What is asked: at most a third of the memory of the logits, at most 1.12 times the time of separate kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.side_by_side import Contender, compare, keep_record, parser_of, require_errors, whole_graph
from benchmarks.tools.timing import machine_name, time_launches

SHAPES = ("4096x4096x128256", "8192x4096x151936")
"""Rows, width of the hidden states, and vocabulary."""
IGNORED = -100
MOST_MEMORY, MOST_TIME = 1 / 3, 1.12
MOST = 1.5
"""How many times eager mode's error (l2, against float32) that of a gradient may be: roundings are at other places."""
SEPARATE, OURS = "ferrite-logits", "ferrite"
PART = 1024
"""Rows of float32 logits that the reference has at once."""


class Head(nn.Module):
    """The end of a causal language model, with its loss."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.norm(hidden)).float()
        shifted = shifted_labels(labels)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), shifted, ignore_index=IGNORED)


def shifted_labels(labels: Tensor) -> Tensor:
    """Returns for each token the next one, as one vector."""
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)


def made(shape: str, device: str) -> tuple[Head, Tensor, Tensor]:
    """Returns a model, hidden states that have a gradient, and labels; the same for all backends."""
    rows, width, vocabulary = map(int, shape.split("x"))
    torch.manual_seed(0)
    with torch.device(device):
        model = Head(width, vocabulary).bfloat16()
        hidden = torch.randn(2, rows // 2, width).bfloat16().requires_grad_()
        labels = torch.randint(0, vocabulary, (2, rows // 2))
    with torch.no_grad():
        model.head.weight.normal_(0, 0.02)
    labels[:, : rows // 16] = IGNORED
    return model, hidden, labels


def expected_gradients(model: Head, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the hidden states and of the layer in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    states, weight = hidden.detach().float().requires_grad_(), model.head.weight.detach().float()
    normed = F.rms_norm(states, states.shape[-1:], model.norm.weight.detach().float(), 1e-6).flatten(0, 1)
    shifted = shifted_labels(labels)
    count = int((shifted != IGNORED).sum())
    slopes, of_weight = [], torch.zeros_like(weight)
    for rows, label in zip(normed.detach().split(PART), shifted.split(PART), strict=True):
        logits = (rows @ weight.t()).requires_grad_()
        loss = F.cross_entropy(logits, label, ignore_index=IGNORED, reduction="sum") / count
        (change,) = torch.autograd.grad(loss, logits)
        slopes.append(change @ weight)
        of_weight.addmm_(change.t(), rows)
    (of_states,) = torch.autograd.grad(normed, states, torch.cat(slopes))
    return of_states, of_weight


def contender(name: str, plan: argparse.Namespace) -> tuple[Contender, Callable[[], Tensor]]:
    """Returns a backend with its gradients compared, its first steps taken, and their peak."""
    model, hidden, labels = made(plan.shape, plan.device)
    compiled = compile_with(name, model, **whole_graph(name))

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        hidden.grad = None
        loss: Tensor = compiled(hidden, labels)
        loss.backward()
        return loss.detach()

    began = time.perf_counter()
    found = Contender(name, loss=float(step()))
    found.first_seconds = time.perf_counter() - began
    pairs = zip((hidden.grad, model.head.weight.grad), expected_gradients(model, hidden, labels), strict=True)
    found.error = max(float((mine.float() - exact).norm() / exact.norm()) for mine, exact in pairs if mine is not None)
    step()
    found.peak = peak_of(step, (hidden, *model.parameters()))
    found.work = count_work(name)
    return found, step


def peak_of(step: Callable[[], Tensor], leaves: tuple[Tensor, ...]) -> int:
    """Returns the bytes at the peak of a step beyond what lay there before and the gradients that it leaves."""
    for leaf in leaves:
        leaf.grad = None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    left = sum(leaf.grad.nbytes for leaf in leaves if leaf.grad is not None)
    return torch.cuda.max_memory_allocated() - before - left


def check(found: list[Contender]) -> None:
    """Fails where gradients of ours are off.

    Raises:
        SystemExit: they are.
    """
    require_errors(found, MOST * found[0].error, "a gradient")


def report(shape: str, found: list[Contender]) -> str:
    """Returns a table of all backends at a shape."""
    rows, _, vocabulary = map(int, shape.split("x"))
    logits = 2 * rows * vocabulary
    lines = [f"{shape}: logits {logits / 2**20:.0f} MiB"]
    lines += [f"  {'backend':16}{'ms':>9}{'peak MiB':>10}{'of logits':>10}{'error':>10}{'first s':>9}"]
    for each in found:
        ms, peak = statistics.median(each.times), each.peak
        row = f"  {each.name:16}{ms:9.2f}{peak / 2**20:10.0f}{peak / logits:10.3f}"
        lines.append(f"{row}{each.error:10.1e}{each.first_seconds:9.1f}")
    named = {each.name: each for each in found}
    if {OURS, SEPARATE} <= named.keys():
        ours, separate = (statistics.median(named[name].times) for name in (OURS, SEPARATE))
        memory = f"{named[OURS].peak / logits:.3f} of the logits' memory (at most {MOST_MEMORY:.2f})"
        lines.append(f"  {memory}, {ours / separate:.3f} of the time of separate kernels (at most {MOST_TIME})")
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__, 5)
    parser.set_defaults(backends=["inductor", SEPARATE, OURS])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="rows x width x vocabulary")
    plan = parser.parse_args()
    print(machine_name(plan.device))
    record = {}
    for shape in plan.shapes:
        plan.shape = shape
        found = compare(plan, contender, check, time_launches, plan.device)
        print(report(shape, found), flush=True)
        record[shape] = found
    keep_record(plan, "chunked-losses", rows=record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
