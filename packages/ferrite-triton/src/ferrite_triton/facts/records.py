"""Facts of kernels as typed records: what every form has, and one record for the facts of each form alone.

``docs/kernel-spec.md`` says what each of them means; ``ferrite_runtime.formats.facts`` reads them. A fact that is None
is not stated, and its reader takes the default of the format.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFacts:
    """Facts of kernels of any form but templates; ``contiguous_axis`` is stated even if it is None: there is none."""

    loads: int
    stores: int
    reductions: int
    ops: int
    flops: int
    bytes: int
    element_bytes: int
    contiguous_axis: str | None
    transposed: bool
    numel: int
    atomics: bool
    random: bool
    asserts: bool | None = None
    neighbours: int | None = None
    noncoalesced: bool | None = None
    vectors: int | None = None
    registers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseFacts:
    """Of kernels without a reduction axis, combo kernels among them."""

    percent_apart: int | None = None
    sorted: bool | None = None
    unrolled: int | None = None
    window: int | None = None
    parts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionFacts:
    """Of kernels with a reduction axis."""

    reduction_size: int
    live_values: int
    passes: int | None = None
    rows_together: int | None = None
    row_per_thread: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumnFacts:
    """Of row reductions with partial column reductions, beside those of reductions."""

    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionFacts:
    """Of products of few rows by a matrix: products on tensor cores, or rows that are multiplied one by one."""

    product: int | None = None
    multiplied_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledContractionFacts:
    """Of products of matrices that are computed tile by tile."""

    product: int
    left_bytes: int
    right_bytes: int
    factor_bytes: int
    partial_sums: bool
    part_products: int | None = None
    row_groups: int | None = None
    sum_groups: int | None = None
    left_elements: int | None = None
    right_elements: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """Of attention."""

    sums: int
    products: int
    depth: int
    factors: int
    factor_bytes: int
    softmax: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts:
    """Of kernels whose programs share a line of the reduction axis, and wait for each other."""

    splits: int
    register_tiles: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNormFacts:
    """Of register-resident norms."""

    splits: int
    register_tiles: int | None = None
    threads: int


FormFacts: TypeAlias = (
    RowColumnFacts | ContractionFacts | TiledContractionFacts | AttentionFacts | SplitFacts | RegisterNormFacts
)


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts of a kernel that a schedule has.

    Attributes:
        common: those of all forms.
        axes: those of kernels with a reduction axis, or of kernels without one.
        form: those of its form alone, if there are any.
    """

    common: CommonFacts
    axes: PointwiseFacts | ReductionFacts
    form: FormFacts | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form: what is stated."""
        stated = {**_stated(self.common), **_stated(self.axes)}
        return stated if self.form is None else {**stated, **_stated(self.form)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """Of kernels whose config is part of their text.

    Attributes:
        num_warps, num_stages: the config.
        bytes: of memory that one launch must move, if they are many.
        registers: most that a thread may have.
        asserts: whether it calls device functions that assert.
    """

    num_warps: int
    num_stages: int = 1
    bytes: int | None = None
    registers: int | None = None
    asserts: bool | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form: what is stated."""
        return _stated(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedComboFacts:
    """Of mixed combos: what their parts have together; each part has facts of its own."""

    loads: int
    stores: int
    reductions: int
    ops: int
    flops: int
    bytes: int
    numel: int
    element_bytes: int
    atomics: bool
    random: bool
    asserts: bool | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return _stated(self)


Facts: TypeAlias = KernelFacts | TemplateFacts | MixedComboFacts


def _stated(
    record: CommonFacts | PointwiseFacts | ReductionFacts | FormFacts | TemplateFacts | MixedComboFacts,
) -> dict[str, Any]:
    named = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: value for name, value in named.items() if value is not None or name == "contiguous_axis"}
