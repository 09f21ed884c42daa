"""Ops that take a float which may change, such as a learning rate, in pieces that take it as a tensor.

Dynamo keeps a float symbolic as long as only sums, products and comparisons of tensors use it. In the place of a factor
of an optimiser's op it would be fixed to its value, and each new value would compile anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.torch_private.nodes import example_of, target_name


def _added(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + y * alpha


def _subtracted(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - y * alpha


def _added_product(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return x + a * b * value


def _added_quotient(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return x + a / b * value


def _between(x: Any, y: Any, weight: Any) -> Any:
    return x + (y - x) * weight


_RULES: Mapping[str, Callable[..., Any]] = {
    "add.Tensor": _added,
    "sub.Tensor": _subtracted,
    "addcmul.default": _added_product,
    "addcdiv.default": _added_quotient,
    "lerp.Scalar": _between,
    "_foreach_add.List": _added,
    "_foreach_sub.List": _subtracted,
    "_foreach_add.Scalar": lambda x, y: x + y,
    "_foreach_sub.Scalar": lambda x, y: x - y,
    "_foreach_mul.Scalar": lambda x, y: x * y,
    "_foreach_div.Scalar": lambda x, y: x / y,
    "_foreach_addcmul.Scalar": _added_product,
    "_foreach_addcdiv.Scalar": _added_quotient,
    "_foreach_lerp.Scalar": _between,
}
"""What an op of aten, or its elements for one of lists, is in pieces."""

_TAKES_TENSOR = ("add.Tensor", "sub.Tensor")
"""Ops that stay whole with a symbolic float in the place of a tensor: only as a factor it is in the way."""


def float_rules(decompositions: Mapping[Any, Any]) -> dict[Any, Callable[..., Any]]:
    """Returns decompositions by overload for calls with symbolic floats; all others go where they went."""
    rules = {}
    for name, rule in _RULES.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        rules[op] = _only_with_floats(name, rule, decompositions.get(op))
    return rules


def _only_with_floats(name: str, rule: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    taken = _each(rule) if name.startswith("_foreach") else rule

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        scalars = kwargs.values() if name in _TAKES_TENSOR else (*args, *kwargs.values())
        if any(isinstance(scalar, torch.SymFloat) for scalar in scalars):
            return taken(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return decomposed


def _each(rule: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> list[Any]:
        rows: list[Sequence[Any]] = [arg if isinstance(arg, (list, tuple)) else [arg] * len(args[0]) for arg in args]
        return [rule(*row, **kwargs) for row in zip(*rows, strict=True)]

    return decomposed


_FACTORS: Mapping[str, tuple[str, int]] = {
    "add": ("alpha", 1),
    "sub": ("alpha", 1),
    "addcmul": ("value", 1),
    "addcdiv": ("value", 1),
    "_foreach_add": ("alpha", 1),
    "_foreach_sub": ("alpha", 1),
    "_foreach_addcmul": ("value", 1),
    "_foreach_addcdiv": ("value", 1),
}
"""By the name of a function: the argument that is a factor, and the position of the operand that it multiplies."""


def multiply_out(module: torch.fx.GraphModule) -> None:
    """Makes the factors of sums in dynamo's graph products of their own, where they are floats that may change.

    Autograd's own kernels fix such a factor before any decomposition sees it, and torch 2.11 fixes what is computed
    from such a float before it meets a tensor. So a sign is put on the product: optimisers add by ``-lr``.
    """
    has_changed = False
    for node in list(module.graph.nodes):
        factor, position = _FACTORS.get(target_name(node).removesuffix("_"), ("", 0))
        number = node.kwargs.get(factor)
        if node.op not in {"call_function", "call_method"} or not _is_float(number) or len(node.args) <= position:
            continue
        operands = node.args[position]
        listed = operands if isinstance(operands, (list, tuple)) else [operands]
        if not all(map(_is_floating, listed)):
            continue
        with module.graph.inserting_before(node):
            products = [module.graph.call_function(operator.mul, (operand, number)) for operand in listed]
        for product, operand in zip(products, listed, strict=True):
            product.meta["example_value"] = example_of(operand)
        multiplied = products if isinstance(operands, (list, tuple)) else products[0]
        node.args = (*node.args[:position], multiplied, *node.args[position + 1 :])
        node.kwargs = {key: value for key, value in node.kwargs.items() if key != factor}
        has_changed = True
    for node in list(module.graph.nodes):
        if node.target is operator.neg and _is_float(node):
            _put_sign_on_products(module.graph, node)
            has_changed = True
    if has_changed:
        module.recompile()


def _put_sign_on_products(graph: torch.fx.Graph, negative: torch.fx.Node) -> None:
    """Makes products with a negated float negated products with the float."""
    for user in list(negative.users):
        if user.target in {operator.mul, torch.mul} and len(user.args) == 2 and not user.kwargs:
            others = [arg for arg in user.args if arg is not negative]
            if len(others) == 1 and _is_tensor(others[0]):
                user.args = (others[0], negative.args[0])
                with graph.inserting_after(user):
                    turned = graph.call_function(operator.neg)
                user.replace_all_uses_with(turned)
                turned.args = (user,)
    if not negative.users:
        graph.erase_node(negative)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(example_of(value), torch.Tensor)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(example_of(value), torch.SymFloat)


def _is_floating(value: Any) -> bool:
    example = example_of(value) if isinstance(value, torch.fx.Node) else None
    return isinstance(example, torch.Tensor) and example.is_floating_point()
