"""Layout assignment (a term of XLA): channels-last images around convolutions that the library computes faster so.

    conv(x, w)                              row-major: the library transposes x, w and the result, in kernels of its own
    conv(channels_last(x), channels_last(w))                   the copies are ours, and fuse with what makes x

Every op of aten gives the same numbers whatever the strides of its operands; what its result lies like follows from
them. So a graph is walked once, in order: operands of convolutions that gain are put channels-last, and the layout of
each result that depends on one is asked of the op's fake kernel anew. Ops that read memory by strides, and those that
are not known not to, get their operands as they lay before, and so do the graph's results: users, gradients and written
inputs see what they would have seen.

The idea is that of layout assignment in XLA and of ``layout optimization`` in other compilers of torch.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node

from ferrite_torch.devices.facts import convolution_precision
from ferrite_torch.rewrites.layouts.eager_layouts import iterated
from ferrite_torch.rewrites.layouts.in_place_layouts import is_dense
from ferrite_torch.rewrites.layouts.layout_gains import HALF, TF32, Convolution, is_faster_channels_last
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_known

aten = torch.ops.aten

Form: TypeAlias = "torch.memory_format | tuple[int, ...]"
"""How a copy lies: a memory format, or the order of axes from the outermost to the innermost."""

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_HALVES = (torch.float16, torch.bfloat16)


class Effect(Enum):
    """What channels-last operands do to a convolution."""

    GAIN = "faster"
    NONE = "as fast"
    LOSS = "slower"


@dataclass(slots=True)
class Assignment:
    """What is to be changed in a graph.

    Attributes:
        fakes: the new fake results of nodes whose results lie otherwise than before.
        copies: for a node and one of its operands, the memory format or the order of axes that it is copied to.
        restored: for nodes whose results all readers are to see as they lay before, the order of axes.
    """

    fakes: dict[Node, Any] = field(default_factory=dict)
    copies: dict[tuple[Node, Node], Form] = field(default_factory=dict)
    restored: dict[Node, tuple[int, ...]] = field(default_factory=dict)

    def seen(self, node: Node) -> Any:
        """Returns the fake result that readers of a node see."""
        return self.fakes[node] if self.is_changed(node) else node.meta.get("val")

    def is_changed(self, node: Node) -> bool:
        """Returns whether readers of a node see a result that lies otherwise than before."""
        return node in self.fakes and node not in self.restored


class _Unassignable(Exception):
    """The graph has something that no layout but the given one can be had for."""


def assign_layouts(graph: Graph, effect_of: Callable[[Node], Effect] | None = None) -> int:
    """Puts convolutions of a functional aten graph channels-last where they gain; returns how many copies that takes.

    Args:
        graph: with fake results, made anew where they change: the mode that they belong to is to be active.
        effect_of: what channels-last operands do to a convolution, or to the backward of one.
    """
    effect_of = effect_of or measured_effect
    effects = {node: effect_of(node) for node in _convolutions(graph)}
    if Effect.GAIN not in effects.values():
        return 0
    try:
        assignment = _assigned(graph, effects)
    except _Unassignable:
        return 0
    return _apply(graph, assignment)


def _convolutions(graph: Graph) -> Iterator[Node]:
    for target in (aten.convolution.default, aten.convolution_backward.default):
        yield from graph.find_nodes(op="call_function", target=target)


def measured_effect(node: Node) -> Effect:
    """Returns what was found that channels-last operands do to a convolution on a GPU of NVIDIA."""
    is_forward = node.target is aten.convolution.default
    image, weight, _, stride, _, _, is_transposed, _, groups = node.args[:9] if is_forward else _forward_of(node.args)
    image, weight = image.meta["val"], weight.meta["val"]  # type: ignore[union-attr]
    if not _is_cuda(image) or image.dim() not in _FORMATS or not _has_library():
        return Effect.LOSS
    is_on_tensor_cores = image.dtype in _HALVES or (image.dtype is torch.float32 and convolution_precision() == "tf32")
    is_depthwise = not is_known(weight.shape[1] != 1) and groups != 1
    if not is_on_tensor_cores or (is_depthwise and image.dim() == 5):
        return Effect.LOSS
    if groups != 1:
        return Effect.NONE
    out, into, *window = weight.shape
    result = node.meta["val"] if is_forward else node.args[0].meta["val"]  # type: ignore[union-attr]
    convolution = Convolution(
        HALF if image.dtype in _HALVES else TF32,
        window,
        stride,  # type: ignore[arg-type]
        (out, into) if is_transposed else (into, out),
        is_transposed=bool(is_transposed),
        is_line=len(window) > 1 and is_known(image.shape[2] == 1),
        gflop=_gflop(image if is_transposed else result, weight),
    )
    return Effect.GAIN if is_faster_channels_last(convolution) else Effect.NONE


def _forward_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of a convolution from those of its backward: no gradient, nor sizes of a bias."""
    _, image, weight, _, *rest = args
    return (image, weight, None, *rest[:6])


def _gflop(positions: torch.Tensor, weight: torch.Tensor) -> float:
    """Returns 1e9 operations: two for each element at whose positions filters are multiplied; 0 for symbolic sizes."""
    elements = (positions.numel(), weight.numel(), weight.shape[0])
    if not all(isinstance(size, int) for size in elements):
        return 0.0
    return 2e-9 * elements[0] * elements[1] / max(1, elements[2])


def _is_cuda(fake: torch.Tensor) -> bool:
    return fake.device.type == "cuda"


def _has_library() -> bool:
    """Returns whether convolutions are NVIDIA's library's here: its layouts are known where there is a GPU only."""
    return torch.cuda.is_available() and not torch.version.hip and torch.backends.cudnn.enabled


def _operands_in_layout(node: Node) -> tuple[Node, ...]:
    """Returns the images and weights of a convolution."""
    count = 2 if node.target is aten.convolution.default else 3
    return tuple(arg for arg in node.args[:count] if isinstance(arg, Node))


def _assigned(graph: Graph, effects: Mapping[Node, Effect]) -> Assignment:
    assignment, shared = Assignment(), frozenset(_shared_results(graph))
    for node in graph.nodes:
        if node.op == "output":
            _restore(assignment, node, [operand for operand in node.all_input_nodes if assignment.is_changed(operand)])
        elif node.op == "call_function":
            _assign(assignment, node, effects.get(node))
            if node in shared and node in assignment.fakes:
                assignment.restored[node] = _order_of(node)
    return assignment


def _assign(assignment: Assignment, node: Node, effect: Effect | None) -> None:
    changed = [operand for operand in node.all_input_nodes if assignment.is_changed(operand)]
    if effect is Effect.GAIN:
        for operand in _operands_in_layout(node):
            fake = assignment.seen(operand)
            form = _FORMATS[fake.dim()]
            if not is_known(fake.is_contiguous(memory_format=form)):
                assignment.copies[node, operand] = form
    elif not changed:
        return
    elif effect is Effect.LOSS or not is_free_of_layout(node):
        _restore(assignment, node, changed)
    try:
        result = _result(assignment, node)
    except (RuntimeError, ValueError):  # a view that there is not of this layout
        _restore(assignment, node, changed)
        result = _result(assignment, node)
    if _lies_otherwise(result, node.meta.get("val")):
        assignment.fakes[node] = result


def _shared_results(graph: Graph) -> Iterator[Node]:
    """Yields the calls whose results are the memory of several results of the graph, which are to go on sharing it."""
    results = graph.output_node().all_input_nodes
    counts = Counter(storage_key(node.meta["val"]) for node in results if _is_tensor(node))
    shared = {key for key, count in counts.items() if count > 1}
    for node in graph.nodes:
        if node.op == "call_function" and _is_tensor(node) and storage_key(node.meta["val"]) in shared:
            shared.remove(storage_key(node.meta["val"]))
            yield node


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _restore(assignment: Assignment, node: Node, operands: list[Node]) -> None:
    for operand in operands:
        assignment.copies[node, operand] = _order_of(operand)


def _order_of(node: Node) -> tuple[int, ...]:
    """Returns the order of a tensor's axes in memory before anything was changed, from the outermost."""
    fake = node.meta["val"]
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided or not is_dense(fake):
        raise _Unassignable
    return tuple(iterated(fake, [fake]) or ())


def _result(assignment: Assignment, node: Node) -> Any:
    def fake_of(operand: Node) -> Any:
        fake = assignment.seen(operand)
        form = assignment.copies.get((node, operand))
        for target, rest, named in () if form is None else _copy_calls(form):
            fake = target(fake, *rest, **named)
        return fake

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), fake_of)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _lies_otherwise(result: Any, before: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_lies_otherwise(one, other) for one, other in zip(result, before, strict=True))
    if not isinstance(result, torch.Tensor) or not isinstance(before, torch.Tensor):
        return False
    pairs = zip(result.shape, result.stride(), before.stride(), strict=True)
    return any(not is_known(a == b) for size, a, b in pairs if not is_known(size == 1))


# --- ops that do not mind ---------------------------------------------------------------------------------------------

_FREE_NAMES = """
    convolution convolution_backward clone _to_copy permute transpose t expand squeeze unsqueeze slice select view
    _unsafe_view reshape cat constant_pad_nd sum mean amax amin var var_mean std prod any all where
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
    avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest3d upsample_nearest3d_backward
    upsample_trilinear3d upsample_trilinear3d_backward copy copy_ alias detach native_dropout native_dropout_backward
    squeeze_dims split split_with_sizes unbind zeros_like ones_like full_like rand_like threshold_backward
    gelu_backward silu_backward hardswish_backward hardtanh_backward hardsigmoid_backward leaky_relu_backward
    elu_backward _softmax _log_softmax flip index_put
"""
"""Ops whose numbers do not depend on how operands lie, beside those that torch tags as pointwise."""
_FREE = frozenset(_FREE_NAMES.split())


def is_free_of_layout(node: Node) -> bool:
    """Returns whether an op computes the same from operands that lie otherwise."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, Overload):
        return False
    name = schema_of(node.target).name.removeprefix("aten::")
    if str(node.target) == "aten.view.dtype" or node.target.namespace not in ("aten", "prims"):
        return False
    return torch.Tag.pointwise in node.target.tags or (node.target.namespace == "aten" and name in _FREE)


# --- the graph --------------------------------------------------------------------------------------------------------


def _apply(graph: Graph, assignment: Assignment) -> int:
    made: dict[tuple[Node, Any], Node] = {}
    for node, fake in assignment.fakes.items():
        node.meta["val"] = fake
    for node, order in assignment.restored.items():
        readers = list(node.users)
        with graph.inserting_after(node):
            copy = _copy_node(graph, node, order)
        for reader in readers:
            reader.replace_input_with(node, copy)
    for (user, operand), form in assignment.copies.items():  # in the order of users
        if (operand, form) not in made:
            is_result = user.op == "output"
            with graph.inserting_after(operand) if is_result else graph.inserting_before(user):
                made[operand, form] = _copy_node(graph, operand, form)
        user.replace_input_with(operand, made[operand, form])
    return len(made) + len(assignment.restored)


def _copy_calls(form: Form) -> Iterator[tuple[Overload, tuple[Any, ...], dict[str, Any]]]:
    """Yields the calls, one of the other's result, that copy a tensor to a memory format or with axes in an order."""
    if isinstance(form, torch.memory_format):
        yield aten.clone.default, (), {"memory_format": form}
        return
    is_moved = form != tuple(range(len(form)))
    if is_moved:
        yield aten.permute.default, (list(form),), {}
    yield aten.clone.default, (), {"memory_format": torch.contiguous_format}
    if is_moved:
        yield aten.permute.default, ([form.index(axis) for axis in range(len(form))],), {}


def _copy_node(graph: Graph, operand: Node, form: Form) -> Node:
    found = operand
    for target, rest, named in _copy_calls(form):
        below, fake = found, found.meta["val"]
        with graph.inserting_after(below) if below is not operand else nullcontext():
            found = graph.call_function(target, (below, *rest), named)
        found.meta = operand.meta | {"val": target(fake, *rest, **named)}
    return found
