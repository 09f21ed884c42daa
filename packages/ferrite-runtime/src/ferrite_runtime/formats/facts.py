"""Facts of kernels: what a writer knows of a kernel that config policies, predictions and reports compute with.

Each kernel form has a record with what is a fact of that form only, here or in the form's own module. Facts are claims
of whoever wrote the spec, so all but a few may be left out, and all are checked for type and range when a spec is read.

A form is written in one module of `ferrite_runtime.kernel_forms`, above this folder, as its configs are there as well.
They are imported when the first spec is read, and not before: the one import upward, of `spec_forms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from ferrite_runtime.errors import SpecError, UnknownField
from ferrite_runtime.formats.json_fields import Fields, check_identifier, check_integer

Value = int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What may be known of a kernel of any form.

    Attributes:
        stated: names of the facts that the spec states; the others are as by default.
        loads, stores: distinct buffers read and written.
        reductions: reduction definitions.
        ops: scalar operations per point.
        flops: scalar operations of one launch.
        bytes: unavoidable memory traffic of one launch; None if the writer does not say.
        element_bytes: bytes of the widest element; 0 if the writer does not say.
        numel: product of the sizes of the grid axes.
        atomics, random: whether it has atomic updates, or draws random numbers.
        asserts: whether it has assertions, which are compiled where that is asked for.
        checked: whether they are.
        place: a digest of where the kernel is from, which they say then, so that others from elsewhere are others.
        contiguous_axis: the stride-1 axis of most of the traffic, ``x``, ``y`` or ``r``; None if there is none.
        transposed: whether a good part of the traffic has another stride-1 grid axis.
        neighbours: length of the shortest contiguous stretch along a stride-1 axis, where an access jumps after a few
            positions; 0 where none does.
        noncoalesced: whether few of the columns that a tile holds are adjacent in memory.
        vectors: vectors that all rows of a matrix are combined, or reduced, with.
        registers: most registers per thread, on NVIDIA GPUs; 0 for as many as there are.
    """

    stated: tuple[str, ...] = field(default=(), compare=False)
    loads: int = 1
    stores: int = 1
    reductions: int = 0
    ops: int = 0
    flops: int = 0
    bytes: int | None = None
    element_bytes: int = 0
    numel: int = 0
    atomics: bool = False
    random: bool = False
    asserts: bool = False
    checked: bool = False
    place: str | None = None
    contiguous_axis: str | None = None
    transposed: bool = True
    neighbours: int = 0
    noncoalesced: bool = False
    vectors: int = 0
    registers: int = 0

    @property
    def has_no_contiguous_axis(self) -> bool:
        """Returns whether the writer says that neighbours in memory are on no axis."""
        return "contiguous_axis" in self.stated and self.contiguous_axis is None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form: what the spec states."""
        return {name: getattr(self, name) for name in self.stated}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointwiseFacts(Facts):
    """Of kernels without a reduction axis.

    Attributes:
        percent_apart: percentage of the bytes that are read along no stride-1 axis.
        sorted: whether rows of ``y`` that are combined into one destination follow each other.
        unrolled: results that a lane has at each point of the axes, one for each of as many rows.
        window: loads of one tensor that a point takes, at most, of which a thread reads each element by itself.
    """

    percent_apart: int = 0
    sorted: bool = False
    unrolled: int = 1
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComboFacts(PointwiseFacts):
    """Of combo kernels.

    Attributes:
        parts: how often the grid axes are repeated, each time for other buffers; ``loads`` and ``stores`` count all.
    """

    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionFacts(Facts):
    """Of kernels with a reduction axis.

    Attributes:
        reduction_size: points of it.
        live_values: tile-sized values alive at once.
        passes: loops over the reduction axis; more than one read the rows again.
        rows_together: rows of a column that are reduced with each other first: fast where one thread holds them.
        row_per_thread: whether each thread reduces a short row of its own, element by element.
    """

    reduction_size: int = 0
    live_values: int = 1
    passes: int = 1
    rows_together: int = 1
    row_per_thread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumnFacts(ReductionFacts):
    """Of row reductions with partial column reductions.

    Attributes:
        chunk: positions of ``x`` that one program takes in blocks, one after the other: the grid has one program for
            each chunk, whatever ``XBLOCK``; the last chunks may be shorter, or empty.
    """

    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionFacts(ReductionFacts):
    """Of products of few rows by a matrix.

    Attributes:
        product: products of tiles of ``y`` and ``x`` (``tl.dot``) that the loop over the reduction axis adds up; 0
            without tensor cores. No block may be less than 16; stages are software-pipelined.
        multiplied_rows: rows of ``y`` that the loop multiplies with each element of a matrix; 0 with tensor cores.
    """

    product: int = 0
    multiplied_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledContractionFacts(ReductionFacts):
    """Of products of matrices that are computed tile by tile.

    Attributes:
        product: products of tiles of ``y`` and ``x`` that a program adds up, all over the same axes. No block may be
            less than 16; stages are software-pipelined.
        left_bytes, right_bytes: bytes that a point of a block of the left factors, and of the right ones, is loaded
            with.
        factor_bytes: bytes of an element of what is multiplied.
        partial_sums: whether sums of tensor cores are added to others in f32 from time to time, so that a program holds
            both.
        part_products: how many products of parts are added up for one of factors that are split, 1 of whole ones.
        row_groups: in how many groups the rows on ``y`` are, each with tiles and right factors of its own; 0 for none.
        sum_groups: in how many groups the points of ``r`` are, one for each position on ``z``; 0 for none.
        left_elements, right_elements: how many of the left and right factors a thread loads element by element, as
            their rows begin anywhere.
    """

    product: int = 1
    left_bytes: int = 2
    right_bytes: int = 2
    factor_bytes: int = 2
    partial_sums: bool = False
    part_products: int = 1
    row_groups: int = 0
    sum_groups: int = 0
    left_elements: int = 0
    right_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts(ReductionFacts):
    """Of attention: programs have rows of scores, which they make block by block along the reduction axis.

    Attributes:
        sums: tiles of ``y`` and ``x`` that a program adds up.
        products: tiles of ``y`` and ``r`` that it makes in each round. No block may be less than 16; stages are
            software-pipelined.
        depth: lanes that these products are summed over, together.
        factors: tiles of ``r`` and ``x`` that are loaded in each round; the factors of products that are summed up as
            well are none.
        factor_bytes: bytes of an element of what is multiplied.
        softmax: whether the weights of a row are normalised, so that sums are scaled in each round.
    """

    sums: int = 1
    products: int = 1
    depth: int = 64
    factors: int = 1
    factor_bytes: int = 2
    softmax: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts(ReductionFacts):
    """Of kernels whose programs share a line of the reduction axis, and wait for each other.

    Such a kernel takes a workspace, zeros or what the step ``keep`` names, and cannot be measured by repeating it.

    Attributes:
        splits: programs that share a line.
        register_tiles: tiles of the reduction axis that each of them holds, one after the other: the grid has one
            program for all of them.
    """

    splits: int = 1
    register_tiles: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNormFacts(SplitFacts):
    """Of register-resident norms.

    Attributes:
        threads: threads of a program, on every GPU: the text relies on their number.
    """

    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts(Facts):
    """Of kernels whose config is part of their text.

    Attributes:
        num_warps, num_stages: the config.
    """

    num_warps: int = 4
    num_stages: int = 3


Kind = TypeVar("Kind", bound=Facts)


def facts_as(facts: Facts, kind: type[Kind]) -> Kind:
    """Returns the facts of a kernel of which the caller knows the form, as the record of that form."""
    assert isinstance(facts, kind), f"{type(facts).__name__} of a kernel that should have {kind.__name__}"
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecForm:
    """What a spec of a form may say, and who may do what with its kernels.

    Attributes:
        name: what specs give in ``form``.
        facts: the record of its facts.
        holds_rows: whether programs hold a whole reduction axis in one tile.
        waits_for: which programs of a launch those of a form wait for: ``none``, ``earlier`` ones, or ``all``. Kernels
            whose programs wait cannot be measured by running them again.
        joins: whether a kernel can be a part of a mixed combo.
    """

    name: str
    facts: type[Facts]
    holds_rows: bool = False
    waits_for: str = "none"
    joins: bool = False

    @property
    def waits(self) -> bool:
        """Returns whether programs wait for others."""
        return self.waits_for != "none"

    def read_facts(self, value: object, path: str) -> Facts:
        """Returns the facts of a kernel of this form, as ``value`` states them; raises as `read_facts` does."""
        return read_facts(self.name, self.facts, value, path)


@cache
def spec_forms() -> Mapping[str, SpecForm]:
    """Returns all kernel forms, by name."""
    from ferrite_runtime.kernel_forms import all_forms  # forms have configs, which are made of specs

    return all_forms()


def read_facts(form: str, kind: type[Facts], value: object, path: str) -> Facts:
    """Returns the facts of a kernel of this form, whose record is ``kind``, as ``value`` states them.

    Raises:
        UnknownField, SpecError: naming the field under ``path`` that is unknown, missing or wrong.
    """
    inner = Fields(value, path)
    known = {each.name: each for each in fields(kind) if each.name != "stated"}
    found: dict[str, Value] = {}
    for name in list(inner.names()):
        if name not in known:
            raise UnknownField(f"{path}.{name}", f"a {form} kernel has no such fact; known: {', '.join(known)}")
        found[name] = _read_fact(inner.take(name), str(known[name].type), f"{path}.{name}")
    for name, each in known.items():
        if each.default is MISSING and name not in found:
            raise SpecError(f"{path}.{name}", f"a {form} kernel has to state it")
    return kind(stated=tuple(found), **found)  # type: ignore[arg-type]


def _read_fact(value: object, kind: str, path: str) -> Value:
    if kind == "bool":
        if not isinstance(value, bool):
            raise SpecError(path, f"true or false is needed, not {value!r}")
        return value
    if kind.startswith("str"):
        return None if value is None else check_identifier(value, path)
    if check_integer(value, path) < 0:
        raise SpecError(path, f"{value!r} is out of range")
    return check_integer(value, path)
