"""Programs: a whole launch plan with its kernels, read from JSON and checked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ferrite_runtime.errors import UnknownFormat
from ferrite_runtime.formats.json_fields import Fields
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program_checks import check_names
from ferrite_runtime.formats.steps import (
    DEVICES,
    Input,
    Output,
    Step,
    read_input,
    read_output,
    read_step,
    write_input,
    write_output,
    write_step,
)

PROGRAM_FORMAT = "ferrite-program/2"


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; see docs/kernel-spec.md for the meaning of every field.

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
        program = cls(
            name=fields.line("name"),
            device=fields.choice("device", DEVICES),
            inputs=tuple(read_input(v, f"{fields.at('inputs')}[{i}]") for i, v in enumerate(fields.array("inputs"))),
            kernels=tuple(kernels),
            steps=tuple(read_step(v, f"{fields.at('steps')}[{i}]") for i, v in enumerate(fields.array("steps"))),
            outputs=tuple(
                read_output(v, f"{fields.at('outputs')}[{i}]") for i, v in enumerate(fields.array("outputs"))
            ),
        )
        fields.close()
        check_names(program.inputs, program.kernels, program.steps, program.outputs)
        return program

    def on_cpu(self) -> Program:
        """Returns the program with its device replaced by the CPU, for interpreting what was compiled for a GPU."""
        inputs = tuple(replace(value, device="cpu") if value.device == self.device else value for value in self.inputs)
        return replace(self, device="cpu", inputs=inputs)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; reading it gives an equal program."""
        return {
            "format": PROGRAM_FORMAT,
            "name": self.name,
            "device": self.device,
            "inputs": [write_input(value) for value in self.inputs],
            "kernels": [kernel.to_mapping() for kernel in self.kernels],
            "steps": [write_step(step) for step in self.steps],
            "outputs": [write_output(output) for output in self.outputs],
        }


def _check_format(fields: Fields) -> None:
    form = fields.take("format")
    if form != PROGRAM_FORMAT:
        raise UnknownFormat(
            fields.at("format"), f"program format {form!r} is unknown; this runtime reads {PROGRAM_FORMAT}"
        )
