"""Library operators of extern steps: looked up at load, called through the cheapest way to the same operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ferrite_runtime.errors import ExternError, SpecError
from ferrite_runtime.formats.steps import Extern, Tagged

# torch's Python bindings reach the same dispatcher entry as the operator object, but sooner. Only operators
# are listed whose overloads the binding tells apart by the arguments that they always have.
_BINDINGS = {
    "aten.mm.default": "mm",
    "aten.addmm.default": "addmm",
    "aten.bmm.default": "bmm",
    "aten.baddbmm.default": "baddbmm",
    "aten.convolution.default": "convolution",
    "aten.mv.default": "mv",
    "aten.dot.default": "dot",
    "aten._scaled_dot_product_flash_attention.default": "_scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "_scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention.default": "_scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention.default": "_scaled_dot_product_cudnn_attention",
}

_ATTENTION = tuple(
    f"aten._scaled_dot_product_{kind}"
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
)

RESULTS_LIKE: Mapping[str, tuple[int, ...]] = {
    **{f"{name}.default": (0,) for name in _ATTENTION},
    **{f"{name}_backward.default": (1, 2, 3) for name in _ATTENTION},
}
"""Of calls that allocate little besides results about as large as arguments: which arguments, result by result."""

LOCAL_RESULTS: Mapping[str, int] = {
    **{target: len(like) for target, like in RESULTS_LIKE.items()},
    **{f"aten.{name}.default": 1 for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")},
}
"""Of calls with results on the device of their first argument: how many, from the first."""


CAPTURED = "captured"
"""The namespace of calls that only the captured graph has which a program was compiled from (`captured.cond.7`).

A higher-order op takes functions, and a function is no data. Its step names the call, and who loads the program beside
its graph hands the callable over; a program from a file has none.
"""


Captured = Mapping[str, Callable[..., Any]]
_NOTHING: Captured = MappingProxyType({})


def is_captured(target: str) -> bool:
    """Returns whether a target is a call of the captured graph, not an operator that has a name everywhere."""
    return target.partition(".")[0] == CAPTURED


def resolve_extern(target: str, captured: Captured = _NOTHING) -> Callable[..., Any]:
    """Returns the callable behind an extern target.

    Args:
        target: the name of an operator, or of a call of the captured graph.
        captured: the calls of the captured graph that are at hand, by their targets. Each returns a flat tuple.

    Raises:
        ExternError: if no such operator is registered in this process, or the call is not at hand.
    """
    import torch

    namespace, _, rest = target.partition(".")
    if namespace == CAPTURED:
        if target not in captured:
            raise ExternError(
                f"{target} is a call of the graph that this program was compiled from, which is not at hand; "
                "only torch.compile runs it"
            )
        return captured[target]
    if namespace == "ferrite":
        if rest not in _HELPERS:
            raise ExternError(f"the runtime has no helper {target}; it has {', '.join(sorted(_HELPERS))}")
        return _HELPERS[rest]
    found = find_operator(target)
    if target in _BINDINGS:
        return getattr(torch, _BINDINGS[target])  # type: ignore[no-any-return]
    operator = getattr(found, "_op", found)
    return _CHECKED[target](operator) if target in _CHECKED else operator


def _with_axes(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a Fourier transform that refuses axes which its tensor does not have: torch looks them up unseen."""

    def call(self: Any, dim: Sequence[int], *more: Any, **named: Any) -> Any:
        if any(not 0 <= axis < self.dim() for axis in dim):
            raise IndexError(f"a tensor of {self.dim()} axes is transformed along {tuple(dim)}")
        return operator(self, dim, *more, **named)

    return call


def _with_pivots(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the operator that takes factors apart, which refuses pivots that are not as many as these have."""

    def call(LU_data: Any, LU_pivots: Any, *more: Any, **named: Any) -> Any:  # noqa: N803  # the operator's names
        if LU_data.dim() >= 2 and LU_pivots.shape != (*LU_data.shape[:-2], min(LU_data.shape[-2:])):
            raise ValueError(f"factors of shape {tuple(LU_data.shape)} with pivots of {tuple(LU_pivots.shape)}")
        return operator(LU_data, LU_pivots, *more, **named)

    return call


def _with_gradient(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a gradient formula that refuses an empty gradient, of which torch reads the first element."""

    def call(grad_output: Any, *more: Any, **named: Any) -> Any:
        if grad_output.numel() == 0:
            raise ValueError("the gradient of a result is empty")
        return operator(grad_output, *more, **named)

    return call


_CHECKED: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    **{f"aten._fft_{kind}.default": _with_axes for kind in ("c2c", "c2r", "r2c")},
    "aten.lu_unpack.default": _with_pivots,
    "aten.multi_margin_loss_backward.default": _with_gradient,
}
"""Operators that would read outside of their tensors with some arguments, which they do not check: who does."""


def find_operator(target: str) -> Any:
    """Returns the operator overload object that ``target`` names."""
    import torch

    found: Any = None
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    operators = getattr(torch.ops, namespace, None)
    # `torch.ops` has functions of its own beside namespaces, and these have attributes that are no operators.
    if isinstance(operators, type(torch.ops.aten)):
        try:
            found = getattr(operators, name)
            found = getattr(found, overload) if overload else found
        except (AttributeError, RuntimeError):
            found = None
    if not isinstance(found, (type(torch.ops.aten.neg.default), type(torch.ops.aten.neg))):
        raise ExternError(f"no operator {target} is registered in this process; is its library imported?")
    return found


_ENUMERATIONS = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format", "Device": "device"}
"""Types of arguments that torch passes as numbers, and does not check, by the tag that stands for a value of each."""


def check_call(step: Extern, path: str) -> None:
    """Raises `SpecError` unless a call has the arguments that its operator declares, and tags for enumerations.

    What is called in the end is at times a binding of torch's, which takes more than the operator does: ``out=``.
    """
    is_operator = not step.target.startswith("ferrite.") and not is_captured(step.target)
    schema = getattr(find_operator(step.target), "_schema", None) if is_operator else None
    if schema is None:
        return
    _check_names(step, schema.arguments, path)
    for position, argument in enumerate(schema.arguments):
        given = step.args[position] if position < len(step.args) else step.kwargs.get(argument.name)
        kind = str(getattr(argument, "real_type", argument.type)).removeprefix("Optional[").removesuffix("]")
        wanted = _ENUMERATIONS.get(kind)
        if wanted is not None and given is not None and not (isinstance(given, Tagged) and given.tag == wanted):
            raise SpecError(path, f"argument {argument.name} of {step.target} is a {wanted}, not {given!r}")


def _check_names(step: Extern, declared: Sequence[Any], path: str) -> None:
    """Raises `SpecError` where a call has an argument too many, twice, or under a name that nobody declared."""
    positional = [argument.name for argument in declared if not argument.kwarg_only]
    if len(step.args) > len(positional):
        raise SpecError(path, f"{step.target} takes {len(positional)} arguments, {len(step.args)} are given")
    left = {argument.name for argument in declared if not argument.is_out} - {*positional[: len(step.args)]}
    for name in step.kwargs:
        if name not in left:
            raise SpecError(path, f"{step.target} has no argument {name[:60]!r} beside those that are given")


def result_kind(target: str) -> str:
    """Returns how an operator returns: ``"one"`` tensor, a flat ``"many"``, ``"none"`` or something ``"nested"``."""
    if target.startswith("ferrite."):
        return "one"
    if is_captured(target):
        return "many"
    schema = getattr(find_operator(target), "_schema", None)
    if schema is None:
        return "nested"
    kinds = [str(result.type) for result in schema.returns]
    if not kinds:
        return "none"
    if len(kinds) == 1:
        return "many" if kinds[0].startswith("List") else "one"
    return "nested" if any(kind.startswith("List") for kind in kinds) else "many"


def flatten_results(results: Any) -> tuple[Any, ...]:
    """Returns the tensors of a nested result, in order."""
    if isinstance(results, (list, tuple)):
        return tuple(leaf for result in results for leaf in flatten_results(result))
    return (results,)


def draw_seeds(count: int, device: Any) -> Any:
    """Returns ``i64[count]`` drawn from torch's default generator of ``device``."""
    import torch

    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, (count,), dtype=torch.int64, device=device)


def alias(x: Any) -> Any:
    """Returns ``x`` itself."""
    return x


_HELPERS: dict[str, Callable[..., Any]] = {"seed": draw_seeds, "alias": alias}
