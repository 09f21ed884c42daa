"""Finds the extern calls of a program that native code can start: matrix products on tensors of its device."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from ferrite_runtime.formats.call_steps import Call, If
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Alloc, Extern, Reuse, Step, Tagged, View
from ferrite_runtime.host.extern_calls import LOCAL_RESULTS
from ferrite_runtime.host.native_products import Product, place_of, product_of


@dataclass(frozen=True, slots=True)
class Multiply:
    """Computes a matrix product into a buffer; stands for an extern step, and is never part of a stored program."""

    product: Product
    result: str


HostStep: TypeAlias = "Step | Multiply"


def with_products(program: Program, targets: AbstractSet[str]) -> tuple[HostStep, ...]:
    """Returns the steps of a program, each extern call that native code can start as an allocation and a `Multiply`.

    What is written to a tensor that is there needs no allocation.

    Args:
        program: the program.
        targets: the extern calls that native code knows.
    """
    positions = _TensorLocations.of(program, targets, {})
    return tuple(step for original in program.steps for step in positions.rewritten(original))


@dataclass(slots=True)
class _TensorLocations:
    """What is known of a program's tensors while its steps are walked.

    ``local`` names those on the program's device, and ``layouts`` says how these lie, as far as it is known. Of graphs
    that steps have called ``returned`` says the same of what they return; None where it is not known. ``targets`` are
    the extern calls that native code knows.
    """

    program: Program
    targets: AbstractSet[str]
    returned: dict[str, Sequence[Layout | None]]
    local: set[str] = field(default_factory=set)
    layouts: dict[str, Layout] = field(default_factory=dict)

    @classmethod
    def of(
        cls, program: Program, targets: AbstractSet[str], returned: dict[str, Sequence[Layout | None]]
    ) -> _TensorLocations:
        """Returns what is known before the first step."""
        known = cls(program, targets, returned)
        for value in program.inputs:
            if value.layout is not None and value.device == program.device:
                known._add(value.name, value.layout)
        return known

    def _add(self, name: str, layout: Layout) -> None:
        self.local.add(name)
        self.layouts[name] = layout

    def rewritten(self, step: Step) -> Iterator[HostStep]:
        """Yields what stands for a step, and notes what it makes."""
        match step:
            case Alloc(name, layout, device) if device in (None, self.program.device):
                self._add(name, layout)
            case Reuse(name, source, layout) if source in self.local:
                self._add(name, layout)
            case View(name, base, layout) if base in self.local:
                self._add(name, layout)
            case Extern():
                product = product_of(step, self.layouts.get) if step.target in self.targets else None
                place = place_of(step)
                if product is not None and place is not None:
                    yield Multiply(product, place)
                    return
                if product is not None:
                    result = str(step.results[0])
                    self._add(result, product.result)
                    yield Alloc(result, product.result)
                    yield Multiply(product, result)
                    return
                self._note_results(step)
            case Call(graph):
                self._note_returned(step, self._returned(graph))
            case If(_, then, otherwise):
                branches = zip(self._returned(then), self._returned(otherwise), strict=True)
                self._note_returned(step, [one if one == other else None for one, other in branches])
        yield step

    def _note_returned(self, step: Call | If, layouts: Sequence[Layout | None]) -> None:
        """Notes what a graph returns, where that is known."""
        for result, layout in zip(step.results, layouts, strict=True):
            if result is not None and layout is not None:
                self._add(result, layout)

    def _returned(self, name: str) -> Sequence[Layout | None]:
        """Returns how the outputs of a graph lie; None of those elsewhere, and whose sizes only a call tells."""
        if name not in self.returned:
            names = [graph.name for graph in self.program.graphs]
            graph = self.program.callee(names.index(name))
            known = _TensorLocations.of(graph, self.targets, self.returned)
            for step in graph.steps:
                collections.deque(known.rewritten(step), maxlen=0)
            layouts = [None if output.value is None else known.layouts.get(output.value) for output in graph.outputs]
            self.returned[name] = [each if each is not None and each.numbers is not None else None for each in layouts]
        return self.returned[name]

    def _note_results(self, step: Extern) -> None:
        """Notes where a library's results are; how they lie, only views of them say."""
        first = step.args[0] if step.args else None
        if isinstance(first, Tagged) and first.tag == "ref" and first.value in self.local:
            for result in step.results[: LOCAL_RESULTS.get(step.target, 0)]:
                self.local |= {result} if result is not None else set()
