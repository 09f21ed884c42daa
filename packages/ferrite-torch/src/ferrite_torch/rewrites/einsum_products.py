"""Sums of Einstein's that are products of matrices, as products of matrices: attention is often spelled so.

    einsum("b q h d, b k h d -> b h q k", q, k)
    q.permute(0, 2, 1, 3) @ k.permute(0, 2, 1, 3).transpose(-1, -2)

It is what torch's function computes, in the same order: the batch as the result has it, rows of the one operand,
columns of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ferrite_torch.torch_private.nodes import add_call, add_method_call, fake_at, fake_of

ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A sum of Einstein's by the letters of its dims, of which ``depth`` is summed along."""

    batch: str
    row: str
    column: str
    depth: str

    @classmethod
    def of(cls, left: str, right: str, result: str) -> MatrixProduct | None:
        """Returns what a sum is, None where it is no product of two matrices, or of batches of them."""
        words = (left, right, result)
        if any(len(set(word)) != len(word) for word in words) or not set(result) <= {*left, *right}:
            return None
        batch = "".join(letter for letter in result if letter in left and letter in right)
        rows = [letter for letter in left if letter not in right]
        columns = [letter for letter in right if letter not in left]
        depths = [letter for letter in left if letter in right and letter not in result]
        if not len(rows) == len(columns) == len(depths) == 1 or not {*rows, *columns} <= set(result):
            return None
        return cls(batch, rows[0], columns[0], depths[0])


def take_einsums_apart(graph: Graph) -> int:
    """Writes products of matrices in the place of sums of Einstein's that are such; returns how many were."""
    count = 0
    for node in graph.find_nodes(op="call_function", target=torch.einsum):
        equation, *operands = node.args
        if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
            operands = list(operands[0])
        fakes = [fake_of(operand) for operand in operands]
        if isinstance(equation, str) and len(operands) == 2 and all(fake is not None for fake in fakes):
            words = letters_of(equation, [fake.ndim for fake in fakes if fake is not None])
            count += words is not None and _rewrite(node, operands, words)
    return count


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[str, str, str] | None:
    """Returns the letters of the dims of two operands and of the result, None where the equation does not say them.

    Dims that an ellipsis stands for have capital letters from the end of the alphabet.
    """
    given, arrow, result = equation.replace(" ", "").partition("->")
    words = given.split(",")
    if not arrow or len(words) != 2 or len(ranks) != 2:
        return None
    hidden = [rank - len(word.replace(ELLIPSIS, "")) for word, rank in zip(words, ranks, strict=True)]
    if (
        any((count != 0) != (ELLIPSIS in word) for word, count in zip(words, hidden, strict=True))
        or len(set(hidden)) > 1
    ):
        return None
    rest = "ZYXWVUTS"[: hidden[0]][::-1]
    if hidden[0] > len(rest) or (rest and any(letter in equation for letter in rest)):
        return None
    left, right, out = (word.replace(ELLIPSIS, rest) for word in (*words, result))
    return left, right, out


def _rewrite(node: Node, operands: Sequence[Any], words: tuple[str, str, str]) -> bool:
    left, right, result = words
    if result and result[-1] in left and result[-1] not in right:
        left, right, operands = right, left, operands[::-1]
    found = MatrixProduct.of(left, right, result)
    pairs = zip((left, right), operands, strict=True)
    sizes = [dict(zip(word, fake_at(each).shape, strict=True)) for word, each in pairs]
    if found is None or any(sizes[0][letter] != sizes[1][letter] for letter in (*found.batch, found.depth)):
        return False  # some dims are broadcast
    with node.graph.inserting_before(node):
        rows = _permuted(operands[0], left, found.batch + found.row + found.depth)
        if found.depth == right[-1]:
            columns = _permuted(operands[1], right, found.batch + found.column + found.depth)
            columns = add_method_call(columns, "transpose", -1, -2)
        else:
            columns = _permuted(operands[1], right, found.batch + found.depth + found.column)
        product = add_call(torch.matmul, rows, columns)
        whole = _permuted(product, found.batch + found.row + found.column, result)
    for each in (product, whole):
        each.meta = {**node.meta, **each.meta}
    node.replace_all_uses_with(whole)
    node.graph.erase_node(node)
    return True


def _permuted(node: Node, letters: str, wanted: str) -> Node:
    order = [letters.index(letter) for letter in wanted]
    return node if order == sorted(order) else add_method_call(node, "permute", *order)
