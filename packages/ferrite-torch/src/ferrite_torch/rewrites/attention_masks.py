"""Attention masks whose contents are known while compiling: those that hide nothing, and those that hide the future.

Models build masks from position numbers. Eagerly they look at the result, and leave it out or ask for causal attention
where that is what it says; while a graph is captured they cannot look, and pass it on. The fast attention kernels take
no mask, so that such a graph runs slower, and in more memory, than the model that it was captured from. What depends on
no input can be computed here, and looked at again; where sizes are symbolic, its elements are found as functions of
their place (`mask_elements.py`).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from ferrite_torch.rewrites.mask_elements import CAUSAL, Elements, Hiding, Line
from ferrite_torch.thresholds import ATTENTION
from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key, without_modes
from ferrite_torch.torch_private.nodes import attribute_read, fake_of, is_in_place_name
from ferrite_torch.torch_private.symbolic_shapes import symbolic_value

log = logging.getLogger(__name__)

HIDDEN = -1e30
"""An added number from here on hides a place whatever the scores are; the least float16, -65504, need not."""

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Parameters of scaled dot product attention, in order, as far as they matter here."""

_OPERATOR_NAMES = "add sub mul floordiv mod neg and_ or_ xor invert eq ne lt le gt ge getitem"
_COMMON_NAMES = """
    reshape unsqueeze squeeze transpose permute flatten where tril triu diff cumsum add sub mul eq ne lt le gt ge
    logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not minimum maximum clamp abs
"""
_FUNCTION_NAMES = "arange ones zeros full ones_like zeros_like full_like scalar_tensor cat stack isin"
_METHOD_NAMES = """
    new_ones new_zeros new_full expand view repeat to bool int long float half bfloat16 contiguous clone masked_fill
    all any
"""
_CHANGING_NAMES = """
    setitem delitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift
"""

_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    (
        *(getattr(operator, name) for name in _OPERATOR_NAMES.split()),
        *(getattr(torch, name) for name in (_COMMON_NAMES + _FUNCTION_NAMES).split()),
    )
)
"""Functions whose result depends on their arguments alone, and that change none of them."""
_SPECIAL_NAMES = tuple(f"__{name.strip('_')}__" for name in _OPERATOR_NAMES.split())
_METHODS = frozenset((*(_COMMON_NAMES + _METHOD_NAMES).split(), *_SPECIAL_NAMES))
"""Methods of the same kind; some releases of dynamo write operators as methods."""
_SHAPED = frozenset((torch.ones_like, torch.zeros_like, torch.full_like, "new_ones", "new_zeros", "new_full"))
"""Those of them that ask their first argument for its shape and type, not for its elements."""
_CHANGING = frozenset(_CHANGING_NAMES.split())
_READING = frozenset((F.embedding, F.dropout))
_READING_MODULES = frozenset(("torch", "torch._C._nn", "_operator"))


def simplify_masks(module: GraphModule) -> int:
    """Leaves out, or says as ``is_causal``, the attention masks of a dynamo graph that are known to mean just that.

    Returns how many calls of scaled dot product attention were changed; the graph is changed in place.
    """
    calls = [node for node in _calls(module.graph) if isinstance(_argument(node, "attn_mask"), Node)]
    if not calls:
        return 0
    changing = changing_storages(module.graph)
    elements = Elements(lambda node: _is_pure(node) and storage_of(node) not in changing, HIDDEN)
    verdicts: dict[tuple[Node, Any, Any], str | None] = {}
    changed = 0
    for call in calls:
        mask = _argument(call, "attn_mask")
        sizes = _sizes(call)
        if sizes is None or _argument(call, "is_causal"):
            continue
        if (mask, *sizes) not in verdicts:
            verdicts[mask, *sizes] = _meaning(mask, sizes, changing) or _meaning_anywhere(elements, mask, sizes)
        meaning = verdicts[mask, *sizes]
        if meaning is not None:
            _replace_mask(call, is_causal=meaning == "causal")
            changed += 1
    if changed:
        module.recompile()
        log.info("%d attention masks were left out: %s", changed, ", ".join(sorted(filter(None, verdicts.values()))))
    return changed


def _calls(graph: Graph) -> Iterable[Node]:
    return graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)


def _argument(call: Node, name: str) -> Any:
    position = _NAMES.index(name)
    return call.args[position] if position < len(call.args) else call.kwargs.get(name)


def _sizes(call: Node) -> tuple[Any, Any] | None:
    """Returns the numbers of queries and keys, symbolic ones as expressions; None where they are not known."""
    query, key = (_fake(_argument(call, name)) for name in ("query", "key"))
    if query is None or key is None or min(query.ndim, key.ndim) < 2:
        return None
    return _expression(query.shape[-2]), _expression(key.shape[-2])


def _expression(size: int | torch.SymInt) -> Any:
    """Returns a size such that those that are surely equal are equal: comparing symbolic numbers adds a guard."""
    if isinstance(size, int):
        return size
    expression = symbolic_value(size)[0]
    return int(expression) if expression.is_number else expression


def _fake(node: Any) -> torch.Tensor | None:
    value = fake_of(node)
    return value if value is not None and is_fake(value) else None


def _replace_mask(call: Node, *, is_causal: bool) -> None:
    args, kwargs = list(call.args), dict(call.kwargs)
    for name, value in (("attn_mask", None), ("is_causal", is_causal)):
        position = _NAMES.index(name)
        if position < len(args):
            args[position] = value
        else:
            kwargs[name] = value
    call.args, call.kwargs = tuple(args), kwargs


def _meaning(mask: Node, sizes: tuple[Any, Any], changing: frozenset[int]) -> str | None:
    """Returns ``"nothing"`` for a mask that hides nothing, ``"causal"`` for one that hides what is to come, or None."""
    value = known_value(mask, changing)
    if value is None:
        return None
    with without_modes():
        return _read(value, sizes)


def _meaning_anywhere(elements: Elements, mask: Node, sizes: tuple[Any, Any]) -> str | None:
    """Returns what `_meaning` does, for a mask that is not computed, if it means that for all sizes."""
    found = elements.of(mask)
    fake = _fake(mask)
    if found is None or fake is None:
        return None
    if isinstance(found, Line) and not found.factors:
        hides_nothing = found.constant == (1 if fake.dtype is torch.bool else 0)
        return "nothing" if hides_nothing else None
    seen = found.seen if isinstance(found, Hiding) else found
    if seen == Line(1):
        return "nothing"
    spans = tuple(map(_expression, fake.shape[-2:]))
    is_causal = seen == CAUSAL and (fake.dtype is torch.bool or seen is not found)
    return "causal" if is_causal and sizes[0] == sizes[1] and spans == sizes else None


def known_value(node: Node, changing: frozenset[int]) -> torch.Tensor | None:
    """Returns what a node computes, on the CPU, if it depends on nothing but constants; ``changing`` as given there.

    None where that is not known, or is too much to compute while compiling.
    """
    made_by = _makers(node)
    if made_by is None or any(storage_of(maker) in changing for maker in made_by):
        return None
    storages = {storage_of(maker): maker.meta["example_value"].untyped_storage().nbytes() for maker in made_by}
    if sum(storages.values()) > ATTENTION.mask_bytes:
        return None
    try:
        with without_modes(), torch.device("cpu"), torch.no_grad():
            return _computed(made_by)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        log.info("a mask stays, as computing it failed: %s", error)
        return None


def _makers(mask: Node) -> list[Node] | None:
    """Returns the nodes that compute a mask, in order, the mask last; None if it depends on more than constants."""
    found: set[Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if not _is_known(node):
            return None
        found.add(node)
        stack.extend(_operands(node))
    return [node for node in mask.graph.nodes if node in found]


def _operands(node: Node) -> list[Node]:
    """Returns the nodes whose elements a known node depends on."""
    shape = node.args[0] if node.target in _SHAPED else None
    return [operand for operand in node.all_input_nodes if operand is not shape]


def _is_known(node: Node) -> bool:
    fake = _fake(node)
    return fake is not None and all(isinstance(size, int) for size in fake.shape) and _is_pure(node)


def _is_pure(node: Node) -> bool:
    """Returns whether a node calls a function that reads its arguments' elements and writes none."""
    if _fake(node) is None or "out" in node.kwargs:
        return False
    known = node.target in (_FUNCTIONS if node.op == "call_function" else _METHODS)
    return known and node.op in ("call_function", "call_method")


def storage_of(node: Node) -> int | None:
    """Returns what tells the storage of a node's tensor from others; None where it has no one tensor."""
    fake = _fake(node)
    return None if fake is None else storage_key(fake)


def changing_storages(graph: Graph) -> frozenset[int]:
    """Returns the storages that something in the graph writes to, or may write to."""
    return written_storages(graph.nodes)


def written_storages(nodes: Iterable[Node]) -> frozenset[int]:
    """Returns the storages that some nodes of a graph write to, or may write to."""
    touched = (operand for node in nodes if _may_write(node) for operand in node.all_input_nodes)
    return frozenset(key for key in map(storage_of, touched) if key is not None)


def _may_write(node: Node) -> bool:
    """Returns whether a node may write to an operand: all do but those that plainly have no side effects."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    target: Any = node.target
    if "out" in node.kwargs or node.kwargs.get("inplace") or (target is F.dropout and len(node.args) > 3):
        return True
    if node.op == "call_method":
        return _writes_by_name(target)
    if node.op != "call_function":
        return True
    if target in _READING or target in _FUNCTIONS or attribute_read(node) is not None:
        return False
    return getattr(target, "__module__", None) not in _READING_MODULES or _writes_by_name(target.__name__)


def _writes_by_name(name: str) -> bool:
    """Returns whether an op of this name writes to an operand: ``add_``, ``__setitem__``, ``setitem``, ``iadd``."""
    return is_in_place_name(name) or name.strip("_") in _CHANGING


def _computed(nodes: Iterable[Node]) -> torch.Tensor:
    """Returns the value of the last of some nodes, computed on the CPU."""
    values: dict[Node, torch.Tensor] = {}
    for node in nodes:
        values[node] = _called(node, values)
    return list(values.values())[-1]


def _called(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor:
    def value_of(item: Any) -> Any:
        match item:
            case Node() if item in values:
                return values[item]
            case Node():  # only its type and, for those that return the same, its shape matter
                return torch.empty((), dtype=item.meta["example_value"].dtype).expand(node.meta["example_value"].shape)
            case torch.device():
                return torch.device("cpu")
        return item

    args: Any = torch.fx.node.map_aggregate(node.args, value_of)
    kwargs: Any = torch.fx.node.map_aggregate(node.kwargs, value_of)
    target: Any = node.target
    result: torch.Tensor = (
        getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
    )
    return result


def _read(mask: torch.Tensor, sizes: tuple[Any, Any]) -> str | None:
    """Returns what a mask of booleans (True is seen) or of added numbers means: see `_meaning`."""
    for axis, stride in enumerate(mask.stride()[:-2]):
        if stride == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    seen = mask if mask.dtype is torch.bool else mask == 0
    if bool(seen.all()):
        return "nothing"
    queries, keys = sizes
    if queries != keys or mask.shape[-2:] != sizes:
        return None
    causal = torch.ones(sizes, dtype=torch.bool).tril()
    if not bool((seen == causal).all()):
        return None
    hides = mask.dtype is torch.bool or bool((mask.masked_fill(causal, HIDDEN) <= HIDDEN).all())
    return "causal" if hides else None
