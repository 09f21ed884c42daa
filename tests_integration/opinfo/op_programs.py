"""Samples compiled as one program, without dynamo's part: what follows dynamo is all the same.

Dynamo gives the backend a graph of the functions that it saw called. Such a graph is made here by hand, one node a
call, so that many calls cost one compilation. That dynamo sees the same calls is checked once for each operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import ferrite_torch
from ferrite_torch.diagnostics.statistics import compiled_graphs
from op_calls import Call, twin

if TYPE_CHECKING:
    from op_samples import Sample

OPTIONS = {"fallback": False, "verify": True, "tune": "none", "workers": 0}
"""Every refusal is seen, both levels of the graph are checked, and a kernel compiles once, in this process."""

MOST_RECOMPILED = 64
"""Calls differ in more than sizes: each kind of them is compiled."""

Runner = Callable[[], list[list[Any]]]
"""Makes all calls on fresh copies of their tensors; returns for each what `Sample.results` holds of eager."""


def compile_forward(samples: Sequence[Sample]) -> Runner:
    """Returns the calls of some samples as one compiled program.

    Raises:
        FerriteError: the backend refuses.
    """
    with torch.no_grad():
        compiled = compile_calls([s.call for s in samples], [s.count for s in samples], [False for _ in samples])

    def run() -> list[list[Any]]:
        with torch.no_grad():
            tensors = [[twin(x.detach()) for x in sample.call.tensors] for sample in samples]
            return [[*some, *given] for some, given in zip(compiled(tensors), tensors, strict=True)]

    return run


def compile_training(samples: Sequence[Sample]) -> Runner:
    """Returns the calls of some samples, and the gradients of their results, as compiled programs."""
    from op_samples import gradients

    compiled = compile_calls([s.call for s in samples], [s.count for s in samples], [True for _ in samples])

    def run() -> list[list[Any]]:
        tensors = [[twin(x) for x in sample.call.tensors] for sample in samples]
        results = compiled(tensors)
        found = iter(gradients(results, tensors, [sample.chosen for sample in samples]))
        return [
            [*(x.detach() for x in some), *(next(found) for _ in given)]
            for some, given in zip(results, tensors, strict=True)
        ]

    return run


def compile_dynamo(samples: Sequence[Sample]) -> Runner:
    """Returns the calls of some samples compiled one by one, as users do it: what is not supported runs eagerly."""
    torch._dynamo.reset()
    options = {**OPTIONS, "fallback": True}
    compiled = [torch.compile(_plain(s.call.function), backend=ferrite_torch.ferrite, options=options) for s in samples]
    return _called_through(compiled, samples)


def compile_dynamic(samples: Sequence[Sample]) -> Runner:
    """Returns the calls of some samples through one function for all of them, whose sizes are symbolic."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = MOST_RECOMPILED
    options = {**OPTIONS, "fallback": True}
    functions = {
        s.call.function: torch.compile(
            _plain(s.call.function), backend=ferrite_torch.ferrite, dynamic=True, options=options
        )
        for s in samples
    }
    return _called_through([functions[sample.call.function] for sample in samples], samples)


def _called_through(compiled: Sequence[Callable[..., Any]], samples: Sequence[Sample]) -> Runner:
    def run() -> list[list[Any]]:
        results = []
        with torch.no_grad():
            for sample, function in zip(samples, compiled, strict=True):
                tensors = [twin(x.detach()) for x in sample.call.tensors]
                args, kwargs = sample.call.arguments(*tensors)
                results.append([*sample.call.tensors_in(function(*args, **kwargs)), *tensors])
        return results

    return run


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return program


def compile_calls(
    calls: Sequence[Call], lengths: Sequence[int], trains: Sequence[bool]
) -> Callable[[Sequence[Sequence[Tensor]]], list[list[Tensor]]]:
    """Returns a function of the tensors of each call that makes all calls in one compiled program.

    ``lengths`` are the numbers of tensors that the calls return.
    """
    graph = torch.fx.Graph()
    inputs = [[graph.placeholder(f"c{n}_t{k}") for k in range(len(call.tensors))] for n, call in enumerate(calls)]
    results: list[Any] = []
    for n, call in enumerate(calls):
        node = graph.call_function(_named(call.run, f"call_{n}"), tuple(inputs[n]))
        results += [graph.call_function(_item, (node, k)) for k in range(lengths[n])]
    graph.output(tuple(results))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    examples = [
        twin(x) if train else twin(x.detach()) for call, train in zip(calls, trains, strict=True) for x in call.tensors
    ]
    with tracing(TracingContext(FakeTensorMode())):
        compiled = ferrite_torch.ferrite(module, examples, options=OPTIONS)

    def run(tensors: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        flat = list(compiled(*[x for some in tensors for x in some]))
        ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
        return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    return run


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*tensors: Any) -> Any:
        return function(*tensors)

    call.__name__ = call.__qualname__ = name
    return call


def _item(values: Sequence[Any], position: int) -> Any:
    return values[position]


@dataclass(slots=True)
class Work:
    """What the backend made of some calls: graphs, kernel launches, and extern calls with their reasons."""

    graphs: int = 0
    kernels: int = 0
    externs: dict[str, str] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)


@contextmanager
def observed() -> Iterator[Work]:
    """Fills in, at its end, what the backend compiled inside it."""
    ferrite_torch.reset_statistics()
    work = Work()
    yield work
    for record in compiled_graphs():
        work.graphs += 1
        work.kernels += sum(step["do"] == "launch" for step in record.program["steps"])
        work.externs.update(record.externs)
    work.fallbacks = list(ferrite_torch.statistics()["fallbacks"])


class Dispatched(TorchDispatchMode):
    """Notes which aten ops a call dispatches to, and whether any of them draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.is_random = False

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function, with what its calls dispatch to noted."""

        def watched(*args: Any) -> Any:
            with self:
                return function(*args)

        return watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(func)] += 1
        self.is_random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
