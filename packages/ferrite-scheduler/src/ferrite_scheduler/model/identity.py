"""When two kernels are the same but for the names of their values: the layers of a model are."""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Attend, Computed, Update
from ferrite_ir.passes.renaming import Renaming
from ferrite_scheduler.model.annotations import LookBackScan

from .forms import Form, GridReduction, MixedCombo, RegisterNorm
from .schedule import Kernel


def without_names(kernel: Kernel) -> Kernel:
    """Returns the kernel with its values numbered as they appear, and without a name of its own.

    Kernels that differ in names alone become equal, and as keys of a dictionary they are found: expressions are
    compared by identity, so that numbers count with their type and sign, and origins do not count.
    """
    met = [param.name for param in kernel.params]
    for definition in kernel.body:
        met += [result.name for result in definition.results]
        met += [product.name for product in definition.products] if isinstance(definition, Attend) else []
        met += [definition.target] if isinstance(definition, Update) else []  # the params have its result's name
    # No value of a graph is called so. What the kernel does not define, though it should, keeps its name.
    renaming = Renaming({name: f"%{number}" for number, name in enumerate(dict.fromkeys(met))})
    return replace(
        kernel,
        name="",
        body=tuple(_definition(definition, renaming) for definition in kernel.body),
        homes={renaming.name(name): tuple(map(renaming.index, home)) for name, home in kernel.homes.items()},
        stored=tuple(map(renaming.name, kernel.stored)),
        params=tuple(replace(param, name=renaming.name(param.name)) for param in kernel.params),
        form=_form(kernel.form, renaming),
    )


def _form(form: Form, renaming: Renaming) -> Form:
    match form:
        case GridReduction() | RegisterNorm():
            return replace(form, workspace=renaming.name(form.workspace))
        case MixedCombo():
            return replace(form, parts=tuple(replace(part, name="") for part in form.parts))
    return form


def _definition(definition: Computed, renaming: Renaming) -> Computed:
    changed = renaming.definition(definition)
    if isinstance(changed, LookBackScan):
        return replace(changed, workspace=renaming.name(changed.workspace))
    return changed
