"""Extern calls that kernels of ours carry out: a few launches each, whose texts call device functions.

Their scratch memory is allocated before the first launch and dropped after the last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from ferrite_ir.language.dtypes import I32, DType
from ferrite_ir.language.graph import Origins, TensorType
from ferrite_ir.language.sizes import Size, hint, is_provably_at_most
from ferrite_scheduler.model.schedule import CallExtern, Conditions
from ferrite_triton.analysis.size_params import host_expression
from ferrite_triton.facts.records import TemplateFacts
from ferrite_triton.host.spec import Emitted, Expr, KernelSpec
from ferrite_triton.host.steps import encode_launch, encode_layout, launch_form
from ferrite_triton.printing.kernel import print_kernel
from ferrite_triton.tile.language import AwaitPredecessor, TileType, Variable
from ferrite_triton.tile.statements import Do, Statement, TileProgram

Scratch: TypeAlias = Mapping[str, tuple[DType, Size]]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A call as kernels and host steps."""

    kernels: tuple[KernelSpec, ...]
    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a template: its name on the host and its type."""

    host: str
    dtype: DType


@dataclass(slots=True)
class Template:
    """Writes launches one after the other.

    Attributes:
        operands: every tensor by the name that kernels know it by.
        origins: of the call.
        scratch: the tensors that nobody else knows.
    """

    operands: dict[str, Operand]
    origins: Origins
    scratch: list[str]
    kernels: list[KernelSpec] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, step: CallExtern, operands: dict[str, Operand], scratch: Scratch, taken: Collection[str]) -> Template:
        """Returns a template with the results of a call and its scratch memory allocated.

        Args:
            step: the call.
            operands: its operands and results.
            scratch: type and extent of each further tensor; an extent may be symbolic.
            taken: names that the host uses already.
        """
        value, result = step.definition.results[0], step.results[0]
        if value is None or result is None:
            raise ValueError(f"{step.definition.target}: nobody uses its result")
        hosts = {name: _free_name(f"{result}_{name}", taken) for name in scratch}
        made = {hosts[name]: TensorType(dtype, (extent,)) for name, (dtype, extent) in scratch.items()}
        device = {"device": value.type.device} if value.type.device else {}
        found = cls({**operands}, step.definition.origins, list(scratch))
        found.operands.update((name, Operand(hosts[name], dtype)) for name, (dtype, _) in scratch.items())
        for host, type_ in {result: value.type, **made}.items():
            found.steps.append({"do": "alloc", "name": host, **encode_layout(type_), **device})
        return found

    def write(
        self,
        name: str,
        accesses: dict[str, str],
        body: tuple[Statement, ...],
        programs: Expr,
        facts: TemplateFacts,
        sizes: Mapping[str, Size] = MappingProxyType({}),
    ) -> KernelSpec:
        """Returns a kernel of these statements.

        Args:
            name: what it is called, before a digest of its text.
            accesses: of each tensor that it takes, in order.
            body: what each program does.
            programs: how many there are, over the names of the sizes.
            facts: the config of its programs, and what is known of them.
            sizes: the symbolic sizes that it takes as integers of 32 bits, by name.
        """
        kinds = ", ".join(f"{name}: {self.operands[name].dtype}" for name in accesses)
        parameters = (
            *(Variable(name, TileType(self.operands[name].dtype, is_pointer=True)) for name in accesses),
            *(Variable(name, TileType(I32)) for name in sizes),
        )
        program = TileProgram(name, parameters, (), (Do(AwaitPredecessor()), *body))
        text, full = print_kernel(program, (kinds,), name)
        tensors = (
            {"name": name, "role": "tensor", "dtype": self.operands[name].dtype.name, "access": access, "align": 16}
            for name, access in accesses.items()
        )
        numbers = (
            {"name": name, "role": "size", "dtype": I32.name, "hint": hint(size)} for name, size in sizes.items()
        )
        return KernelSpec(
            name=full,
            source=text,
            form="template",
            params=(*tensors, *numbers),
            axes=(),
            blocks={},
            grid=programs,
            mutated=tuple(name for name, access in accesses.items() if access in ("atomic", "readwrite")),
            index_width=64,
            facts=facts,
            origin=tuple(dict.fromkeys(str(origin) for origin in self.origins if str(origin))),
            sizes=tuple(sizes.values()),
        )

    def launch(self, kernel: KernelSpec, alternatives: Sequence[tuple[Conditions, KernelSpec]] = ()) -> None:
        """Adds the launch of a kernel, or of the first of these alternatives whose conditions hold.

        All take the same tensors and sizes.
        """
        form = launch_form(Emitted(kernel, tuple(alternatives)))
        tensors = [self.operands[param["name"]].host for param in kernel.params if param["role"] == "tensor"]
        self.kernels += [*(other for _, other in alternatives), kernel]
        self.steps.append(encode_launch(form, tensors))

    def require(self, size: Size, most: int, what: str) -> None:
        """Adds a check that a size is at most so much, unless it is known; ``what`` says of what there are so many."""
        if not is_provably_at_most(size, most):
            number = host_expression(size)
            message = f"a call takes at most {most} {what}"
            self.steps.append(
                {"do": "check", "holds": ["le", number, most], "message": message, "names": [[what, number]]}
            )

    def finished(self) -> Expansion:
        """Returns what was written, with the scratch memory dropped at the end."""
        free = {"do": "free", "names": [self.operands[name].host for name in self.scratch]}
        return Expansion(tuple(self.kernels), (*self.steps, free))


def _free_name(wanted: str, taken: Collection[str]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted
