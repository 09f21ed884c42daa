"""When two kernels are the same but for the names of their values: the layers of a model are."""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Computed, Contract, Loop, Reduction, Scan, Sort, Update, Value
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, load, replace_in_index, replace_loads
from ferrite_ir.passes.rewriting import map_scalars
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.model.forms import Form, GridReduction, RegisterNorm
from ferrite_scheduler.model.schedule import Kernel


def without_names(kernel: Kernel) -> Kernel:
    """Returns the kernel with its values numbered as they appear, and without a name of its own.

    Kernels that differ in names alone become equal, and as keys of a dictionary they are found: expressions are
    compared by identity, so that numbers count with their type and sign, and origins do not count.
    """
    met = [param.name for param in kernel.params]
    for definition in kernel.body:
        met += [result.name for result in definition.results]
        met += [definition.target] if isinstance(definition, Update) else []  # the params have its result's name
    # No value of a graph is called so. What the kernel does not define, though it should, keeps its name.
    renaming = _Renaming({name: f"%{number}" for number, name in enumerate(dict.fromkeys(met))})
    return replace(
        kernel,
        name="",
        body=tuple(map(renaming.definition, kernel.body)),
        homes={renaming.name(name): tuple(map(renaming.index, home)) for name, home in kernel.homes.items()},
        stored=tuple(map(renaming.name, kernel.stored)),
        params=tuple(replace(param, name=renaming.name(param.name)) for param in kernel.params),
        form=renaming.form(kernel.form),
    )


class _Renaming:
    """Other names for values; ``memo`` holds the expressions that were changed."""

    def __init__(self, numbers: dict[str, str]) -> None:
        self.numbers = numbers
        self.memo: dict[Scalar, Scalar] = {}

    def name(self, name: str) -> str:
        return self.numbers.get(name, name)

    def form(self, form: Form) -> Form:
        match form:
            case GridReduction() | RegisterNorm():
                return replace(form, workspace=self.name(form.workspace))
        return form

    def definition(self, definition: Computed) -> Computed:
        results = tuple(map(self.value, definition.results))
        match map_scalars(definition, self.scalar, self.index):
            case Update() as update:
                return replace(update, result=results[0], target=self.name(update.target))
            case Contract() as contract:
                return replace(contract, result=results[0])
            case LookBackScan() as scan:
                return replace(scan, results=results, workspace=self.name(scan.workspace))
            case (Loop() | Reduction() | Scan() | Sort()) as changed:
                return replace(changed, results=results)
        raise AssertionError(f"kernels do not hold {type(definition).__name__}")

    def value(self, value: Value) -> Value:
        return Value(self.name(value.name), value.type)

    def scalar(self, body: Scalar) -> Scalar:
        return replace_loads(body, self._load, self.memo)

    def index(self, index: Index) -> Index:
        return replace_in_index(index, self._load, self.memo) if index.is_indirect else index

    def _load(self, node: Scalar) -> Scalar:
        return load(self.name(node.source), node.indices, node.dtype)
