"""Programs: a whole launch plan with its kernels, read from JSON and checked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ferrite_runtime.errors import SpecError, UnknownFormat
from ferrite_runtime.formats.call_checks import Signature
from ferrite_runtime.formats.json_fields import Fields
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program_checks import check_names
from ferrite_runtime.formats.step_mappings import (
    read_input,
    read_output,
    read_step,
    write_input,
    write_output,
    write_step,
)
from ferrite_runtime.formats.steps import (
    DEVICES,
    Input,
    Output,
    Step,
)

PROGRAM_FORMAT = "ferrite-program/2"


@dataclass(frozen=True, slots=True)
class Subprogram:
    """A graph of a program that its steps call; see docs/kernel-spec.md for the meaning of every field."""

    name: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Subprogram:
        """Returns the graph in ``value``; that its names fit is checked with the program (`check_names`)."""
        fields = Fields(value, path)
        graph = cls(fields.identifier("name"), *_read_body(fields))
        fields.close()
        return graph

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {"name": self.name, **_write_body(self.inputs, self.steps, self.outputs)}


CallCheck = Callable[["Program", Sequence[Any]], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; see docs/kernel-spec.md for the meaning of every field.

    ``graphs`` are what its steps call, each behind those that its own steps call. ``check_call`` looks at what they are
    called with, and ``max_calls`` says how often they are in one call of the program, where a program is not trusted to
    call them rightly, and not forever; these are no part of what is written or compared.

    ``captured`` has what its steps call of the captured graph that it was compiled from, by target. It is handed over
    where a program is loaded (`load_program`), and is no part of what is written or compared.
    """

    name: str
    device: str
    inputs: tuple[Input, ...]
    kernels: tuple[KernelSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    captured: Mapping[str, Callable[..., Any]] = field(default_factory=dict, compare=False, repr=False)
    graphs: tuple[Subprogram, ...] = ()
    check_call: CallCheck | None = field(default=None, compare=False, repr=False)
    max_calls: int | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_mapping(cls, value: object) -> Program:
        """Returns the program in ``value``, checked: fields, identities, and that every name is live where it is used.

        Raises:
            UnknownFormat, UnknownField, IdentityMismatch, SpecError: naming the field.
        """
        fields = Fields(value, "")
        _check_format(fields)
        kernels = [KernelSpec.from_mapping(v, f"kernels[{i}]") for i, v in enumerate(fields.array("kernels"))]
        return cls.from_parts(value, kernels)

    @classmethod
    def from_parts(cls, value: object, kernels: Sequence[KernelSpec], path: str = "") -> Program:
        """Returns the program in ``value`` with these kernels, whatever its own field ``kernels`` holds."""
        fields = Fields(value, path)
        _check_format(fields)
        fields.take("kernels", None)
        name, device, (inputs, steps, outputs) = (
            fields.line("name"),
            fields.choice("device", DEVICES),
            _read_body(fields),
        )
        given = enumerate(fields.array("graphs", ()))
        graphs = tuple(
            Subprogram.from_mapping(graph, f"{fields.at('graphs')}[{position}]") for position, graph in given
        )
        fields.close()
        program = cls(name, device, inputs, tuple(kernels), steps, outputs, graphs=graphs)
        _check(program)
        return program

    def callee(self, position: int) -> Program:
        """Returns one of the graphs as a program, with the kernels of this one and the graphs that it may call."""
        graph = self.graphs[position]
        called = replace(self, name=f"{self.name}.{graph.name}", graphs=self.graphs[:position])
        return replace(called, inputs=graph.inputs, steps=graph.steps, outputs=graph.outputs)

    def all_steps(self) -> Iterator[tuple[str, Step]]:
        """Yields the steps of the program and of its graphs, each with its path."""
        bodies = [
            ("", self.steps),
            *((f"graphs[{position}].", graph.steps) for position, graph in enumerate(self.graphs)),
        ]
        for prefix, steps in bodies:
            yield from ((f"{prefix}steps[{position}]", step) for position, step in enumerate(steps))

    def on_cpu(self) -> Program:
        """Returns the program with its device replaced by the CPU, for interpreting what was compiled for a GPU."""

        def moved(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
            return tuple(replace(value, device="cpu") if value.device == self.device else value for value in inputs)

        graphs = tuple(replace(graph, inputs=moved(graph.inputs)) for graph in self.graphs)
        return replace(self, device="cpu", inputs=moved(self.inputs), graphs=graphs)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; reading it gives an equal program."""
        return {
            "format": PROGRAM_FORMAT,
            "name": self.name,
            "device": self.device,
            "kernels": [kernel.to_mapping() for kernel in self.kernels],
            **_write_body(self.inputs, self.steps, self.outputs),
            **({"graphs": [graph.to_mapping() for graph in self.graphs]} if self.graphs else {}),
        }


Body = tuple[tuple[Input, ...], tuple[Step, ...], tuple[Output, ...]]


def _read_body(fields: Fields) -> Body:
    """Returns the inputs, steps and outputs among the fields of a program or of a graph."""
    inputs, steps, outputs = (enumerate(fields.array(name)) for name in ("inputs", "steps", "outputs"))
    return (
        tuple(read_input(value, f"{fields.at('inputs')}[{position}]") for position, value in inputs),
        tuple(read_step(value, f"{fields.at('steps')}[{position}]") for position, value in steps),
        tuple(read_output(value, f"{fields.at('outputs')}[{position}]") for position, value in outputs),
    )


def _write_body(inputs: Sequence[Input], steps: Sequence[Step], outputs: Sequence[Output]) -> dict[str, Any]:
    return {
        "inputs": [write_input(value) for value in inputs],
        "steps": [write_step(step) for step in steps],
        "outputs": [write_output(output) for output in outputs],
    }


def _check(program: Program) -> None:
    """Raises `SpecError` unless all names of a program and of its graphs fit together."""
    known: dict[str, Signature] = {}
    for position, graph in enumerate(program.graphs):
        prefix = f"graphs[{position}]."
        check_names(graph.inputs, program.kernels, graph.steps, graph.outputs, known, prefix)
        if graph.name in known:
            raise SpecError(f"{prefix}name", f"{graph.name!r} is the name of two graphs")
        known[graph.name] = Signature(graph.inputs, graph.outputs)
    check_names(program.inputs, program.kernels, program.steps, program.outputs, known)


def _check_format(fields: Fields) -> None:
    form = fields.take("format")
    if form != PROGRAM_FORMAT:
        raise UnknownFormat(
            fields.at("format"), f"program format {form!r} is unknown; this runtime reads {PROGRAM_FORMAT}"
        )
