"""Kernel forms: how the programs of a kernel divide its points among them, a closed family.

This file is all that the scheduler's stages know of a form: a class says which clusters have it, what its programs are
counted on for, and its own fields; `FORMS` lists the classes. Each later layer has one table from these classes to what
it does with them: where axes lie and what a program does (`ferrite_triton`), and, by the form's name in the kernel
spec, which configs to try (`ferrite_runtime`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import ClassVar, TypeAlias

from ferrite_ir.language.graph import Contract, Definition
from ferrite_ir.language.graph import Scan as ScanDefinition
from ferrite_ir.language.sizes import Size, ceildiv

from .annotations import LookBackScan as LookBackDefinition
from .axes import Axis
from .contractions import uses_tensor_cores
from .group_blocks import COLUMNS
from .policy import Policy
from .tiled_contractions import is_tiled

WRITTEN_APART = {"text": "apart"}
"""Marks a field that a schedule's text has in the body of the kernel, not behind the name of the form."""
LIGHT_SCANS = frozenset(("sum", "prod"))
"""Scans of one value, with a combine of one instruction."""
WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is asked of a cluster to find the form of its kernel.

    Attributes:
        definitions: its members.
        kinds: the reduction-level algorithms among them; none of pointwise work. See `analysis.clusters.Cluster`.
        is_symbolic: whether how long the reduction axis is is known when the kernel runs, not before.
        chunks: in how many chunks its rows are cut, each for one program; 0 without column reductions.
        inner: length of the blocks of a row that are reduced by themselves; 0 without any.
        fits_tile: tells whether one tile holds the reduction axis.
        tile_limit: tells how long a symbolic reduction axis may be for one tile to hold it; 0 for never.
        norm_block: positions of an image that a program holds, where it is a register-resident norm; else 0.
        policy: the thresholds.
    """

    definitions: tuple[Definition, ...]
    kinds: frozenset[str]
    is_symbolic: bool
    chunks: int
    inner: int
    fits_tile: Callable[[], bool]
    tile_limit: Callable[[], int]
    norm_block: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class Form:
    """What all forms are.

    Attributes:
        name: what texts and specs call it.
        overwrites: which results may take the memory of an operand that nothing reads later: ``any`` that is stored
            where the operand was read; those that are ``stored last``, when all of it has been read; or ``none``.
        has_passes: whether the reduction axis is gone through once for each reduction that needs another's result, so
            that what is computed along it is computed again in each.
        joins: whether its programs wait for no others, do not count them, and take the time of their memory traffic:
            then a kernel can share its launch with kernels of other forms.
        separates: whether a kernel becomes several of one launch if its definitions are independent.
        turns: whether its programs take a small part of memory each, and may begin in any order: then a kernel can go
            through its grid from the end.
    """

    name: ClassVar[str]
    overwrites: ClassVar[str] = "any"
    has_passes: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    separates: ClassVar[bool] = False
    turns: ClassVar[bool] = False

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Form | None:
        """Returns the form of a cluster's kernel, None if it has another; forms that refinements give have none."""
        return None


@dataclass(frozen=True, slots=True)
class Pointwise(Form):
    """Every point of the grid is on its own; there is no reduction axis."""

    name: ClassVar[str] = "pointwise"
    joins: ClassVar[bool] = True
    turns: ClassVar[bool] = True

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Pointwise | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return None if cluster.kinds else cls()


@dataclass(frozen=True, slots=True)
class Combo(Form):
    """Horizontal fusion of pointwise work: the grid is gone through once for each part, by programs of its own.

    Attributes:
        parts: numbers of definitions, in the order of the body, of each part. Definitions of two parts share no storage
            unless it is small and only read.
    """

    name: ClassVar[str] = "combo"
    joins: ClassVar[bool] = True
    turns: ClassVar[bool] = True
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComboPart:
    """A kernel that shares its launch with others, but for what stands in the whole: its definitions and params.

    Attributes:
        name: as it would have alone.
        form: how its own programs divide its points among them.
        axes: its iteration space; the kernel of all parts has none.
        count: of definitions of the body, in order, that are its own.
    """

    name: str
    form: Form
    axes: tuple[Axis, ...]
    count: int


@dataclass(frozen=True, slots=True)
class MixedCombo(Form):
    """Horizontal fusion of kernels of any forms and spaces: each has programs of its own.

    Attributes:
        parts: the kernels, in the order of the body.
        takes_turns: whether neighbouring programs belong to different parts (round-robin); otherwise the programs of a
            part follow each other.
    """

    name: ClassVar[str] = "mixed_combo"
    parts: tuple[ComboPart, ...] = field(default=(), metadata=WRITTEN_APART)
    takes_turns: bool = False


@dataclass(frozen=True, slots=True)
class PersistentReduction(Form):
    """A program holds the whole reduction axis of its rows in one tile.

    Attributes:
        block_length: length of the blocks of the reduction axis that some reductions of the body combine, each by
            itself; 0 where all reductions are over the whole axis. Such reductions, and what is computed once per
            block, have the outer ones of the reduction axis's dims among their ``dims``.
    """

    name: ClassVar[str] = "persistent"
    joins: ClassVar[bool] = True
    separates: ClassVar[bool] = True
    turns: ClassVar[bool] = True
    block_length: int = 0

    @classmethod
    def of(cls, cluster: ClusterFacts) -> PersistentReduction | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        if cluster.inner:
            return cls(cluster.inner)
        return None if cluster.is_symbolic or not cluster.fits_tile() else cls()


@dataclass(frozen=True, slots=True)
class RowColumnReduction(Form):
    """A persistent reduction with partial column reductions fused into it (`annotations.ColumnReduction`).

    A program takes the rows of a chunk one after the other and adds them up by column; another kernel combines the
    chunks' sums.

    Attributes:
        chunks: in how many chunks the positions of ``x`` are cut; there is a program for each, though it be empty.
    """

    name: ClassVar[str] = "row_column"
    joins: ClassVar[bool] = True
    chunks: int

    def chunk_length(self, rows: Size) -> Size:
        """Returns the number of positions of ``x`` in a chunk; the last ones may have fewer."""
        return ceildiv(rows, self.chunks)

    @classmethod
    def of(cls, cluster: ClusterFacts) -> RowColumnReduction | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls(cluster.chunks) if cluster.chunks else None


@dataclass(frozen=True, slots=True)
class LoopedReduction(Form):
    """A program walks the reduction axis in blocks, once for each reduction that needs the result of another.

    Attributes:
        persistent_up_to: how long a symbolic reduction axis may be to fit in one tile: the kernel has another version
            for those; 0 if it never does.
    """

    name: ClassVar[str] = "looped"
    overwrites: ClassVar[str] = "stored last"
    has_passes: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    separates: ClassVar[bool] = True
    persistent_up_to: int = 0

    @classmethod
    def of(cls, cluster: ClusterFacts) -> LoopedReduction | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls(cluster.tile_limit()) if cluster.is_symbolic else cls()


@dataclass(frozen=True, slots=True)
class Contraction(Form):
    """Few rows, all of them in one tile on ``y``, by a matrix, whose columns lie on ``x``; see `model.contractions`.

    Attributes:
        tensor_cores: whether these multiply the rows, all at once; else they are multiplied one by one.
    """

    name: ClassVar[str] = "contraction"
    overwrites: ClassVar[str] = "stored last"
    has_passes: ClassVar[bool] = True
    tensor_cores: bool = True

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Contraction | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls(uses_tensor_cores(cluster.definitions, cluster.policy)) if "contract" in cluster.kinds else None


@dataclass(frozen=True, slots=True)
class TiledContraction(Form):
    """Products of matrices, of which each program has one tile; see `model.tiled_contractions`.

    Attributes:
        row_groups: in how many groups rows are (`ferrite_ir.Segments`), of which a tile has one; 0 for none.
    """

    name: ClassVar[str] = "tiled_contraction"
    row_groups: int = 0

    @classmethod
    def of(cls, cluster: ClusterFacts) -> TiledContraction | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        contracts = [d for d in cluster.definitions if isinstance(d, Contract)] if "contract" in cluster.kinds else []
        if not any(is_tiled(contract, cluster.policy) for contract in contracts):
            return None
        grouped = (contract.segments for contract in contracts if contract.has_grouped_rows)
        return cls(max((int(segments.group.size) for segments in grouped if segments is not None), default=0))


@dataclass(frozen=True, slots=True)
class Attention(Form):
    """Rows of scores that are never stored: programs have a block of rows each, and go through the columns of scores.

    See `ferrite_ir.language.attend`. Rows lie on ``y``, columns of the result, all of them in one tile, on ``x``, and
    a batch on ``z``.
    """

    name: ClassVar[str] = "attention"

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Attention | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls() if "attend" in cluster.kinds else None


@dataclass(frozen=True, slots=True)
class GridReduction(Form):
    """Programs hold a block each of a long reduction axis, and combine what they publish; see `grid_reductions`.

    Attributes:
        block_length: points of the reduction axis that a program holds, a power of two.
        workspace: the param through which they tell each other, zeros; "" until it has one.
    """

    name: ClassVar[str] = "grid_reduction"
    overwrites: ClassVar[str] = "stored last"
    block_length: int
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class RegisterNorm(Form):
    """Register-resident group norm: as a grid reduction, over the channels of a group, too.

    See `fusion.norm_fusion`.

    Attributes:
        block_length: points of the reduction axis that a program holds, a power of two.
        channels: positions of ``x`` that it holds of each.
        workspace: the param through which programs tell each other, kept from launch to launch; "" until it has one.
        prefetch_distance: how many images ahead programs that wait prefetch; 0 where they do not.
    """

    name: ClassVar[str] = "register_norm"
    overwrites: ClassVar[str] = "stored last"
    block_length: int
    channels: int
    workspace: str = ""
    prefetch_distance: int = 0

    @classmethod
    def of(cls, cluster: ClusterFacts) -> RegisterNorm | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls(cluster.norm_block, COLUMNS) if cluster.norm_block else None


@dataclass(frozen=True, slots=True)
class Scan(Form):
    """Prefix scans along the reduction axis.

    Attributes:
        longest: longest reduction axis that one tile holds; longer ones are walked in blocks, with what was carried.
    """

    name: ClassVar[str] = "scan"
    overwrites: ClassVar[str] = "none"
    joins: ClassVar[bool] = True
    separates: ClassVar[bool] = True
    longest: int = 4096

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Scan | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        if "scan" not in cluster.kinds:
            return None
        is_light = all(
            scan.combine in LIGHT_SCANS and result.type.dtype.compute.bits <= WORD_BITS
            for scan in cluster.definitions
            if isinstance(scan, ScanDefinition)
            for result in scan.results
        )
        policy = cluster.policy
        return cls(policy.scan_elements if is_light else min(policy.scan_elements, policy.heavy_scan_elements))


@dataclass(frozen=True, slots=True)
class LookBackScan(Form):
    """A scan by decoupled look-back: programs hold a block each of a long line (`annotations.LookBackScan`).

    Attributes:
        block_length: points of the line that a program holds, a power of two.
        prefetch_distance: how many blocks ahead programs that wait prefetch; 0 where they do not.
    """

    name: ClassVar[str] = "look_back"
    overwrites: ClassVar[str] = "none"
    block_length: int
    prefetch_distance: int = 0

    @classmethod
    def of(cls, cluster: ClusterFacts) -> LookBackScan | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        shared = next((d for d in cluster.definitions if isinstance(d, LookBackDefinition)), None)
        return None if shared is None else cls(shared.points)


@dataclass(frozen=True, slots=True)
class Sort(Form):
    """Rows are sorted, each in one tile."""

    name: ClassVar[str] = "sort"
    overwrites: ClassVar[str] = "none"

    @classmethod
    def of(cls, cluster: ClusterFacts) -> Sort | None:
        """Returns the form of a cluster's kernel, None if it has another."""
        return cls() if "sort" in cluster.kinds else None


FORMS: dict[str, type[Form]] = {
    form.name: form
    for form in (
        Pointwise,
        Combo,
        MixedCombo,
        Sort,
        LookBackScan,
        Scan,
        Attention,
        TiledContraction,
        Contraction,
        RegisterNorm,
        RowColumnReduction,
        PersistentReduction,
        LoopedReduction,
        GridReduction,
    )
}
"""The family, by name; a cluster's kernel has the first that claims the cluster."""

Waiting: TypeAlias = GridReduction | RegisterNorm | LookBackScan
"""Forms whose programs share a line of the reduction axis, and wait for each other."""


def form_text(form: Form) -> str:
    """Returns a form with the fields that are not as by default: ``grid_reduction(block_length=1024)``."""
    given = [(each, getattr(form, each.name)) for each in fields(form) if each.metadata != WRITTEN_APART]
    shown = [f"{each.name}={_value_text(value)}" for each, value in given if value != each.default]
    return f"{form.name}({', '.join(shown)})" if shown else form.name


def parse_form(text: str) -> Form:
    """Returns the form that `form_text` writes so.

    Raises:
        ValueError: there is no such form, or it has no such fields; the message lists what there is.
    """
    name, _, rest = text.strip().partition("(")
    kind = FORMS.get(name)
    if kind is None:
        raise ValueError(f"{name!r} is no kernel form; there are {', '.join(FORMS)}")
    given: dict[str, str | int | tuple[int, ...]] = {}
    for word in filter(None, (word.strip() for word in rest.rstrip(")").split(","))):
        key, _, value = word.partition("=")
        given[key] = _value(kind, key, value)
    missing = [each.name for each in fields(kind) if each.default is MISSING and each.name not in given]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}")
    return kind(**given)


def _value_text(value: str | int | tuple[int, ...]) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(kind: type[Form], key: str, text: str) -> str | int | tuple[int, ...]:
    types = {each.name: each.type for each in fields(kind) if each.metadata != WRITTEN_APART}
    if key not in types:
        raise ValueError(f"{kind.name} has no {key!r}; it has {', '.join(types) or 'no fields'}")
    if types[key] == "str":
        return text
    if types[key] == "bool":
        return text == "True"
    try:
        numbers = tuple(map(int, text.split("+")))
    except ValueError:
        raise ValueError(f"{kind.name}: {key} is {text!r}, a number is needed") from None
    return numbers if types[key] != "int" else numbers[0]
