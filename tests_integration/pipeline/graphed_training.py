"""Training of a module and its compiled copy, with programs that are played as CUDA graphs on the CPU.

Graphs are played by running again, to and from the addresses of the capture, as a graph does.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ferrite_runtime import LoadedProgram, Program
from ferrite_runtime.engines import graph_recorder
from ferrite_runtime.engines.cuda_graphs import GraphedProgram, graphed_host
from ferrite_runtime.engines.lent_memory import memory_of

CPU = torch.device("cpu")


def at_address(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor over the same memory that does not hold it."""
    storage = tensor.untyped_storage()
    memory = torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def capture(run: Callable[[], tuple[Any, ...]], pool: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """Plays by running again; what a program lends is read at its address, and everything that is made lost before."""
    held = inspect.getclosurevars(run).nonlocals["held"]
    fixed = list(map(at_address, held))

    def again() -> tuple[Any, ...]:
        held[:], kept = fixed, list(held)
        try:
            return run()
        finally:
            held[:] = kept

    places = list(map(at_address, held))  # a graph writes there, and no version counts it
    before = [each.clone() for each in places]
    results = again()
    for place, kept in zip(places, before, strict=True):
        place.copy_(kept)
    own = {memory_of(each) for each in results} - {memory_of(each) for each in fixed}

    def replay() -> None:
        for old in results:
            if memory_of(old) in own:
                at_address(old).fill_(float("nan") if old.is_floating_point() else 0)
        for old, new in zip(results, again(), strict=True):
            if old.data_ptr() != new.data_ptr():
                at_address(old).copy_(new)

    return results, replay


def on_gpu(program: Program) -> Program:
    """Returns a program as if its tensors lay on a GPU."""
    mapping = program.to_mapping()
    inputs = [{**each, **({"device": "cuda"} if "device" in each else {})} for each in mapping["inputs"]]
    return Program.from_mapping({**mapping, "device": "cuda", "inputs": inputs})


class Graphs(list[GraphedProgram]):
    """The programs that were graphed; those of sizes are among them."""

    @property
    def played(self) -> int:
        return sum(each.played for each in self)

    @property
    def from_host(self) -> int:
        return sum(each.from_host for each in self)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """Has all programs played as graphs from the third call on."""
    found, hooked = Graphs(), torch._C._autograd._top_saved_tensors_default_hooks
    recorder = graph_recorder.Recorder(capture, is_hooked=lambda: hooked(True) is not None)
    theirs = GraphedProgram.__init__

    def note(self: GraphedProgram, *arguments: Any) -> None:
        theirs(self, *arguments)
        found.append(self)

    def dispatch(self: LoadedProgram, args: list[Any]) -> tuple[Any, ...]:
        host = self._engine.first(CPU)
        made = on_gpu(self.program)

        def build(section: Program) -> Any:
            return self._engine.of_section(section).first(CPU)

        self._run = graphed_host(made, host, build, CPU, recorder, 1, self.lending)
        return host(args)

    monkeypatch.setattr(GraphedProgram, "__init__", note)
    monkeypatch.setattr(LoadedProgram, "_dispatch", dispatch)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))).sin())


class Pair:
    """A module and its copy, which is compiled: what one does the other does, and gradients are compared."""

    def __init__(self, make: Callable[[], nn.Module] = Layer) -> None:
        torch.manual_seed(0)
        self.eager, self.ours = make(), make()
        self.ours.load_state_dict(self.eager.state_dict())
        self.compiled: Any = torch.compile(self.ours, backend="ferrite", options={"fallback": False})
        self.optimizers = [torch.optim.AdamW(each.parameters(), 1e-2) for each in (self.eager, self.ours)]

    def each(self, do: Callable[[Any], Any]) -> None:
        """Does something with both, and compares what it returns and the gradients."""
        expected, found = do(self.eager), do(self.compiled)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        for one, other in zip(self.eager.parameters(), self.ours.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-5)

    def step(self) -> None:
        for each in self.optimizers:
            each.step()
            each.zero_grad(set_to_none=True)


def train(pair: Pair, count: int, rows: int = 4, *, wants: bool = False) -> None:
    kept = [torch.randn(rows, 8, requires_grad=wants) for _ in range(count)]  # none lies where another one did
    for x in kept:
        pair.each(lambda module, x=x: backward(module(x)))
        pair.step()


def backward(y: torch.Tensor, **given: Any) -> torch.Tensor:
    y.square().sum().backward(**given)
    return y.detach()


def saved_memory(graphs: Graphs) -> int:
    """Returns how many storages are lent and held."""
    return sum(each.is_held() for program in graphs for each in program.generations.values())
