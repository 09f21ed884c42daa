"""Epilogues as device functions, for kernels that somebody else wrote and that call one on what they have computed.

    y = loop [m, n] cast.bf16(relu(add(p[m, n], cast.f32(bias[n]))))

    @triton.jit
    def epilogue(acc, rows, columns, row_mask, column_mask, operand0):
        load = tl.load(operand0 + columns, column_mask)
        …
        return add.to(tl.bfloat16)

``acc`` is a tile of the product in f32, ``rows`` and ``columns`` are the positions of its elements, with extents of 1
along the other axis, and masks say which of them exist. What else is read comes by pointers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrite_ir.language.dtypes import BOOL, F32, I32, DType
from ferrite_ir.language.graph import Loop, TensorType
from ferrite_ir.language.index import Dim, linearize
from ferrite_ir.language.ops import OPS, RANDOM
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_triton.printing.kernel import device_function
from ferrite_triton.tile.build import add, apply, both, converted, literal, mul
from ferrite_triton.tile.language import Block, Cast, Expression, Literal, Load, Name, Offset, TileType, Variable
from ferrite_triton.tile.operations import SELECTIONS
from ferrite_triton.tile.statements import Let
from ferrite_triton.tile.types import types_of

PARAMETERS = ("acc", "rows", "columns", "row_mask", "column_mask")
"""What the function takes in front of pointers: a tile, and where it lies."""
ROWS, COLUMNS = Block("ROWS"), Block("COLUMNS")
MOST_ELEMENTS = 2**31 - 1
"""Offsets have 32 bits."""


@dataclass(frozen=True, slots=True)
class EpilogueFunction:
    """A device function that computes what reads a product.

    Attributes:
        text: its lines, the decorator included.
        operands: names of the values whose pointers it takes behind `PARAMETERS`, in order.
    """

    text: str
    operands: tuple[str, ...]


def epilogue_function(
    name: str, loop: Loop, product: str, types: dict[str, TensorType], parameters: tuple[str, ...] = PARAMETERS
) -> EpilogueFunction | None:
    """Returns a loop over a product's rows and columns as a device function; None where it has no such form.

    It has if it reads the product at its own points, and everything else along rows and columns in even steps of
    constant length; and if nothing in it draws random numbers, looks at positions, or reads under a condition.

    Args:
        name: of the function.
        loop: with one result.
        product: the name of the product, which is in f32.
        types: of all values that it reads.
        parameters: names of the tile and of what says where it lies, as in `PARAMETERS`.
    """
    (body,) = loop.bodies
    row, column = loop.dims
    home = (row.index, column.index)
    writer = _Writer(product, (row, column), types, parameters)
    for node in postorder((body,)):
        is_own = node.op == "load" and node.source == product
        if (is_own and node.indices != home) or not writer.takes(node):
            return None
    result = writer.value(body)
    names = (*parameters, *(f"operand{number}" for number in range(len(writer.operands))))
    variables = tuple(Variable(each, writer.types[each]) for each in names)
    return EpilogueFunction(device_function(name, variables, tuple(writer.lines), result), tuple(writer.operands))


@dataclass(slots=True)
class _Writer:
    product: str
    dims: tuple[Dim, Dim]
    values: dict[str, TensorType]
    parameters: tuple[str, ...]
    types: dict[str, TileType] = field(default_factory=dict)
    lines: list[Let] = field(default_factory=list)
    operands: dict[str, str] = field(default_factory=dict)
    known: dict[Scalar, Expression] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = (
            TileType(F32, (ROWS, COLUMNS)),
            TileType(I32, (ROWS, 1)),
            TileType(I32, (1, COLUMNS)),
            TileType(BOOL, (ROWS, 1)),
            TileType(BOOL, (1, COLUMNS)),
        )
        self.types |= dict(zip(self.parameters, kinds, strict=True))

    def takes(self, node: Scalar) -> bool:
        """Returns whether a node has a form here."""
        if node.op == "load":
            return node.source == self.product or self._steps(node) is not None
        if node.op in ("const", "cast", "rounded"):
            return True
        return node.op in OPS and node.op not in (*RANDOM, "masked") and node.op != "index"

    def value(self, root: Scalar) -> Expression:
        """Returns the value of an expression, after writing the lines that compute it."""
        for node in postorder((root,)):
            if node not in self.known:
                self.known[node] = self._written(node)
        return self.known[root]

    def _written(self, node: Scalar) -> Expression:
        if node.op == "const":
            return literal(node.value, node.dtype)
        if node.op == "load":
            return Name(self.parameters[0]) if node.source == self.product else self._loaded(node)
        given = [(self.known[operand], operand.dtype) for operand in node.args]
        if node.op in ("cast", "rounded"):
            (value, dtype), target = given[0], node.dtype
            if isinstance(value, Literal) or dtype is target:
                return converted(value, dtype, target)
            return self._named("cast", Cast(value, target))
        is_narrow = node.op not in SELECTIONS and any(dtype.is_narrow_float for _, dtype in given)
        operands = [converted(value, dtype, dtype.compute) if is_narrow else value for value, dtype in given]
        made: Expression = apply(node.op, *operands)
        if is_narrow and node.dtype.is_narrow_float:
            made = Cast(made, node.dtype)
        return self._named(node.op, made)

    def _loaded(self, node: Scalar) -> Expression:
        found = self._steps(node)
        assert found is not None, "what has no form is not written"
        const, steps = found
        pointer = self._operand(node.source, node.dtype)
        _, *places = self.parameters
        terms, masks = [], []
        for step, place, mask in zip(steps, places[:2], places[2:], strict=True):
            if step:
                terms.append(Name(place) if step == 1 else mul(Name(place), Literal(step, I32)))
                masks.append(Name(mask))
        address: Expression = Name(pointer)
        if const or not terms:
            terms.append(Literal(const, I32))
        if terms != [Literal(0, I32)]:
            address = Offset(address, add(*terms))
        return self._named("load", Load(address, both(*masks) if masks else None))

    def _steps(self, node: Scalar) -> tuple[int, tuple[int, int]] | None:
        """Returns the first element that a load reads, and how far neighbours along rows and columns lie apart."""
        kind = self.values.get(node.source)
        if kind is None or kind.device or not isinstance(kind.storage_size, int) or kind.storage_size > MOST_ELEMENTS:
            return None
        offset = linearize(node.indices, kind.strides)
        steps = {atom: step for atom, step in offset.terms if isinstance(atom, Dim) and isinstance(step, int)}
        if len(steps) < len(offset.terms) or not steps.keys() <= {*self.dims} or not isinstance(offset.const, int):
            return None
        row, column = self.dims
        return offset.const, (steps.get(row, 0), steps.get(column, 0))

    def _operand(self, name: str, dtype: DType) -> str:
        pointer = self.operands.setdefault(name, f"operand{len(self.operands)}")
        self.types[pointer] = TileType(dtype, is_pointer=True)
        return pointer

    def _named(self, prefix: str, expression: Expression) -> Expression:
        (kind,) = types_of(expression, self.types)
        variable = Variable(f"{prefix}_{len(self.lines)}", kind)
        self.types[variable.name] = kind
        self.lines.append(Let((variable,), expression))
        return Name(variable.name)
