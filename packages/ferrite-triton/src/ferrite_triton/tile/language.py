"""The tile language: typed blocks of values and operations on them; statements and programs are in `statements`.

A *tile program* is what one program instance of a grid does. Its values are *tiles*: blocks of elements with a shape
such as ``[XBLOCK, RBLOCK]``, whose extents are numbers and block constants that the launch chooses. Every statement
acts on all elements of its tiles at once. The model is Triton's (Tillet, Kung, Cox, "Triton: an intermediate language
and compiler for tiled neural network computations", 2019); unlike Triton's text, everything here has a type, loops say
what they carry from one round to the next, and each operation is an object with named operands.

Text of a program, which `parse_tile` reads back as the same program:

    tile @row_sum(in0: *f32, out0: *f32, n: i32) [RBLOCK] {
      x: i32 = program_id(axis=0)
      row: *f32 = offset(in0, mul(x, n))
      for start: i32 = i32(0), n, i32(RBLOCK) {
        carry total: f32[RBLOCK] = full(f32(0.0), shape=[RBLOCK])
        r: i32[RBLOCK] = add(start, lanes(extent=RBLOCK))
        inside: bool[RBLOCK] = lt(r, n)
        next total = add(total, load(offset(row, r), mask=inside, other=f32(0.0)))
      }
      store(offset(out0, x), reduce(total, combine=sum, axis=0))
    }
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number


@dataclass(frozen=True, slots=True)
class Block:
    """An extent that the launch chooses: a block constant, or an equal part of one."""

    constant: str
    parts: int = 1

    def __str__(self) -> str:
        return self.constant if self.parts == 1 else f"{self.constant} // {self.parts}"


Extent: TypeAlias = "int | Block"
Shape: TypeAlias = "tuple[Extent, ...]"


@dataclass(frozen=True, slots=True)
class TileType:
    """The type of a tile: of its elements, its shape (``()`` for a scalar), and whether they are addresses of such.

    Or the type of a descriptor of such tiles in memory.
    """

    dtype: DType
    shape: Shape = ()
    is_pointer: bool = False
    is_descriptor: bool = False

    def __str__(self) -> str:
        star = "*" if self.is_pointer else "descriptor " if self.is_descriptor else ""
        return f"{star}{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else f"{star}{self.dtype}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that a parameter, a statement or a loop defines, and its type."""

    name: str
    type: TileType


# --- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expression:
    """Part of a statement: a name, a number, or one of the operations below.

    A field of an operation is an operand if its type is an expression, and an attribute otherwise.
    """

    WORD: ClassVar[str] = ""
    """The operation in the text form."""


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """The value of a variable, or the number that a block constant stands for."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A number of a type."""

    value: Number
    dtype: DType


@dataclass(frozen=True, slots=True)
class BlockSize(Expression):
    """The number that a block constant stands for, or an equal part of it, as an integer of a type."""

    block: Block
    dtype: DType


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """An operand of a call that is known while compiling: a number, a truth value, a word, or nothing."""

    value: int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Elementwise(Expression):
    """An operation of `operations.ELEMENTWISE` on the elements of tiles; extents of 1 and scalars are repeated."""

    op: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """Elements converted to another type, as ``cast`` of the loop language converts them."""

    WORD: ClassVar[str] = "cast"
    value: Expression
    to: DType


@dataclass(frozen=True, slots=True)
class Bitcast(Expression):
    """The bits of elements read as another type of the same width."""

    WORD: ClassVar[str] = "bitcast"
    value: Expression
    to: DType


@dataclass(frozen=True, slots=True)
class ProgramId(Expression):
    """The position of this program instance along an axis of the grid: i32."""

    WORD: ClassVar[str] = "program_id"
    axis: int


@dataclass(frozen=True, slots=True)
class ProgramCount(Expression):
    """The number of program instances along an axis of the grid: i32."""

    WORD: ClassVar[str] = "num_programs"
    axis: int


@dataclass(frozen=True, slots=True)
class Lanes(Expression):
    """The numbers 0, 1, … up to an extent: i32, of rank 1."""

    WORD: ClassVar[str] = "lanes"
    extent: Extent


@dataclass(frozen=True, slots=True)
class Full(Expression):
    """A tile that has one scalar everywhere."""

    WORD: ClassVar[str] = "full"
    value: Expression
    shape: Shape


@dataclass(frozen=True, slots=True)
class Broadcast(Expression):
    """A tile repeated along axes where its extent is 1."""

    WORD: ClassVar[str] = "broadcast"
    value: Expression
    shape: Shape


@dataclass(frozen=True, slots=True)
class Reshape(Expression):
    """The elements of a tile, in row-major order, in another shape."""

    WORD: ClassVar[str] = "reshape"
    value: Expression
    shape: Shape


@dataclass(frozen=True, slots=True)
class Transpose(Expression):
    """A tile whose axis ``i`` is axis ``order[i]`` of another."""

    WORD: ClassVar[str] = "transpose"
    value: Expression
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expand(Expression):
    """A tile with further axes of extent 1, which have these positions in the result."""

    WORD: ClassVar[str] = "expand"
    value: Expression
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hint(Expression):
    """A tile of which the compiler is told something about its elements along each axis.

    ``says`` is ``multiple_of`` (the first of so many neighbours is a multiple of so much), ``max_contiguous`` (no more
    than so many neighbours are taken for contiguous) or ``max_constancy`` (so many neighbours, from each multiple of
    that on, are equal).
    """

    WORD: ClassVar[str] = "hint"
    value: Expression
    says: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dot(Expression):
    """The product of two matrices, added to a third.

    A ``fast`` one may round factors of f32 to the nearest TF32. Of at most ``few_digits`` products of 8-bit floats
    tensor cores make one sum, with the digits that they keep, before it is added to one of f32; 0 sets no such bound.
    """

    WORD: ClassVar[str] = "dot"
    left: Expression
    right: Expression
    accumulator: Expression
    fast: bool = False
    few_digits: int = 0


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """A call of a device function of the runtime, in a statement of its own.

    Its results have the types that are written beside their names; a call for its effect has none.
    """

    function: str
    operands: tuple[Expression, ...]
    results: tuple[TileType, ...] = ()


@dataclass(frozen=True, slots=True)
class Offset(Expression):
    """Addresses so many elements behind others."""

    WORD: ClassVar[str] = "offset"
    pointer: Expression
    elements: Expression


@dataclass(frozen=True, slots=True)
class Dispatch(Expression):
    """Where a number lies in one of several ranges, laid end to end from 0, and the scalars or addresses of that range.

    The operands are the number, and for each range its length and ``columns`` values. What is not in the others is in
    the last one.
    """

    WORD: ClassVar[str] = "dispatch"
    operands: tuple[Expression, ...]
    columns: int

    @property
    def ranges(self) -> list[tuple[Expression, ...]]:
        """Returns the length and the values of each range."""
        width = self.columns + 1
        return [self.operands[at : at + width] for at in range(1, len(self.operands), width)]


@dataclass(frozen=True, slots=True)
class Load(Expression):
    """What lies at addresses, where a mask holds; elsewhere ``other``, and without it a value that nothing may use.

    ``eviction`` is a cache hint: ``""``, ``"evict_first"`` or ``"evict_last"``. With ``row_per_thread`` each thread
    reads rows of its own, whatever layout the compiler would choose.
    """

    WORD: ClassVar[str] = "load"
    pointer: Expression
    mask: Expression | None = None
    other: Expression | None = None
    eviction: str = ""
    row_per_thread: bool = False


@dataclass(frozen=True, slots=True)
class Describe(Expression):
    """A tensor descriptor: where a matrix lies of which blocks of one shape are loaded, each as a whole (TMA).

    The operands are the address of its first element, its extent along each axis, and how many elements lie between
    neighbours along each axis, which is 1 along the last one. There may be any number of axes.
    """

    WORD: ClassVar[str] = "describe"
    operands: tuple[Expression, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class LoadBlock(Expression):
    """The block of a described matrix that begins at a position along each axis; zero outside of its extents.

    The operands are the descriptor and the positions.
    """

    WORD: ClassVar[str] = "load_block"
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choose(Expression):
    """The first of two values where a block constant is more than 1, else the second; only that one is compiled."""

    WORD: ClassVar[str] = "choose"
    chosen: Expression
    otherwise: Expression
    constant: Extent


@dataclass(frozen=True, slots=True)
class Reduce(Expression):
    """The elements along an axis combined, by a combine of `ferrite_ir.language.combines`, in an order of no promise.

    There is an operand and a result for each component of the combine's state. The axis goes, or stays with extent 1
    where ``keep`` says so.
    """

    WORD: ClassVar[str] = "reduce"
    operands: tuple[Expression, ...]
    combine: str
    axis: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Scan(Expression):
    """For each element along an axis, what it and all before it combine to; with ``reverse`` it and all behind it.

    The combine may be a function of the program.
    """

    WORD: ClassVar[str] = "scan"
    operands: tuple[Expression, ...]
    combine: str
    axis: int
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Gather(Expression):
    """For each position along an axis, the element of a tile that an index names."""

    WORD: ClassVar[str] = "gather"
    value: Expression
    index: Expression
    axis: int


# --- operations for their effect --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store(Expression):
    """Writes a tile to addresses, where a mask holds. ``cache`` is a cache hint: ``""`` or ``"streaming"``."""

    WORD: ClassVar[str] = "store"
    pointer: Expression
    value: Expression
    mask: Expression | None = None
    cache: str = ""


@dataclass(frozen=True, slots=True)
class AtomicUpdate(Expression):
    """Combines what lies at addresses with a tile, element by element, so that none of several at once is lost.

    ``mode`` is ``add``, ``max``, ``min`` or ``mul``.
    """

    WORD: ClassVar[str] = "atomic"
    pointer: Expression
    value: Expression
    mode: str
    mask: Expression | None = None


@dataclass(frozen=True, slots=True)
class Barrier(Expression):
    """Lets no thread of the program instance go on before all have come here."""

    WORD: ClassVar[str] = "barrier"


@dataclass(frozen=True, slots=True)
class AwaitPredecessor(Expression):
    """Waits until what the kernel launched before this one has written can be read (programmatic dependent launch)."""

    WORD: ClassVar[str] = "await_predecessor"


@dataclass(frozen=True, slots=True)
class Prefetch(Expression):
    """Brings what lies at addresses into the cache, and waits for nothing (software prefetch)."""

    WORD: ClassVar[str] = "prefetch"
    pointer: Expression


@dataclass(frozen=True, slots=True)
class HoldOnly(Expression):
    """Of tiles and of what is made of their elements, only the tiles are held from here on: the rest is made again."""

    WORD: ClassVar[str] = "hold_only"
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Assert(Expression):
    """Stops the launch with a message where a condition does not hold, and a mask does."""

    WORD: ClassVar[str] = "assert"
    condition: Expression
    message: str
    mask: Expression | None = None


@dataclass(frozen=True, slots=True)
class Assume(Expression):
    """Tells the compiler that a scalar condition holds."""

    WORD: ClassVar[str] = "assume"
    condition: Expression


VALUES: tuple[type[Expression], ...] = (
    Cast, Bitcast, ProgramId, ProgramCount, Lanes, Full, Broadcast, Reshape, Transpose, Expand, Hint, Offset, Dispatch,
    Load, Describe, LoadBlock, Choose, Reduce, Scan, Gather, Dot,
)  # fmt: skip
"""The operations that have a value, beside `Elementwise` and calls."""

EFFECTS: tuple[type[Expression], ...] = (
    Store, AtomicUpdate, Barrier, AwaitPredecessor, Prefetch, HoldOnly, Assert, Assume,
)  # fmt: skip
"""The operations that are statements, beside calls without results."""

OPERATIONS: dict[str, type[Expression]] = {each.WORD: each for each in (*VALUES, *EFFECTS)}


# --- walks ------------------------------------------------------------------------------------------------------------


_SEVERAL = "operands"
"""The field that holds the operands of operations that take any number."""

_OPERANDS: dict[type[Expression], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind) if str(field.type).startswith("Expression"))
    for kind in (Name, Literal, BlockSize, Constant, *VALUES, *EFFECTS)
    if kind not in (Reduce, Scan, Dispatch, Describe, LoadBlock, HoldOnly)
}
"""The names of the operands of all other operations: they are read for every expression, again and again."""


def operands_of(expression: Expression) -> tuple[Expression, ...]:
    """Returns the operands of an operation, in the order of its fields; none of a name or number."""
    names = _OPERANDS.get(type(expression))
    if not names:
        return getattr(expression, _SEVERAL, ())
    values = tuple([getattr(expression, name) for name in names])
    return values if None not in values else tuple(value for value in values if value is not None)


def parts_of(root: Expression) -> list[Expression]:
    """Returns an expression and all its parts, operands before what uses them, without recursion."""
    found: list[Expression] = []
    pending = [root]
    while pending:
        expression = pending.pop()
        found.append(expression)
        pending.extend(operands_of(expression))
    found.reverse()
    return found


def names_in(expression: Expression) -> list[str]:
    """Returns the names that an expression mentions, in order, with repeats."""
    return [part.name for part in parts_of(expression) if isinstance(part, Name)]
