"""Reads what stands in an attention behind its domain: products, weights, factors, scale, mask and lists of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ferrite_ir.language.attend import BlockList, BlockSparsity, ScoreProduct
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import TensorType, Value
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar

from .expression_parser import Scope, read_bindings, read_scalar
from .tokens import Words

Scalars: TypeAlias = tuple[Scalar, ...]
Weights: TypeAlias = tuple[
    tuple[ScoreProduct, ...], Scalars, Scalars, Scalar | None, BlockSparsity | None, Scalar | None
]
"""Products, weights, factors, mask, blocks and scale, in the order in which an attention has them."""


def read_weights(words: Words, names: Sequence[str], inner: tuple[Dim, ...], scope: Scope) -> Weights:
    """Returns the rest of an attention.

    Args:
        words: what is read.
        names: of its products.
        inner: dims that products are summed over, and positions in lists.
        scope: what other names mean.

    Raises:
        ParseError: something else stands there.
    """
    scope.values = {**scope.values, **{name: Value(name, TensorType(F32, ())) for name in names}}
    read_bindings(words, scope)
    products: list[ScoreProduct] = []
    for name in names:
        if products:
            words.expect(",")
        products.append(_read_product(words, name, inner, scope))
    words.expect("weigh")
    weights = _read_scalars(words, scope)
    words.expect("times")
    factors = _read_scalars(words, scope)
    scale = None
    if words.accept("scaled"):
        words.expect("by")
        scale = read_scalar(words, scope)
    mask = read_scalar(words, scope) if words.accept("if") else None
    blocks = _read_blocks(words, inner, scope) if words.accept("in") else None
    return tuple(products), weights, factors, mask, blocks, scale


def read_dim(words: Words, dims: tuple[Dim, ...]) -> Dim:
    """Returns the dim that stands next, one of these.

    Raises:
        ParseError: none of them does.
    """
    token = words.next
    name = words.name("a dim")
    for dim in dims:
        if dim.name == name:
            return dim
    raise words.error(f"unknown dim {name!r}; known here: {', '.join(dim.name for dim in dims)}", token)


def _read_product(words: Words, name: str, inner: tuple[Dim, ...], scope: Scope) -> ScoreProduct:
    left = read_scalar(words, scope)
    words.expect("*")
    right = read_scalar(words, scope)
    words.expect("along")
    return ScoreProduct(name, left, right, read_dim(words, inner))


def _read_scalars(words: Words, scope: Scope) -> Scalars:
    found = [read_scalar(words, scope)]
    while words.accept(","):
        found.append(read_scalar(words, scope))
    return tuple(found)


def _read_blocks(words: Words, inner: tuple[Dim, ...], scope: Scope) -> BlockSparsity:
    words.expect("blocks")
    rows = _read_points(words)
    words.expect("by")
    columns = _read_points(words)
    masked = _read_list(words, inner, scope)
    whole = _read_list(words, inner, scope) if words.accept("whole") else None
    return BlockSparsity(rows, columns, masked, whole)


def _read_points(words: Words) -> int:
    token = words.take()
    if not token.text.isdecimal() or int(token.text) < 1:
        raise words.error(f"expected the points of a block, found {token.text!r}", token)
    return int(token.text)


def _read_list(words: Words, inner: tuple[Dim, ...], scope: Scope) -> BlockList:
    slot = read_dim(words, inner)
    words.expect("<")
    count = read_scalar(words, scope)
    words.expect("at")
    return BlockList(slot, count, read_scalar(words, scope))
