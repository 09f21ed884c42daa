"""What can be called in a bundle: arguments and results, the weights it wants, and a program per target and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.bundles.structure import check_arguments, check_structure
from ferrite_runtime.errors import PackageInvalid, SpecError
from ferrite_runtime.formats.buffer_bounds import check_layout
from ferrite_runtime.formats.json_fields import Fields
from ferrite_runtime.formats.layouts import Layout, read_layout
from ferrite_runtime.formats.program import Program

WEIGHT_KINDS = ("parameter", "buffer", "constant")
# Where an input of a program comes from, or a gradient goes: a weight, a tensor of the call, a tensor saved by the
# forward, the gradient of a result.
FORWARD_SOURCES = ("weight", "tensor")
BACKWARD_SOURCES = ("saved", "gradient")


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor bound at load, by its name in a state dict; a ``constant`` is in the bundle, as the blob ``blob``."""

    name: str
    kind: str
    layout: Layout
    blob: str = ""
    needs_grad: bool = False

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        layout = {"dtype": self.layout.dtype, "shape": list(self.layout.shape), "strides": list(self.layout.strides)}
        mapping = {"name": self.name, "kind": self.kind, **layout, "grad": self.needs_grad}
        return mapping | ({"blob": self.blob} if self.blob else {})

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Weight:
        """Returns the weight in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        kind = fields.choice("kind", WEIGHT_KINDS)
        name, layout, needs_grad = fields.line("name"), read_layout(fields), fields.boolean("grad")
        blob = fields.string("blob") if kind == "constant" else ""
        fields.close()
        check_layout(layout, path)
        if layout.numbers is None:
            raise SpecError(f"{path}.shape", "a weight's sizes are numbers")
        return cls(name, kind, layout, blob, needs_grad)


Source = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward of a variant.

    Attributes:
        program: name of its program.
        takes: where each of its inputs comes from: a saved tensor, or the gradient of a result.
        grads: what each of its results is the gradient of, None for one that nobody wants.
        detached: positions of the results that nothing can be differentiated through, as eager mode returns them.
    """

    program: str
    takes: tuple[Source, ...]
    grads: tuple[Source | None, ...]
    detached: tuple[int, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        mapping: dict[str, Any] = {
            "program": self.program,
            "takes": [list(source) for source in self.takes],
            "grads": [None if source is None else list(source) for source in self.grads],
        }
        return mapping | {"detached": list(self.detached)} if self.detached else mapping


@dataclass(frozen=True, slots=True)
class Variant:
    """An entry's programs for some targets and one set of shapes.

    Attributes:
        targets: names of the architectures it was scheduled for; empty for any.
        forward: name of the program.
        takes: where each of its inputs comes from: a weight or a tensor of the call.
        mutates: numbers of the weights whose new values follow the results.
        repeats: positions of results that are tensors of their own over the storage of others.
        backward: for training.
    """

    targets: tuple[str, ...]
    forward: str
    takes: tuple[Source, ...]
    mutates: tuple[int, ...] = ()
    repeats: tuple[int, ...] = ()
    backward: Backward | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        mapping: dict[str, Any] = {
            "targets": list(self.targets),
            "forward": self.forward,
            "takes": [list(source) for source in self.takes],
            "mutates": list(self.mutates),
            "repeats": list(self.repeats),
        }
        if self.backward is not None:
            mapping["backward"] = self.backward.to_mapping()
        return mapping

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Variant:
        """Returns the variant in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        backward = fields.take("backward", None)
        variant = cls(
            fields.strings("targets"),
            fields.string("forward"),
            _read_sources(fields, "takes", FORWARD_SOURCES),
            fields.integers("mutates"),
            fields.integers("repeats"),
            None if backward is None else _read_backward(backward, fields.at("backward")),
        )
        fields.close()
        return variant


def _read_backward(value: object, path: str) -> Backward:
    fields = Fields(value, path)
    grads = fields.array("grads")
    read = Backward(
        fields.string("program"),
        _read_sources(fields, "takes", BACKWARD_SOURCES),
        tuple(None if row is None else _read_source(row, f"{path}.grads", FORWARD_SOURCES) for row in grads),
        fields.integers("detached") if "detached" in fields.names() else (),
    )
    fields.close()
    return read


def _read_sources(fields: Fields, name: str, kinds: tuple[str, ...]) -> tuple[Source, ...]:
    return tuple(_read_source(row, f"{fields.at(name)}[{i}]", kinds) for i, row in enumerate(fields.array(name)))


def _read_source(row: object, path: str, kinds: tuple[str, ...]) -> Source:
    if not isinstance(row, list) or len(row) != 2 or row[0] not in kinds:
        raise SpecError(path, f"a pair of {' or '.join(kinds)} and a number is needed")
    if not isinstance(row[1], int) or isinstance(row[1], bool) or row[1] < 0:
        raise SpecError(path, f"{row[1]!r} is no number of a {row[0]}")
    return (row[0], row[1])


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to call.

    Attributes:
        arguments: the structure of ``[args, kwargs]``.
        tensors: number of tensors among them.
        results: the structure of the result.
        outputs: number of tensors among the results.
        weights: what has to be bound.
        variants: programs; the first whose target and shapes fit is taken.
    """

    arguments: Mapping[str, Any]
    tensors: int
    results: Mapping[str, Any]
    outputs: int
    weights: tuple[Weight, ...]
    variants: tuple[Variant, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "arguments": self.arguments,
            "tensors": self.tensors,
            "results": self.results,
            "outputs": self.outputs,
            "weights": [weight.to_mapping() for weight in self.weights],
            "variants": [variant.to_mapping() for variant in self.variants],
        }

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Entry:
        """Returns the entry in ``value``; raises `PackageInvalid` naming the field that is wrong."""
        fields = Fields(value, path)
        entry = cls(
            fields.take("arguments"),
            fields.integer("tensors"),
            fields.take("results"),
            fields.integer("outputs"),
            tuple(Weight.from_mapping(v, f"{path}.weights[{i}]") for i, v in enumerate(fields.array("weights"))),
            tuple(Variant.from_mapping(v, f"{path}.variants[{i}]") for i, v in enumerate(fields.array("variants"))),
        )
        fields.close()
        return entry

    def check(self, programs: Mapping[str, Program], blobs: Mapping[str, Any], path: str) -> None:
        """Raises `PackageInvalid` unless everything that the entry refers to is there and fits."""
        for name, count in (("tensors", self.tensors), ("outputs", self.outputs)):
            if not 0 <= count <= 1 << 16:
                raise SpecError(f"{path}.{name}", f"there can be no {count} tensors")
        check_arguments(self.arguments, self.tensors, f"{path}.arguments")
        check_structure(self.results, self.outputs, f"{path}.results")
        if not self.variants:
            raise SpecError(f"{path}.variants", "there is none")
        if len({weight.name for weight in self.weights}) != len(self.weights):
            raise SpecError(f"{path}.weights", "two weights have one name")
        for weight in self.weights:
            if weight.kind == "constant":
                _check_constant(weight, blobs, f"{path}.weights.{weight.name[:60]}")
        for position, variant in enumerate(self.variants):
            self._check_variant(variant, programs, f"{path}.variants[{position}]")

    def _check_variant(self, variant: Variant, programs: Mapping[str, Program], path: str) -> None:
        forward = _program(programs, variant.forward, f"{path}.forward")
        limits = {"weight": len(self.weights), "tensor": self.tensors}
        _check_takes(variant.takes, forward, limits, f"{path}.takes")
        plain = self.outputs + len(variant.mutates)
        saved = len(forward.outputs) - plain
        if saved < 0 or (saved and variant.backward is None):
            raise SpecError(f"{path}.forward", f"its program has {len(forward.outputs)} results, {plain} are wanted")
        if any(not 0 <= number < len(self.weights) for number in variant.mutates):
            raise SpecError(f"{path}.mutates", "there is no such weight")
        if any(not 0 <= position < self.outputs for position in variant.repeats):
            raise SpecError(f"{path}.repeats", "there is no such result")
        if variant.backward is None:
            return
        backward = _program(programs, variant.backward.program, f"{path}.backward.program")
        behind = {"saved": saved, "gradient": plain}
        _check_takes(variant.backward.takes, backward, behind, f"{path}.backward.takes")
        if len(variant.backward.grads) != len(backward.outputs):
            raise SpecError(f"{path}.backward.grads", "not one for each result of the program")
        if any(not 0 <= position < self.outputs for position in variant.backward.detached):
            raise SpecError(f"{path}.backward.detached", "there is no such result")
        for grad in variant.backward.grads:
            if grad is not None and grad[1] >= limits[grad[0]]:
                raise SpecError(f"{path}.backward.grads", f"there is no {grad[0]} number {grad[1]}")


def _program(programs: Mapping[str, Program], name: str, path: str) -> Program:
    if name not in programs:
        raise SpecError(path, f"the bundle has no program {name[:60]!r}")
    return programs[name]


def _check_takes(takes: tuple[Source, ...], program: Program, limits: Mapping[str, int], path: str) -> None:
    if len(takes) != len(program.inputs):
        raise SpecError(path, f"{len(takes)} sources for the {len(program.inputs)} inputs of the program")
    for kind, number in takes:
        if number >= limits[kind]:
            raise SpecError(path, f"there is no {kind} number {number}")


def _check_constant(weight: Weight, blobs: Mapping[str, Any], path: str) -> None:
    if weight.blob not in blobs:
        raise SpecError(path, "the bundle has no blob with its content")
    from ferrite_runtime.formats.dtypes import DTYPES

    if weight.layout.dtype not in DTYPES:
        raise SpecError(path, f"a constant of {weight.layout.dtype}")
    shape, _strides = weight.layout.numbers or ((), ())
    count = math.prod(shape)
    if len(blobs[weight.blob]) != count * DTYPES[weight.layout.dtype].itemsize:
        raise PackageInvalid(f"{path}: its blob has not the size of its shape")
