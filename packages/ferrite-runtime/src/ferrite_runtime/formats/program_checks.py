"""Whole-program checks: every name is defined once, used while it lives, and launched with what the kernel wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.call_checks import Signature, check_call, check_signature
from ferrite_runtime.formats.call_steps import CallStep, For, If, While
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expressions import Expr, condition_exprs, expr_names
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import (
    Alloc,
    Check,
    Copy,
    Extern,
    Free,
    Input,
    Item,
    Keep,
    Launch,
    Let,
    Output,
    Probe,
    Reuse,
    Step,
    Tagged,
    View,
    value_refs,
    value_sizes,
)


class _Names:
    """The names of a program while its steps are walked.

    A value is a layout, ``"scalar"`` (an integer), ``"float"`` (a number that no size can be), ``"opaque"`` or None (an
    unknown tensor).
    """

    def __init__(self) -> None:
        self.live: dict[str, Layout | str | None] = {}
        self.gone: dict[str, str] = {}

    def define(self, name: str, what: Layout | str | None, path: str) -> None:
        if name in self.live or name in self.gone:
            raise SpecError(path, f"{name!r} is defined twice")
        self.live[name] = what

    def use(self, name: str, path: str) -> Layout | str | None:
        if name in self.gone:
            raise SpecError(path, f"{name!r} is used after {self.gone[name]}")
        if name not in self.live:
            raise SpecError(path, f"{name!r} is not defined")
        return self.live[name]

    def tensor(self, name: str, path: str) -> Layout | None:
        what = self.use(name, path)
        if isinstance(what, str):
            raise SpecError(path, f"{name!r} is a {what}, a tensor is needed")
        return what

    def drop(self, name: str, path: str, how: str) -> None:
        self.use(name, path)
        del self.live[name]
        self.gone[name] = how


def check_names(
    inputs: Sequence[Input],
    kernels: Sequence[KernelSpec],
    steps: Sequence[Step],
    outputs: Sequence[Output],
    graphs: Mapping[str, Signature] = MappingProxyType({}),
    prefix: str = "",
) -> None:
    """Raises `SpecError`, naming the step, unless every name of a program is defined once and used while it lives.

    ``graphs`` are those that the steps may call, ``prefix`` is the path of one that is checked itself.
    """
    by_id = {kernel.id: kernel for kernel in kernels}
    names = _Names()
    if prefix:
        check_signature(inputs, prefix)
    for position, value in enumerate(inputs):
        kind = value.layout or (_number_of(value.dtype) if value.kind == "scalar" else value.kind)
        names.define(value.name, kind, f"{prefix}inputs[{position}].name")
    for position, step in enumerate(steps):
        path = f"{prefix}steps[{position}]"
        if isinstance(step, CallStep):
            _check_call_step(step, names, graphs, path)
        else:
            _check_step(step, names, by_id, path)
    for position, output in enumerate(outputs):
        if output.value is not None:
            names.use(output.value, f"{prefix}outputs[{position}].value")
        elif isinstance(output.scalar, (str, tuple)):
            _check_number(output.scalar, names, f"{prefix}outputs[{position}].scalar")


def _check_call_step(step: CallStep, names: _Names, graphs: Mapping[str, Signature], path: str) -> None:
    if isinstance(step, If):
        names.tensor(step.condition, f"{path}.condition")
    layouts = [names.tensor(name, f"{path}.args[{index}]") for index, name in enumerate(step.args)]
    for size in step.sizes:
        _check_scalars(expr_names(size), names, f"{path}.sizes")
    if isinstance(step, For):
        exprs = (step.count, *(expr for layout in step.stacked for expr in (*layout.shape, *layout.strides)))
        for expr in exprs:
            _check_scalars(expr_names(expr), names, f"{path}.count")
    check_call(step, layouts, graphs, path)
    for index, result in enumerate(step.results):
        if result is not None:
            names.define(result, None, f"{path}.results[{index}]")
    for name in step.numbers if isinstance(step, While) else ():
        names.define(name, "scalar", f"{path}.binds")


def _check_step(step: Step, names: _Names, kernels: dict[str, KernelSpec], path: str) -> None:
    _check_numbers(step, names, path)
    match step:
        case Let(name):
            names.define(name, "scalar", f"{path}.name")
        case Alloc(name, layout) | Keep(name, layout):
            names.define(name, layout, f"{path}.name")
        case Reuse(name, source, layout):
            names.tensor(source, f"{path}.from")
            names.drop(source, f"{path}.from", f"its storage became {name}")
            names.define(name, layout, f"{path}.name")
        case View(name, base, layout):
            names.tensor(base, f"{path}.base")
            names.define(name, layout, f"{path}.name")
        case Launch():
            _check_launch(step, names, kernels, path)
        case Extern():
            _check_extern(step, names, path)
        case Item(name, source, dtype):
            names.tensor(source, f"{path}.from")
            names.define(name, _number_of(dtype), f"{path}.name")
        case Free(freed):
            for name in freed:
                names.drop(name, f"{path}.names", f"it was freed at {path}")
        case Copy(to, source):
            names.tensor(to, f"{path}.to")
            names.tensor(source, f"{path}.from")


def _check_numbers(step: Step, names: _Names, path: str) -> None:
    """Checks the expressions of a step's sizes."""
    match step:
        case Let(_, Probe(_, tensor)):
            names.tensor(tensor, f"{path}.value")
        case Let(_, value) if not isinstance(value, Probe):
            _check_scalars(expr_names(value), names, f"{path}.value")
        case Alloc(layout=layout) | Keep(layout=layout) | Reuse(layout=layout) | View(layout=layout):
            for size in (*layout.shape, *layout.strides, getattr(step, "offset", 0)):
                _check_scalars(expr_names(size), names, path)
        case Check(holds, _, named):
            for expr in (*condition_exprs(holds), *(expr for _, expr in named)):
                _check_scalars(expr_names(expr), names, path)


def _check_launch(step: Launch, names: _Names, kernels: dict[str, KernelSpec], path: str) -> None:
    for index, alternative in enumerate(step.alternatives):
        where = f"{path}.alternatives[{index}]"
        for expr, _ in alternative.when:
            _check_scalars(expr_names(expr), names, f"{where}.when")
        if alternative.kernel is not None:
            _check_arguments(step, alternative.kernel, names, kernels, where)
    _check_arguments(step, step.kernel, names, kernels, path)


def _check_arguments(step: Launch, chosen: str, names: _Names, kernels: dict[str, KernelSpec], path: str) -> None:
    kernel = kernels.get(chosen)
    if kernel is None:
        raise SpecError(f"{path}.kernel", f"no kernel has the id {chosen}")
    if len(step.args) != len(kernel.params):
        raise SpecError(
            f"{path}.args", f"{len(step.args)} arguments for the {len(kernel.params)} params of {kernel.name}"
        )
    for position, (arg, param) in enumerate(zip(step.args, kernel.params, strict=True)):
        where = f"{path}.args[{position}]"
        if param.role == "tensor":
            layout = names.tensor(arg, where) if isinstance(arg, str) else None
            if not isinstance(arg, str):
                raise SpecError(where, f"param {param.name} of {kernel.name} needs the name of a tensor, not {arg!r}")
            if layout is not None and layout.dtype != param.dtype:
                raise SpecError(
                    where, f"{arg} is {layout.dtype}, param {param.name} of {kernel.name} needs {param.dtype}"
                )
            if param.elements is not None and not _has_elements(layout, param.elements):
                raise SpecError(where, f"param {param.name} of {kernel.name} needs {param.elements} elements in a row")
        elif param.role == "size" and param.align is not None and (type(arg) is not int or arg % param.align):
            raise SpecError(
                where, f"param {param.name} of {kernel.name} needs a multiple of {param.align}, not {arg!r}"
            )
        elif isinstance(arg, (str, tuple)) and param.role == "size":
            _check_scalars(expr_names(arg), names, where)
        elif isinstance(arg, (str, tuple)):
            _check_number(arg, names, where)
        elif param.role == "size" and (isinstance(arg, (bool, float, Tagged))):
            raise SpecError(where, f"param {param.name} of {kernel.name} needs an integer, not {arg!r}")


def _has_elements(layout: Layout | None, elements: int) -> bool:
    """Returns whether a tensor is a row of so many elements at least."""
    if layout is None or layout.strides != (1,):
        return False
    (extent,) = layout.shape
    return isinstance(extent, int) and extent >= elements


def _check_scalars(used: Iterable[str], names: _Names, path: str) -> None:
    """Raises `SpecError` unless all of these names are integers."""
    for name in used:
        if names.use(name, path) != "scalar":
            raise SpecError(path, f"{name!r} is not an integer")


def _check_number(expr: Expr, names: _Names, path: str) -> None:
    """Raises `SpecError` unless an expression is made of integers, or is the name of a number of any kind."""
    if not (isinstance(expr, str) and names.use(expr, path) == "float"):
        _check_scalars(expr_names(expr), names, path)


def _number_of(dtype: str | None) -> str:
    """Returns what a number of a dtype is called among names."""
    found = DTYPES.get(dtype or "")
    return "scalar" if found is not None and found.is_integer else "float"


def _check_extern(step: Extern, names: _Names, path: str) -> None:
    if step.target.count(".") < 1:
        raise SpecError(f"{path}.target", f"{step.target!r} is not of the form namespace.op.overload")
    for name in value_refs((*step.args, *step.kwargs.values())):
        names.use(name, f"{path}.args")
    for size in value_sizes((*step.args, *step.kwargs.values())):
        _check_scalars(expr_names(size), names, f"{path}.args")
    if step.strides is not None and len(step.strides) != len(step.results):
        raise SpecError(f"{path}.strides", f"{len(step.strides)} rows for {len(step.results)} results")
    for position, result in enumerate(step.results):
        if result is not None:
            names.define(result, None, f"{path}.results[{position}]")
    for index, (name, position, _) in enumerate(step.binds):
        if position >= len(step.results) or step.results[position] is None:
            raise SpecError(f"{path}.binds[{index}]", f"{name!r} is an extent of a result that has no name")
        names.define(name, "scalar", f"{path}.binds[{index}]")
    for row in step.strides or ():
        for stride in row or ():
            _check_scalars(expr_names(stride), names, f"{path}.strides")
