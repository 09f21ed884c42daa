"""Choices of lowering that hold for a graph and for all graphs that it calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoweringChoices:
    """What of a graph becomes kernels, where there is a choice: from the user's options and the scheduler's policy.

    Attributes:
        extends_products: large products with odd extents are computed on operands extended with zeros.
        product_rows: most rows of products of half types that are no extern calls.
        wide_product_rows: the same of float32.
        multiplied_rows: of these, those that need no tensor cores.
        products: who computes those with more rows: ``library``, ``own`` kernels, these for ``small`` ones alone, or
            ``measured`` for what is faster, of which the scheduler will know.
        split_points: fewest points of sums of large products of float32 that may not be rounded, and that tensor cores
            compute in parts; 0 leaves them to the library.
        tunes_kernels: of users' Triton kernels more configs are tried than they state.
        is_captured: calls are played as CUDA graphs, so that the library's calls cost the host nothing.
        draws_numbers: kernels draw random numbers; False makes ops that do extern calls.
    """

    extends_products: bool = True
    product_rows: int = 0
    wide_product_rows: int = 0
    multiplied_rows: int = 0
    products: str = "library"
    split_points: int = 0
    tunes_kernels: bool = False
    is_captured: bool = False
    draws_numbers: bool = True


DEFAULT_CHOICES = LoweringChoices()
