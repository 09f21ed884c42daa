"""Measures what each part of a training step costs the host: dynamo, AOTAutograd, our programs, autograd's engine.

    python benchmarks/host/training_host.py --models bert,gpt2 --graphs

Needs no GPU: kernels are launched on one that does nothing (`idle_gpu.py`), products of matrices are empty functions,
and with ``--graphs`` programs are played as CUDA graphs that hold nothing. Other library calls, attention among them,
run on the host, so models are narrow; what they take is in the parts of our programs. A step has no optimizer:

    guards         from the call of the model to that of the compiled graph: dynamo's guards, its frame, its arguments
    to forward     AOTAutograd's wrapper, and the node of autograd: one edge for each parameter
    forward        our program
    saving         what AOTAutograd and autograd do with results and saved tensors
    return         to the caller
    to backward    autograd's engine, saved tensors, what AOTAutograd and we look at
    backward       our program
    accumulation   the engine's task for each parameter
    dropping       `parameter.grad = None`

All are microseconds of processor time: of each part what a tenth of many steps stays below, as others that use the
processor only add to it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

from benchmarks.host.dynamic_host import LAYERS, batch_of, narrow
from benchmarks.host.idle_gpu import empty_function, idle_engine, install
from benchmarks.tools.tree import add_packages_to_path

PARTS = (
    "guards",
    "to forward",
    "forward",
    "saving",
    "return",
    "to backward",
    "backward",
    "accumulation",
    "dropping",
)
WARM_STEPS = 50


class Marks(list[int]):
    """The processor times of the thread, in nanoseconds, at which one part of a step ends and the next one begins."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that notes when it is entered and left."""

        @functools.wraps(function)
        def marked(*arguments: Any) -> Any:
            self.append(time.thread_time_ns())
            results = function(*arguments)
            self.append(time.thread_time_ns())
            return results

        return marked


MARKS = Marks()


def empty_products() -> None:
    """Makes products of matrices that native code calls return at once."""
    from ferrite_runtime.host import product_library

    _, address = empty_function()
    theirs = product_library._address

    def address_of(library: Any, name: str) -> int:
        found = theirs(library, name)
        return address if found and name.endswith("_out") else found

    product_library._address = address_of


def graphed() -> None:
    """Has all programs played as CUDA graphs, which hold nothing and are played at once."""
    from ferrite_runtime.engines.cuda_graphs import graphed_host
    from ferrite_runtime.engines.graph_recorder import Recorder
    from ferrite_runtime.loading.loaded_program import LoadedProgram

    def dispatch(self: Any, args: list[Any]) -> Any:
        device = self._choose_device(args)
        results = self._engine.first(device)(args)
        host = self._engine.steady(device, self._dispatch)

        def build(section: Any) -> Any:
            return self._engine.of_section(section).steady(device, self._dispatch)

        recorder = Recorder(lambda run, pool: (run(), lambda: None))
        least = self.options.cuda_graph_launches
        self._run = graphed_host(self.program, host, build, device, recorder, least, self.lending)
        return results

    LoadedProgram._dispatch = dispatch  # type: ignore[method-assign]


def mark_programs() -> None:
    """Notes when our programs are entered and left."""
    from ferrite_runtime.loading.loaded_program import LoadedProgram

    LoadedProgram.call_boxed = MARKS.around(LoadedProgram.call_boxed)  # type: ignore[method-assign]


def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Compiles by ours, and notes when the compiled graph is entered and left."""
    from ferrite_torch.backend import ferrite

    return MARKS.around(ferrite(module, inputs, options={"fallback": False}))


def step_of(module: Callable[..., Any], parameters: list[nn.Parameter], batch: tuple[Any, ...]) -> Callable[[], None]:
    def step() -> None:
        MARKS.append(time.thread_time_ns())
        loss = module(*batch)
        MARKS.append(time.thread_time_ns())
        loss.backward()
        MARKS.append(time.thread_time_ns())
        for parameter in parameters:
            parameter.grad = None
        MARKS.append(time.thread_time_ns())

    return step


def measure(model: str, layers: int, steps: int) -> list[float]:
    """Returns the microseconds of each of `PARTS`, and of the whole step."""
    from benchmarks.models.workloads import Loss

    torch.manual_seed(0)
    torch._dynamo.reset()
    module = Loss(narrow(model, layers)).train()
    step = step_of(
        torch.compile(module, backend=backend, dynamic=False), list(module.parameters()), batch_of(model, (1, 16))
    )
    rows: list[list[float]] = []
    for number in range(WARM_STEPS + steps):
        MARKS.clear()
        step()
        spans = [end - begin for begin, end in itertools.pairwise(MARKS)]
        if number >= WARM_STEPS:
            assert len(spans) == len(PARTS), "the step is one graph, with a forward and a backward"
            rows.append([*spans, MARKS[-1] - MARKS[0]])
    return [statistics.quantiles(column, n=10)[0] / 1e3 for column in zip(*rows, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bert,gpt2,vit,resnet50,llama")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--graphs", action="store_true", help="play programs as CUDA graphs")
    plan = parser.parse_args()
    torch.set_num_threads(1)
    import ferrite_torch  # noqa: F401
    from ferrite_runtime.loading import loaded_program

    install()
    loaded_program.choose_engine = idle_engine
    empty_products()
    if plan.graphs:
        graphed()
    mark_programs()
    print(f"{'':10}" + "".join(f"{name:>13}" for name in (*PARTS, "step")))
    for model in plan.models.split(","):
        print(
            f"{model:10}" + "".join(f"{found:13.1f}" for found in measure(model, plan.layers, plan.steps)), flush=True
        )
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
