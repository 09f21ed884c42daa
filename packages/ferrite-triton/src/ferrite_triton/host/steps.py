"""Host steps as JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language.bindings import CHECK, COMPARISONS, LET, READ, SIZE, STEPS, Binding
from ferrite_ir.language.graph import Call, For, If, TensorType, Value, View, While
from ferrite_ir.language.sizes import Size, Symbolic, hint
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Conditions,
    Copy,
    Free,
    Item,
    Keep,
    Launch,
    MakeView,
    Reuse,
    Step,
)
from ferrite_triton.analysis.size_params import Expr, host_expression
from ferrite_triton.errors import EmitError
from ferrite_triton.host.arguments import encode_argument, encode_number
from ferrite_triton.host.scratch import scratch_elements
from ferrite_triton.host.spec import Emitted, GivenKernel


def encode_layout(type_: TensorType) -> dict[str, Any]:
    """Returns dtype, shape and strides of a tensor."""
    return {
        "dtype": type_.dtype.name,
        "shape": list(map(host_expression, type_.shape)),
        "strides": list(map(host_expression, type_.strides)),
    }


def encode_input(value: Value, device: str) -> dict[str, Any]:
    """Returns an input of a program on ``device``."""
    layout = encode_layout(value.type)
    return {"name": value.name, "kind": "tensor", **layout, "device": value.type.device or device}


def encode_size_input(given: tuple[str, Size]) -> dict[str, Any]:
    """Returns an integer input of a program."""
    return {"name": given[0], "kind": "scalar", "dtype": "i64"}


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """How one kernel of a schedule is launched: by which identity, with which sizes, and what is tried before.

    An alternative without a kernel stands for no launch.

    ``expected`` is the number of the alternative that the hints choose, ``scratch`` how many elements of scratch memory
    (i64) any of them takes behind the tensors.
    """

    kernel: str
    sizes: tuple[Expr, ...] = ()
    alternatives: tuple[dict[str, Any], ...] = ()
    expected: int = 0
    scratch: int = 0


def launch_form(emitted: Emitted, skip_guard: Sequence[Conditions] = ()) -> LaunchForm:
    """Returns how a kernel is launched; ``skip_guard`` says for what sizes it is not."""
    choices: list[tuple[Conditions, str | None]] = [(conditions, None) for conditions in skip_guard]
    choices += [(conditions, spec.id) for conditions, spec in emitted.alternatives]
    alternatives = tuple(
        {"when": [[host_expression(size), limit] for size, limit in conditions], "kernel": kernel}
        for conditions, kernel in choices
    )
    fits = [all(hint(size) <= limit for size, limit in conditions) for conditions, _ in choices]
    expected = fits.index(True) if True in fits else len(fits)
    sizes = tuple(map(host_expression, emitted.spec.sizes))
    return LaunchForm(emitted.spec.id, sizes, alternatives, expected, scratch_elements(emitted.spec.params))


def encode_launch(form: LaunchForm, tensors: Sequence[str]) -> dict[str, Any]:
    """Returns the launch of a kernel on these tensors."""
    launch = {"do": "launch", "kernel": form.kernel, "args": [*tensors, *form.sizes]}
    if not form.alternatives:
        return launch
    return launch | {"alternatives": list(form.alternatives), "expected": form.expected}


def encode_given_launch(kernel: GivenKernel, step: CallExtern, scratch: str) -> dict[str, Any]:
    """Returns the launch of a kernel that is not ours, on the arguments of a call: one for each of its params.

    ``scratch`` is what the host calls the scratch memory, which a call does not know of.
    """
    given = map(_launched, step.definition.args)
    arguments = [scratch if param.get("access") == "scratch" else next(given) for param in kernel.mapping["params"]]
    return {"do": "launch", "kernel": kernel.id, "args": arguments}


def _launched(argument: Any) -> Any:
    if isinstance(argument, View):
        return argument.name
    return host_expression(argument) if isinstance(argument, Symbolic) else encode_argument(argument)


def encode_output(output: Any) -> dict[str, Any]:
    """Returns an output of a program: a host name, a number or nothing."""
    if output is None:
        return {"none": True}
    if isinstance(output, Symbolic):
        return {"scalar": host_expression(output)}
    return {"value": output} if isinstance(output, str) else {"scalar": encode_number(output)}


def _encode_allocate(step: Allocate) -> dict[str, Any]:
    device = {"device": step.type.device} if step.type.device else {}
    return {"do": "alloc", "name": step.name, **encode_layout(step.type), **device}


def _encode_keep(step: Keep) -> dict[str, Any]:
    return {"do": "keep", "name": step.name, **encode_layout(step.type)}


def _encode_reuse(step: Reuse) -> dict[str, Any]:
    return {"do": "reuse", "name": step.name, "from": step.source, **encode_layout(step.type)}


def _encode_view(step: MakeView) -> dict[str, Any]:
    view = step.view
    layout = encode_layout(TensorType(view.dtype, view.shape, view.strides))
    return {
        "do": "view",
        "name": step.name,
        "base": view.name,
        **layout,
        "offset": host_expression(view.offset),
    }


def _encode_item(step: Item) -> dict[str, Any]:
    return {"do": "item", "name": step.name, "from": step.source, "dtype": step.type.dtype.name}


def _encode_extern(step: CallExtern, bound: Mapping[str, tuple[Binding, ...]]) -> dict[str, Any]:
    definition = step.definition
    if definition.target in STEPS:
        return _STEP_ENCODERS[definition.target](*definition.args)
    encoded = {
        "do": "extern",
        "target": definition.target,
        "args": [encode_argument(argument) for argument in definition.args],
        "kwargs": {name: encode_argument(argument) for name, argument in definition.kwargs},
        "results": list(step.results),
    }
    names = [(position, name) for position, name in enumerate(step.results) if name is not None]
    binds = [[binding.symbol, position, binding.axis] for position, name in names for binding in bound.get(name, ())]
    if binds:
        encoded["binds"] = binds
    origin = list(dict.fromkeys(str(origin) for origin in definition.origins if str(origin)))
    if origin:
        encoded["origin"] = origin
    strides = [_result_strides(value, name) for value, name in zip(definition.results, step.results, strict=True)]
    return encoded | {"strides": strides} if any(row is not None for row in strides) else encoded


def _encode_size(symbol: Symbolic, view: View, axis: int) -> dict[str, Any]:
    return {"do": "let", "name": str(symbol), "value": {"size": [view.name, axis]}}


def _encode_read(symbol: Symbolic, view: View) -> dict[str, Any]:
    return {"do": "item", "name": str(symbol), "from": view.name, "dtype": view.dtype.name}


def _encode_let(symbol: Symbolic, value: Size) -> dict[str, Any]:
    return {"do": "let", "name": str(symbol), "value": host_expression(value)}


def _encode_check(
    condition: tuple[Any, ...], message: str, named: tuple[Any, ...], error: str | None = None
) -> dict[str, Any]:
    names = [[name, host_expression(size)] for name, size in named]
    encoded = {"do": "check", "holds": _encode_condition(condition), "message": message, "names": names}
    return encoded if error is None else encoded | {"error": error}


def _encode_condition(condition: tuple[Any, ...]) -> list[Any]:
    kind, *parts = condition
    return [kind, *map(host_expression if kind in COMPARISONS else _encode_condition, parts)]


_STEP_ENCODERS: dict[str, Callable[..., dict[str, Any]]] = {
    SIZE: _encode_size,
    READ: _encode_read,
    LET: _encode_let,
    CHECK: _encode_check,
}


def encode_call(
    step: CallGraph, bound: Mapping[str, tuple[Binding, ...]], with_destinations: Collection[str] = ()
) -> dict[str, Any]:
    """Returns a call of a graph.

    Args:
        step: the call.
        bound: which symbols results bind, by name.
        with_destinations: the bodies of loops that are given storage for results.
    """
    definition = step.definition
    given: dict[str, Any] = {"args": list(definition.args), "sizes": list(map(host_expression, definition.sizes))}
    given["results"] = list(step.results)
    match definition:
        case Call():
            return {"do": "call", "graph": definition.callee, **given}
        case If():
            chosen = {"then": definition.then, "else": definition.otherwise}
            return {"do": "if", "condition": definition.condition, **chosen, **given}
        case While():
            graphs = {"condition": definition.condition, "body": definition.body}
            binds = {"binds": list(map(str, definition.binds))} if definition.binds else {}
            buffers = {"buffers": True} if definition.body in with_destinations else {}
            stacks: dict[str, Any] = {"stacks": True} if definition.stacked else {}
            for symbol in (found.symbol for value in definition.results for found in bound.get(value.name, ())):
                stacks["turns"] = symbol
            return {"do": "while", **graphs, **given, **binds, **buffers, **stacks}
        case For():
            buffers = {"buffers": True} if definition.body in with_destinations else {}
            stacked = [encode_layout(value.type) for value in definition.results[definition.carried :]]
            turns = {"count": host_expression(definition.count), "rows": definition.sliced, "stacked": stacked}
            return {"do": "for", "graph": definition.body, **given, **turns, **buffers}


def _result_strides(value: Value | None, name: str | None) -> list[Expr] | None:
    if value is None or name is None:
        return None
    return list(map(host_expression, value.type.strides))


def _encode_copy(step: Copy) -> dict[str, Any]:
    return {"do": "copy", "to": step.target, "from": step.source}


def _encode_free(step: Free) -> dict[str, Any]:
    return {"do": "free", "names": list(step.names)}


_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Allocate: _encode_allocate,
    Keep: _encode_keep,
    Reuse: _encode_reuse,
    MakeView: _encode_view,
    Item: _encode_item,
    Copy: _encode_copy,
    Free: _encode_free,
}


def encode_step(
    step: Step, launches: Sequence[LaunchForm], bound: Mapping[str, tuple[Binding, ...]], scratch: str
) -> dict[str, Any]:
    """Returns a host step.

    Args:
        step: of the schedule.
        launches: how the schedule's kernels, in order, are launched.
        bound: which symbols results of calls bind.
        scratch: what the host calls the scratch memory of kernels.
    """
    if isinstance(step, Launch):
        form = launches[step.kernel]
        return encode_launch(form, (*step.args, scratch) if form.scratch else step.args)
    if isinstance(step, CallExtern):
        return _encode_extern(step, bound)
    encoder = _ENCODERS.get(type(step))
    if encoder is None:
        raise EmitError(
            f"unknown host step {type(step).__name__}; the known ones are in ferrite_scheduler.model.schedule"
        )
    return encoder(step)
