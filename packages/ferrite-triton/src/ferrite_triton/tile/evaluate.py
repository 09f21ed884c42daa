"""A slow interpreter of tile programs in plain Python: what they mean, said once and simply.

Program instances run one after the other, statements one after the other, elements in row-major order. A value that
nothing may use, `UNDEFINED`, passes through operations and is only ever refused where it would be seen: by a store, a
condition, an address.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ferrite_ir.language.dtypes import F32, DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.combine_semantics import merge
from ferrite_ir.reference.rounding import convert, reinterpret, round_to
from ferrite_ir.reference.scalar_semantics import apply_operation

from .combined_tiles import Merge, reduce_tiles, scan_tiles
from .language import (
    Assert,
    Assume,
    AtomicUpdate,
    AwaitPredecessor,
    Barrier,
    Bitcast,
    Block,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Choose,
    Describe,
    Dispatch,
    Dot,
    Elementwise,
    Expand,
    Expression,
    Extent,
    Full,
    Gather,
    Hint,
    HoldOnly,
    Lanes,
    Literal,
    Load,
    LoadBlock,
    Name,
    Offset,
    Prefetch,
    ProgramCount,
    ProgramId,
    Reduce,
    Reshape,
    Scan,
    Shape,
    Store,
    TileType,
    Transpose,
    operands_of,
    parts_of,
)
from .operations import ELEMENTWISE, SELECTIONS, meaning_of
from .statements import Do, For, Function, If, Let, Statement, TileProgram
from .tile_values import (
    UNDEFINED,
    Address,
    Descriptor,
    Element,
    EvaluationError,
    Tile,
    Undefined,
    line_of,
    number_in,
    positions,
    row_major,
    spread,
)
from .types import ATOMICS, result_types
from .verify import require_valid


def run_program(
    program: TileProgram,
    arguments: Mapping[str, list[Number] | Number],
    constants: Mapping[str, int],
    grid: Sequence[int],
) -> None:
    """Runs all instances of a program; what they store is in the lists of ``arguments`` afterwards.

    Args:
        program: a well-formed program.
        arguments: for each parameter a number, or, if it is an address, the list of the elements from there on.
        constants: a number for each block constant.
        grid: how many instances there are along each axis of the grid, the first of which runs fastest.

    Raises:
        TileError: the program breaks rules.
        EvaluationError: an instance uses what is undefined, or reads or writes outside of a list.
    """
    require_valid(program)
    for index in itertools.product(*(range(count) for count in reversed(grid))):
        _Instance(program, arguments, constants, tuple(grid), index[::-1]).run()


class _Instance:
    """One program instance."""

    def __init__(
        self,
        program: TileProgram,
        arguments: Mapping[str, list[Number] | Number],
        constants: Mapping[str, int],
        grid: tuple[int, ...],
        index: tuple[int, ...],
    ) -> None:
        self._program, self._arguments, self._constants = program, arguments, constants
        self._grid, self._index = grid, index
        self._types: dict[str, TileType] = {}
        self._values: dict[str, Tile] = {}
        for parameter in program.parameters:
            given = arguments[parameter.name]
            element: Element = Address(parameter.name, 0) if isinstance(given, list) else given
            self._bind(parameter.name, Tile(parameter.type, (), [element]))

    def _bind(self, name: str, tile: Tile) -> None:
        self._values[name], self._types[name] = tile, tile.type

    def run(self) -> None:
        self._block(self._program.body)

    # --- statements -------------------------------------------------------------------------------------------------

    def _block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Let(variables, value):
                    for variable, tile in zip(variables, self.evaluate(value), strict=True):
                        self._bind(variable.name, tile)
                case Do(effect):
                    self.evaluate(effect)
                case For():
                    self._loop(statement)
                case If(condition, then, otherwise):
                    self._block(then if self._scalar(condition) else otherwise)

    def _loop(self, loop: For) -> None:
        start, stop, step = (int(self._scalar(bound)) for bound in (loop.start, loop.stop, loop.step))
        if step <= 0:
            raise EvaluationError(f"the step of the loop over {loop.counter.name} is {step}")
        initial = [self._single(carried.initial) for carried in loop.carried]
        for carried, tile in zip(loop.carried, initial, strict=True):
            self._bind(carried.variable.name, tile)
        for count in range(start, stop, step):
            self._bind(loop.counter.name, Tile(loop.counter.type, (), [count]))
            self._block(loop.body)
            following = [self._single(carried.following) for carried in loop.carried]
            for carried, tile in zip(loop.carried, following, strict=True):
                self._bind(carried.variable.name, tile)

    def _single(self, expression: Expression) -> Tile:
        (tile,) = self.evaluate(expression)
        return tile

    def _scalar(self, expression: Expression) -> Number:
        (element,) = self._single(expression).elements
        return number_in(element, "a bound or condition")

    # --- expressions ------------------------------------------------------------------------------------------------

    def evaluate(self, root: Expression) -> tuple[Tile, ...]:
        """Returns the values of an expression: none of an effect, after it has had it."""
        known: dict[int, tuple[Tile, ...]] = {}
        for part in parts_of(root):
            operands = [known[id(operand)][0] for operand in operands_of(part)]
            known[id(part)] = self._part(part, operands)
        return known[id(root)]

    def _part(self, part: Expression, operands: list[Tile]) -> tuple[Tile, ...]:
        match part:
            case Name(name):
                return (self._values[name],)
            case BlockSize(block, dtype):
                return (Tile(TileType(dtype), (), [self._extent(block)]),)
            case Choose(constant=constant):
                return (operands[0] if self._extent(constant) > 1 else operands[1],)
            case Dispatch(columns=columns):
                return _dispatched(operands, columns)
            case Call(function, results=results) if function in _COMBINING:
                return self._combined(_COMBINING[function], results, operands)
            case Call(function, results=(kind,)) if function in _BY_ELEMENT:
                shape = self._extents(kind.shape)
                return (Tile(kind, shape, _apply(_BY_ELEMENT[function], operands, shape)),)
            case Call(function):
                raise EvaluationError(f"the device function {function} has no meaning here; run the kernel instead")
        types = result_types(part, [tile.type for tile in operands])
        if not types:
            _EFFECTS[type(part)](self, part, operands)
            return ()
        shapes = [self._extents(type_.shape) for type_ in types]
        if isinstance(part, (Reduce, Scan)):
            values = _COMBINED[type(part)](part, operands, shapes[0], self._merging(part.combine))
        else:
            values = [_VALUES[type(part)](self, part, operands, shapes[0])]
        return tuple(map(Tile, types, shapes, values))

    def _combined(self, combine: str, types: Sequence[TileType], operands: list[Tile]) -> tuple[Tile, ...]:
        """Returns the states that those of two rows of tiles are combined to, element by element."""
        found = []
        for component, kind in enumerate(types):

            def apply(*numbers: Number, component: int = component, dtype: DType = kind.dtype) -> Number:
                half = len(numbers) // 2
                return round_to(merge(combine, numbers[:half], numbers[half:])[component], dtype)

            shape = self._extents(kind.shape)
            found.append(Tile(kind, shape, _apply(apply, operands, shape)))
        return tuple(found)

    def _merging(self, combine: str) -> Merge:
        """Returns what merges two states by a combine of the table, or by a function of the program."""
        functions = {each.name: each for each in self._program.functions}
        if combine not in functions:
            return lambda first, second: merge(combine, first, second)
        return lambda first, second: _called(functions[combine], first, second)

    def _extents(self, shape: Shape) -> tuple[int, ...]:
        return tuple(map(self._extent, shape))

    def _extent(self, extent: Extent) -> int:
        return self._constants[extent.constant] // extent.parts if isinstance(extent, Block) else extent

    # --- memory -----------------------------------------------------------------------------------------------------

    def read(self, element: Element) -> Number:
        """Returns what lies at an address."""
        memory, index = self._memory(element)
        return memory[index]

    def write(self, element: Element, value: Number) -> None:
        """Puts a number at an address."""
        memory, index = self._memory(element)
        memory[index] = value

    def _memory(self, element: Element) -> tuple[list[Number], int]:
        if not isinstance(element, Address):
            raise EvaluationError(f"{element} is no address")
        memory = self._arguments[element.parameter]
        if not isinstance(memory, list) or not 0 <= element.element < len(memory):
            count = len(memory) if isinstance(memory, list) else 0
            raise EvaluationError(f"element {element.element} of {element.parameter}, which has {count}")
        return memory, element.element

    def program_id(self, axis: int) -> int:
        """Returns the position of this instance along an axis of the grid."""
        return self._index[axis] if axis < len(self._index) else 0

    def count(self, axis: int) -> int:
        """Returns the number of instances along an axis of the grid."""
        return self._grid[axis] if axis < len(self._grid) else 1


_COMBINING = {"online_softmax": "online_softmax", "welford": "welford", "argmax_nan": "argmax", "argmin_nan": "argmin"}
"""Device functions that combine two states, by the combine."""


def _quotient(part: Number, divisor: Number, *_: Number) -> Number:
    return apply_operation(meaning_of("div"), (part, divisor), F32, F32)


_BY_ELEMENT: dict[str, Callable[..., Number]] = {
    "divisor_scale": lambda _: 1.0,
    "rounded_inverse": lambda divisor: _quotient(1.0, divisor),
    "row_quotient": _quotient,
    "opaque_value": lambda element: element,
    "opaque_floats": lambda element: element,
}
"""Device functions of elements: each is divided by itself here, whatever its size, and nothing is hidden."""


def _dispatched(operands: Sequence[Tile], columns: int) -> tuple[Tile, ...]:
    """Returns where the first operand lies in its range, and the values of that range."""
    number, *given = operands
    rest = number_in(number.elements[0], "the number of a dispatch")
    *rows, last = (given[at : at + columns + 1] for at in range(0, len(given), columns + 1))
    for row in rows:
        length = number_in(row[0].elements[0], "the length of a range")
        if rest < length:
            return (Tile(number.type, (), [rest]), *row[1:])
        rest -= length
    return (Tile(number.type, (), [rest]), *last[1:])


def _apply(
    function: Callable[..., Number], tiles: list[Tile], shape: tuple[int, ...], *, chooses: bool = False
) -> list[Element]:
    """Returns a function of the elements of tiles; undefined where one is, but for choices, which drop some."""
    found: list[Element] = []
    for elements in zip(*(spread(tile, shape) for tile in tiles), strict=True):
        if chooses and not isinstance(elements[0], Undefined):
            found.append(elements[1] if elements[0] else elements[2])
        elif any(isinstance(element, Undefined) for element in elements):
            found.append(UNDEFINED)
        else:
            found.append(function(*elements))
    return found


def _elementwise(_: _Instance, part: Elementwise, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    types = tuple(tile.type.dtype for tile in operands)
    result, op = ELEMENTWISE[part.op].result(types), meaning_of(part.op)
    assert isinstance(result, DType), "the types of a verified program fit"

    def apply(*numbers: Number) -> Number:
        return apply_operation(op, numbers, types[0], result)

    return _apply(apply, operands, shape, chooses=part.op in SELECTIONS)


def _cast(_: _Instance, part: Cast, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    source = operands[0].type.dtype
    return _apply(lambda number: convert(number, source, part.to), operands, shape)


def _bitcast(_: _Instance, part: Bitcast, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    source = operands[0].type.dtype
    return _apply(lambda number: reinterpret(number, source, part.to), operands, shape)


def _offset(_: _Instance, __: Offset, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    pointers, steps = (spread(tile, shape) for tile in operands)
    found: list[Element] = []
    for pointer, step in zip(pointers, steps, strict=True):
        if isinstance(pointer, Address) and not isinstance(step, (Undefined, Address, Descriptor)):
            found.append(Address(pointer.parameter, pointer.element + int(step)))
        else:
            found.append(UNDEFINED)
    return found


def _load(instance: _Instance, part: Load, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    pointers, *given = (spread(tile, shape) for tile in operands)
    masks: Sequence[Element] = given.pop(0) if part.mask is not None else [True] * len(pointers)
    others: Sequence[Element] = given.pop(0) if given else [UNDEFINED] * len(pointers)
    return [
        instance.read(pointer) if number_in(mask, "a mask") else other
        for pointer, mask, other in zip(pointers, masks, others, strict=True)
    ]


def _describe(_: _Instance, part: Describe, operands: list[Tile], __: tuple[int, ...]) -> list[Element]:
    first, *numbers = (tile.elements[0] for tile in operands)
    if not isinstance(first, Address):
        raise EvaluationError(f"a matrix begins at {first}")
    found = [int(number_in(number, "an extent or a step")) for number in numbers]
    rank = len(part.shape)
    return [Descriptor(first, tuple(found[:rank]), tuple(found[rank:]))]


def _load_block(instance: _Instance, _: LoadBlock, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    (descriptor,), *starts = (tile.elements for tile in operands)
    if not isinstance(descriptor, Descriptor):
        raise EvaluationError(f"{descriptor} is no descriptor")
    first = [int(number_in(start, "a position")) for (start,) in starts]
    found: list[Element] = []
    for position in positions(shape):
        address = descriptor.address(tuple(start + index for start, index in zip(first, position, strict=True)))
        found.append(round_to(0, operands[0].type.dtype) if address is None else instance.read(address))
    return found


def _reshape(_: _Instance, __: Reshape | Expand | Hint, operands: list[Tile], ___: tuple[int, ...]) -> list[Element]:
    return operands[0].elements


def _transpose(_: _Instance, part: Transpose, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    (tile,) = operands
    found: list[Element] = []
    for position in positions(shape):
        source = [0] * len(position)
        for axis, index in zip(part.order, position, strict=True):
            source[axis] = index
        found.append(tile.elements[row_major(tuple(source), tile.shape)])
    return found


def _called(function: Function, first: tuple[Number, ...], second: tuple[Number, ...]) -> tuple[Number, ...]:
    """Returns the results of a function of two states."""
    parameters = (*function.left, *function.right)
    given = {each.name: number for each, number in zip(parameters, (*first, *second), strict=True)}
    instance = _Instance(TileProgram(function.name, parameters, (), function.body), given, {}, (), ())
    instance.run()
    return tuple(number_in(instance.evaluate(result)[0].elements[0], function.name) for result in function.results)


def _dot(_: _Instance, __: Dot, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    left, right, accumulator = operands
    dtype = accumulator.type.dtype
    found: list[Element] = []
    for row, column in positions(shape):
        total = number_in(accumulator.elements[row_major((row, column), shape)], "an accumulator")
        for point in range(left.shape[1]):
            factors = left.elements[row * left.shape[1] + point], right.elements[point * shape[1] + column]
            total += math.prod(number_in(factor, "a factor") for factor in factors)
        found.append(round_to(total, dtype))
    return found


def _gather(_: _Instance, part: Gather, operands: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    tile, index = operands
    found: list[Element] = []
    for position, wanted in zip(positions(shape), index.elements, strict=True):
        line, number = line_of(tile, position, part.axis), int(number_in(wanted, "an index"))
        if not 0 <= number < len(line):
            raise EvaluationError(f"gather of element {number} of {len(line)}")
        found.append(line[number])
    return found


def _accesses(operands: list[Tile], *, has_mask: bool) -> Iterator[tuple[Element, Element]]:
    """Yields the addresses and elements of a store or an atomic update, where its mask holds."""
    pointers, values, *masks = (spread(tile, operands[0].shape) for tile in operands)
    held: Sequence[Element] = masks[0] if has_mask else [True] * len(pointers)
    for pointer, value, mask in zip(pointers, values, held, strict=True):
        if number_in(mask, "a mask"):
            yield pointer, value


def _store(instance: _Instance, part: Store, operands: list[Tile]) -> None:
    for pointer, value in _accesses(operands, has_mask=part.mask is not None):
        instance.write(pointer, number_in(value, "what is stored"))


def _atomic(instance: _Instance, part: AtomicUpdate, operands: list[Tile]) -> None:
    dtype = operands[1].type.dtype
    for pointer, value in _accesses(operands, has_mask=part.mask is not None):
        old, new = instance.read(pointer), number_in(value, "what is added")
        (merged,) = merge(ATOMICS[part.mode], (old,), (new,))
        instance.write(pointer, round_to(merged, dtype))


def _assert(_: _Instance, part: Assert, operands: list[Tile]) -> None:
    condition, *masks = operands
    shape = max((tile.shape for tile in operands), key=math.prod)
    held = spread(masks[0], shape) if masks else [True] * math.prod(shape)
    for element, mask in zip(spread(condition, shape), held, strict=True):
        if number_in(mask, "a mask") and not number_in(element, "a condition"):
            raise EvaluationError(f"assertion failed: {part.message}")


def _assume(_: _Instance, __: Assume, operands: list[Tile]) -> None:
    if not number_in(operands[0].elements[0], "an assumption"):
        raise EvaluationError("what the program assumes does not hold")


def _nothing(_: _Instance, __: Barrier | AwaitPredecessor | Prefetch | HoldOnly, ___: list[Tile]) -> None:
    """Does nothing: elements and kernels wait for no others here, and there are neither caches nor registers."""


def _count_along(_: _Instance, __: Lanes, ___: list[Tile], shape: tuple[int, ...]) -> list[Element]:
    return list(range(math.prod(shape)))


_VALUES: dict[type[Expression], Callable[..., list[Element]]] = {
    Literal: lambda _, part, __, ___: [round_to(part.value, part.dtype)],
    Elementwise: _elementwise,
    Cast: _cast,
    Bitcast: _bitcast,
    ProgramId: lambda instance, part, _, __: [instance.program_id(part.axis)],
    ProgramCount: lambda instance, part, _, __: [instance.count(part.axis)],
    Lanes: _count_along,
    Full: lambda _, __, operands, shape: spread(operands[0], shape),
    Broadcast: lambda _, __, operands, shape: spread(operands[0], shape),
    Reshape: _reshape,
    Transpose: _transpose,
    Offset: _offset,
    Expand: _reshape,
    Hint: _reshape,
    Load: _load,
    Describe: _describe,
    LoadBlock: _load_block,
    Gather: _gather,
    Dot: _dot,
}

_COMBINED: dict[type[Expression], Callable[..., list[list[Element]]]] = {Reduce: reduce_tiles, Scan: scan_tiles}

_EFFECTS: dict[type[Expression], Callable[..., None]] = {
    Store: _store,
    AtomicUpdate: _atomic,
    Barrier: _nothing,
    AwaitPredecessor: _nothing,
    Prefetch: _nothing,
    HoldOnly: _nothing,
    Assert: _assert,
    Assume: _assume,
}
