"""The iteration space of a kernel as its tile program has it: axes, the dims that lie in them, tile shapes and masks.

Every dim of an axis is written as a function of the axis's flat position (``x``, ``y``, ``z``, ``r``), so contiguous
dims melt together in the index algebra and the others become one division or remainder each.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import I32
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.sizes import Size, is_provably_at_most, is_static
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.forms import (
    Combo,
    Contraction,
    Form,
    GridReduction,
    LookBackScan,
    PersistentReduction,
    RegisterNorm,
    RowColumnReduction,
    Scan,
    Sort,
    TiledContraction,
    Waiting,
)
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.size_params import SizeParams
from ferrite_triton.analysis.traversal import (
    InBlocks,
    InOneTile,
    InRegisterTiles,
    Misalignment,
    RowPerThread,
    Traversal,
)
from ferrite_triton.tile.build import add, mul, quotient, remainder
from ferrite_triton.tile.language import Block, BlockSize, Expand, Expression, Lanes, Literal, Shape

Axes = frozenset[str]
NO_AXES: Axes = frozenset()
# The positions in a tile that holds the first elements of sorted rows: no axis of any kernel, but lanes all the same.
RANK: Axes = frozenset(["rank"])
# Positions along the reduction axis that the compiler knows to be neighbours, where ``r`` hides it.
POSITION = "position"
# The reduction axis, and the axis that counts its blocks where those are reduced by themselves.
REDUCTION_AXES: Axes = frozenset(("r", "b"))
ROUNDS_AXIS, DESCRIPTORS_AXIS = "t", "l"

PRODUCT_ROWS = 16
"""Rows that tensor cores multiply at once."""


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """One axis of a kernel.

    Attributes:
        name: ``x``, ``y``, ``z`` or ``r``; also the name of the flat position in the program. ``t`` numbers the tiles
            of a program that takes several, and the block of ``l`` says whether blocks are loaded through descriptors;
            they have no points of their own.
        size: number of points.
        tiled: whether a tile has an extent along it; otherwise a program has one position (size 1, or one per program).
        masked: whether tiles may reach past the end.
        block: fixed block, or None where the config chooses.
        max_block: largest block that the text allows, or None.
    """

    name: str
    size: Size
    tiled: bool
    masked: bool
    block: int | None
    max_block: int | None

    @property
    def constant(self) -> str:
        """Returns the name of the block constant."""
        return f"{self.name.upper()}BLOCK"

    @property
    def is_whole(self) -> bool:
        """Returns whether a tile holds all of a grid axis: then no program has its part of it."""
        return (
            self.tiled
            and not self.is_reduction
            and self.block is not None
            and is_provably_at_most(self.size, self.block)
        )

    @property
    def is_reduction(self) -> bool:
        """Returns whether this is the reduction axis, or that of the blocks it is cut into."""
        return self.name in REDUCTION_AXES

    @property
    def has_points(self) -> bool:
        """Returns whether a kernel is computed at points along this axis, or its block alone says something."""
        return self.name not in (ROUNDS_AXIS, DESCRIPTORS_AXIS)


HELD, WARP = 4, 32
"""Elements of 32 bits that a thread reads at once, and threads of a warp."""


@dataclass(frozen=True, slots=True)
class Space:
    """All axes of a kernel.

    Attributes:
        axes: grid axes from ``z`` to ``x``, then ``r``; before it ``b`` where blocks of the reduction axis are reduced
        too.
        order: names of the tiled axes, slowest in memory first.
        mapping: each dim of the kernel as an index of flat positions.
        form: how programs divide the points among them.
        traversal: how a program has its line of the reduction axis in tiles.
        least: what a symbolic reduction axis has at least, where the text is for some sizes only.
        multiple: what divides it there.
        inner: axes that no program has its part of, along which tiles lie that are no results; see `attention_space`.
        params: the params for symbolic sizes, as far as the text needs them yet.
    """

    axes: tuple[KernelAxis, ...]
    order: tuple[str, ...]
    mapping: dict[Dim, Index]
    form: Form
    traversal: Traversal
    least: int = 0
    multiple: int = 1
    inner: tuple[KernelAxis, ...] = ()
    params: SizeParams = field(default_factory=SizeParams)

    def axis(self, name: str) -> KernelAxis | None:
        """Returns the axis with this name, or None."""
        return next((axis for axis in (*self.axes, *self.inner) if axis.name == name), None)

    @property
    def loops(self) -> bool:
        """Returns whether the reduction axis is gone through in blocks."""
        return isinstance(self.traversal, InBlocks)

    @property
    def serial(self) -> int:
        """Returns how many neighbours one thread holds of a block that does not lie in order; 0 of one that does."""
        return self.traversal.serial if isinstance(self.traversal, InBlocks) else 0

    @property
    def misalignment(self) -> Misalignment | None:
        """Returns by how much blocks of the reduction axis begin before rows, None where they begin with them."""
        return self.traversal.misalignment if isinstance(self.traversal, InBlocks) else None

    @property
    def register_tiles(self) -> int:
        """Returns how many tiles a program takes of its block of a line, one after the other."""
        return self.traversal.count if isinstance(self.traversal, InRegisterTiles) else 1

    @property
    def row_per_thread(self) -> bool:
        """Returns whether each thread goes through a row of its own."""
        return isinstance(self.traversal, RowPerThread)

    @property
    def parts(self) -> int:
        """Returns how often the grid axes are gone through, each time by programs of another part of a combo kernel."""
        return len(self.form.parts) if isinstance(self.form, Combo) else 1

    @property
    def splits(self) -> int:
        """Returns how many programs share a line of the reduction axis, each with one block of it; 0 of other forms."""
        if self.reduction is None or not isinstance(self.form, Waiting):
            return 0
        return -(-int(self.reduction.size) // self.form.block_length)

    @property
    def row_groups(self) -> int:
        """Returns in how many groups the rows of a kernel are, each with tiles of its own; 0 of other kernels."""
        return self.form.row_groups if isinstance(self.form, TiledContraction) else 0

    @property
    def chunk_length(self) -> Size:
        """Returns how many rows a program takes of a chunked axis; where ``x`` is masked the last take fewer."""
        rows = self.axis("x")
        if rows is None or not isinstance(self.form, RowColumnReduction):
            raise AssertionError("only programs of row-column reductions take chunks of rows")
        return self.form.chunk_length(rows.size)

    @property
    def grid(self) -> tuple[KernelAxis, ...]:
        """Returns the grid axes, outermost first."""
        return tuple(axis for axis in self.axes if not axis.is_reduction and axis.has_points)

    @property
    def reduction(self) -> KernelAxis | None:
        """Returns the reduction axis, or None; the points of a block where it is cut into blocks."""
        return self.axis("r")

    @property
    def blocks(self) -> KernelAxis | None:
        """Returns the axis that counts the blocks of the reduction axis, or None where it is not cut."""
        return self.axis("b")

    @property
    def reduction_size(self) -> Size:
        """Returns the number of points of the reduction axis, those of all its blocks."""
        size: Size = 1
        for axis in self.axes:
            size = size * axis.size if axis.is_reduction else size
        return size

    @property
    def reduces_tile(self) -> bool:
        """Returns whether tiles have an extent along the reduction axis."""
        return "r" in self.order

    @property
    def reduction_position(self) -> int:
        """Returns the position of the reduction axis in tiles."""
        return self.order.index("r")

    def reduction_lanes(self) -> Expression:
        """Returns the positions of a block of the reduction axis, counted from its start, in the order of the tile."""
        lanes = Lanes(Block("RBLOCK"))
        if not self.serial:
            return lanes
        groups, serial = BlockSize(Block("RBLOCK", self.serial), I32), Literal(self.serial, I32)
        return add(mul(remainder(lanes, groups), serial), quotient(lanes, groups))

    def shape(self, axes: Axes) -> Shape:
        """Returns the shape of a value that varies along these axes: extent 1 along the others, ``()`` for none."""
        if not axes & frozenset(self.order):
            return ()
        return tuple(Block(f"{name.upper()}BLOCK") if name in axes else 1 for name in self.order)

    def expand(self, name: str, vector: Expression) -> Expression:
        """Returns a vector along an axis as a tile of the kernel's rank."""
        if len(self.order) == 1:
            return vector
        return Expand(vector, tuple(number for number, other in enumerate(self.order) if other != name))

    def is_held_along(self, axes: Axes) -> bool:
        """Returns whether a thread holds several elements of a tile that differ in their positions along these axes.

        Along the innermost axis, threads hold neighbours that they read at once, and what a warp reads in more steps.
        """
        tiled = self.tiled(axes)
        if not tiled:
            return False
        if self.row_per_thread or tiled - {self.order[-1]}:
            return True
        axis = self.axis(self.order[-1])
        size = axis.size if axis is not None else 1
        return not is_static(size) or int(size) % HELD == 0 or int(size) > 2 * WARP

    def tiled(self, axes: Axes) -> Axes:
        """Returns the axes along which a value that depends on ``axes`` has an extent."""
        return axes & frozenset(self.order)


def flat_dim(axis: KernelAxis) -> Dim:
    """Returns the dim that stands for the flat position of an axis."""
    return Dim(axis.name, axis.size)


def dim_mapping(axes: tuple[Axis, ...]) -> dict[Dim, Index]:
    """Returns every dim of the axes as an index of the axis's flat position; dims of extent 1 become 0."""
    mapping: dict[Dim, Index] = {}
    for axis in axes:
        flat = Dim(axis.name, axis.size).index
        inner: Size = 1
        for position, dim in reversed(list(enumerate(axis.dims))):
            size = dim.size
            outer = ix.floordiv(flat, inner if inner != 0 else 1)
            if size == 1:
                mapping[dim] = ix.constant(0)
            else:
                mapping[dim] = outer if position == 0 else ix.mod(outer, size if size != 0 else 1)
            inner = inner * size
    return mapping


def build_space(kernel: Kernel, order: tuple[str, ...] | None = None) -> Space:
    """Returns a kernel's space; ``order`` says how tiles lie, slowest axis first (by default what is reduced last)."""
    is_across = order is not None and order[-1] == "x"
    axes = cut_axes(kernel)
    texts = [
        _reduction_axis(kernel, axis, is_across=is_across)
        if axis.name in REDUCTION_AXES
        else _grid_axis(kernel, axis, is_across=is_across)
        for axis in axes
    ]
    if not any(axis.name == "x" for axis in texts):
        position = sum(not axis.is_reduction for axis in texts)
        texts.insert(position, free_axis("x", 1, 1))
    tiled = tuple(axis.name for axis in texts if axis.tiled)
    if order is not None:
        tiled = tuple(name for name in order if name in tiled)
    reduction = kernel.reduction
    loops = reduction is not None and not is_held(kernel, reduction.size, is_across=is_across)
    traversal = InBlocks() if loops else InOneTile()
    return Space(tuple(texts), tiled, dim_mapping(axes), kernel.form, traversal)


def is_held(kernel: Kernel, size: Size, *, is_across: bool) -> bool:
    """Returns whether a tile holds a whole reduction axis of this size, or a program a block of it: nobody loops."""
    match kernel.form:
        case PersistentReduction() | RowColumnReduction() | GridReduction() | RegisterNorm() | LookBackScan():
            return True
        case Scan() | Sort():
            return sizes.is_static(size) and size <= _longest_line(kernel.form, is_across=is_across)
    return sizes.is_static(size) and size <= 1


def _longest_line(form: Scan | Sort, *, is_across: bool) -> int:
    if isinstance(form, Sort):
        return LOWERING.longest_row
    return LOWERING.longest_column if is_across else form.longest


def _reduction_axis(kernel: Kernel, axis: Axis, *, is_across: bool) -> KernelAxis:
    """Returns the reduction axis of a kernel, or one of the two into which it is cut; see `cut_axes`."""
    size = axis.size
    match kernel.form:
        case PersistentReduction(block_length=length) if length:
            return _whole_axis(axis.name, int(size))
        case GridReduction(block_length=length) | RegisterNorm(block_length=length) | LookBackScan(block_length=length):
            masked = not sizes.is_static(size) or size % length != 0
            return KernelAxis("r", size, tiled=True, masked=masked, block=length, max_block=length)
    if is_held(kernel, size, is_across=is_across):
        if not sizes.is_static(size):
            # A tile holds it whole: the config chooses the least block that it fits in.
            return KernelAxis("r", size, tiled=True, masked=True, block=None, max_block=None)
        block = next_power_of_two(int(size))
        return KernelAxis("r", size, tiled=size != 1, masked=size != block, block=block, max_block=block)
    generous = LOWERING.free_reduction
    if isinstance(kernel.form, Scan) and is_across:
        generous = LOWERING.longest_column
    elif isinstance(kernel.form, Contraction) and kernel.form.tensor_cores:
        generous = LOWERING.product_points
    return free_axis("r", size, generous, LOWERING.largest_reduction_block)


def _grid_axis(kernel: Kernel, axis: Axis, *, is_across: bool) -> KernelAxis:
    """Returns an axis of a kernel's grid.

    Of kernels that reduce, programs have one position of the outer axes each: tiles stay two-dimensional, and those of
    lines that programs share have one dimension, so that a thread does not have to know the states of all of them.
    """
    name, size = axis.name, axis.size
    if kernel.reduction is None:
        is_flat = sum(axis.size != 1 for axis in kernel.grid) == 1
        return free_axis(name, size, LOWERING.free_pointwise if is_flat else LOWERING.free_tiled)
    match kernel.form:
        case Contraction(tensor_cores=on_tensor_cores) if name == "y":
            return _whole_axis("y", int(size), PRODUCT_ROWS if on_tensor_cores else 1)
        case RegisterNorm(channels=channels) if name == "x" and is_across:
            return KernelAxis(
                name, size, tiled=True, masked=int(size) % channels != 0, block=channels, max_block=channels
            )
        case RowColumnReduction() if name == "x":
            return _chunked_axis(name, size, kernel.form)
        case LookBackScan():
            is_single = True
        case GridReduction() | RegisterNorm():
            is_single = name != "x" or not is_across
        case _:
            is_single = name != "x"
    if is_single:
        return KernelAxis(name, size, tiled=False, masked=False, block=1, max_block=1)
    return free_axis(name, size, LOWERING.free_grid)


def cut_axes(kernel: Kernel) -> tuple[Axis, ...]:
    """Returns the axes that programs have their part of: two for a reduction axis of blocks that are reduced as well.

    Of an unrolled axis every lane has all points; see `flat.unrolled`.
    """
    reduction, form = kernel.reduction, kernel.form
    if reduction is None or not isinstance(form, PersistentReduction) or not form.block_length:
        return tuple(axis for axis in kernel.axes if not axis.is_unrolled)
    outer, reached = len(reduction.dims), 1
    while reached < form.block_length:
        outer -= 1
        reached *= int(reduction.dims[outer].size)
    return (*kernel.grid, Axis("b", reduction.dims[:outer]), Axis("r", reduction.dims[outer:]))


def _chunked_axis(name: str, size: Size, form: RowColumnReduction) -> KernelAxis:
    """Returns an axis that is cut into chunks: with a mask unless all have equally many positions."""
    chunk = form.chunk_length(size)
    if sizes.is_static(size) and size == chunk * form.chunks:
        return KernelAxis(name, size, tiled=True, masked=False, block=None, max_block=chunk & -chunk)
    return KernelAxis(name, size, tiled=True, masked=True, block=None, max_block=None)


def _whole_axis(name: str, size: int, least: int = 1) -> KernelAxis:
    """Returns an axis that a tile holds whole, with at least so many lanes."""
    block = max(least, next_power_of_two(size))
    return KernelAxis(name, size, tiled=True, masked=size != block, block=block, max_block=block)


def in_register_tiles(space: Space, count: int) -> Space:
    """Returns a space whose programs take their block of the reduction axis in so many tiles."""
    axes = [
        replace(a, block=a.block // count, max_block=a.block // count) if a.name == "r" and a.block else a
        for a in space.axes
    ]
    return replace(space, axes=tuple(axes), traversal=InRegisterTiles(count))


def row_per_thread_space(space: Space) -> Space:
    """Returns a space of rows of which each thread has one, so that a program has many; see `row_per_thread`."""
    axes = [free_axis("x", axis.size, LOWERING.free_thread_rows) if axis.name == "x" else axis for axis in space.axes]
    return replace(space, axes=tuple(axes), traversal=RowPerThread())


def free_axis(name: str, size: Size, generous: int, largest: int = LOWERING.largest_block) -> KernelAxis:
    """Returns an axis whose block the config chooses, without a mask where its blocks can be made to divide it."""
    if size == 1:
        return KernelAxis(name, 1, tiled=False, masked=False, block=None, max_block=1)
    known = size if sizes.is_static(size) else sizes.factors(size)[0]
    divisor = known & -known
    if known > 0 and (divisor == size or divisor >= generous):
        return KernelAxis(name, size, tiled=True, masked=False, block=None, max_block=min(divisor, largest))
    return KernelAxis(name, size, tiled=True, masked=True, block=None, max_block=None)
