"""The contraction that a product of matrices, or of batches of them, is, and facts about the library's products."""

from __future__ import annotations

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Point, Tensor

DEVICES = ("cuda",)
"""Device types whose library is slower than kernels of ours at some products: small ones, few rows, odd extents."""


def contract_matrices(b: Builder, left: Tensor, right: Tensor, *, fast: bool = False) -> Tensor:
    """Returns the product of ``left[…, m, k]`` and ``right[…, k, n]`` in the type that it is carried in.

    It is that of an op which gives the type of its factors, so that it may be rounded to that.

    Args:
        b: the graph.
        left: matrices, no extent 0.
        right: the others, of the same type.
        fast: whether tensor cores may round more than the types say (`Contract.fast`).
    """

    def first(point: Point, inside: Point) -> Scalar:
        return left.at((*point[:-1], *inside))

    def second(point: Point, inside: Point) -> Scalar:
        return right.at((*point[:-2], *inside, point[-1]))

    shape = (*left.shape[:-1], right.shape[-1])
    return b.contract(shape, left.shape[-1:], first, second, fast=fast, stored=stored_type(left.dtype))


def stored_type(factors: DType) -> DType | None:
    """Returns what a product whose op gives the type of its factors may be rounded to (`Contract.stored`)."""
    return factors if factors.is_half else None
