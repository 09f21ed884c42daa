"""Scalar expressions as values of tile programs: each distinct value once, operands before users, no recursion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ferrite_ir.language.dtypes import F16, F32, F64, DType
from ferrite_ir.language.graph import Computed, Loop, bodies_of
from ferrite_ir.language.index import Index
from ferrite_ir.language.ops import POLYNOMIALS, REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, indirects, indirects_of, postorder
from ferrite_scheduler.model.forms import RegisterNorm
from ferrite_triton.analysis.approximations import rounded_quotients, shares, weights
from ferrite_triton.analysis.flat import FlatKernel, KernelParam
from ferrite_triton.analysis.neutral_padding import padded_sums
from ferrite_triton.analysis.packed_residency import held_16_bit_values
from ferrite_triton.analysis.scalar_analysis import ScalarAnalysis, bytes_beside, reads_one_along_the_reduction_axis
from ferrite_triton.analysis.shared_products import shared_products
from ferrite_triton.analysis.space import NO_AXES, Axes
from ferrite_triton.bodies.addresses import Addresses
from ferrite_triton.bodies.assertions import assert_in_bounds, assert_required
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.descriptors import Descriptors
from ferrite_triton.bodies.indices import Indices, index_dtype
from ferrite_triton.errors import ScheduleMismatch
from ferrite_triton.tile.build import add, apply, converted, literal, mul
from ferrite_triton.tile.language import (
    Bitcast,
    Block,
    Cast,
    Expression,
    HoldOnly,
    Literal,
    Load,
    Name,
    Reshape,
    TileType,
)
from ferrite_triton.tile.operations import SELECTIONS

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
LOOPING = frozenset(POLYNOMIALS)
"""Operations that run as long as their largest operand says: what is masked out has to be a number, and a small one."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The conditions around a value: its loads happen only where all of them hold."""

    condition: Scalar
    outer: Guard | None = None


Key = tuple[Scalar, Guard | None]


class ScalarValues:
    """Writes the values of one kernel; ``zeroed`` loads give zero past the end of the reduction axis.

    Blocks that ``descriptors`` describe may be loaded through them.

    Attributes:
        hints: eviction policy by load, where one is wanted.
        ahead: loads of which the next block is prefetched, see `loop_plan.prefetched_loads`.
        addresses: where elements lie in memory.
        shares: the shares of softmaxes, see `approximations.shares`.
    """

    def __init__(
        self,
        flat: FlatKernel,
        builder: Builder,
        width: int,
        zeroed: frozenset[Scalar] = frozenset(),
        descriptors: Descriptors | None = None,
    ) -> None:
        self._flat = flat
        self._space = flat.space
        self._builder = builder
        self.hints: dict[Scalar, str] = {}
        self.ahead: frozenset[Scalar] = frozenset()
        self.results: dict[str, Tile] = {}
        self._index = Indices(builder, flat.space, width, lambda node: self._known(node, None))
        self._index_dtype = index_dtype(width)
        has_column = flat.space.loops and width == 32 and reads_one_along_the_reduction_axis(flat)
        self._waiting = held_16_bit_values(flat)
        self.addresses = Addresses(
            builder,
            flat.space,
            self._index,
            self._index_dtype,
            has_column=has_column,
            has_rows=bool(self._waiting),
            in_tiles=isinstance(flat.kernel.form, RegisterNorm),
        )
        self._analysis = ScalarAnalysis(flat)
        nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
        self._pads = any(node.op in LOOPING for node in nodes)
        self._pieces = bytes_beside(flat)
        self._descriptors = descriptors
        self._zeroed = zeroed.union(*padded_sums(flat).values())
        self._weights, exponentials = weights(flat)
        # Elements that stay packed in registers have no terms to take shares of.
        self.shares = {} if self._waiting else shares(flat)
        # Which variant of an operation is exact enough, or is needed: see ferrite_triton.tile.operations.
        self._variants: dict[Scalar, str] = dict.fromkeys(rounded_quotients(flat), "div_fast")
        self._variants |= dict.fromkeys(exponentials, "exp_fast")
        self._variants |= dict.fromkeys(shared_products(flat), "mul_rounded")

    # --- walking ----------------------------------------------------------------------------------------------------

    def tile(self, root: Scalar, guard: Guard | None = None) -> Tile:
        """Returns the value of an expression, after writing the statements that compute it."""
        stack: list[Key] = [(root, guard)]
        while stack:
            key = self._settled(stack[-1])
            if self._builder.find(key) is not None:
                stack.pop()
                continue
            missing = [need for need in self._needs(key) if self._builder.find(self._settled(need)) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self._builder.remember(key, self._write(key))
        return self._known(root, guard)

    def publish(self, definition: Computed, tiles: tuple[Tile, ...]) -> None:
        """Records the results of a definition that something else has written."""
        for result, tile in zip(definition.results, tiles, strict=True):
            self.results[result.name] = tile

    def know(self, node: Scalar, tile: Tile) -> None:
        """Records the value of an expression that something else has written."""
        self._builder.remember(self._settled((node, None)), tile)

    @property
    def index_dtype(self) -> DType:
        """Returns the type of addresses."""
        return self._index_dtype

    def loaded(self, loads: Iterable[Scalar]) -> dict[Scalar, Tile]:
        """Returns those of the loads whose elements are here, whatever has been made of them."""
        tiles = {load: self._builder.find((load, None)) for load in loads}
        return {load: tile for load, tile in tiles.items() if tile is not None}

    def hold_only(self, held: Mapping[Scalar, Tile] | None = None) -> None:
        """Says that of elements and what is made of them registers hold only the elements from here on.

        Args:
            held: loads, and the tiles of what was loaded; None for all elements of two bytes that wait.
        """
        tiles = self.loaded(self._waiting) if held is None else held
        for load, tile in tiles.items():
            self._builder.remember((load, None), tile)
        if tiles:
            axes = NO_AXES.union(*(tile.axes for tile in tiles.values()))
            self._builder.do(HoldOnly(tuple(tile.expression for tile in tiles.values())), axes)

    def offset(self, index: Index) -> Tile:
        """Returns the value of an index whose indirect parts are written first."""
        for value in indirects_of((index,)):
            self.tile(value)
        return self._index.tile(index)

    def position(self, node: Scalar) -> Tile:
        """Returns an integer expression, in the type of addresses if it is a bare index: half as wide, mostly."""
        if node.op != "index" or not node.dtype.is_integer or node.dtype.bits < self._index_dtype.bits:
            return self.tile(node)
        return self.offset(node.args[0])

    def _known(self, node: Scalar, guard: Guard | None) -> Tile:
        found = self._builder.find(self._settled((node, guard)))
        if found is None:
            raise AssertionError(f"{node.op} is used before it is written")
        return found

    def _settled(self, key: Key) -> Key:
        """Returns the key under which a value is known: a guard matters only to loads from memory."""
        node, guard = key
        while True:
            if guard is not None and not self._analysis.reads_memory(node) and not self._analysis.requires(node):
                guard = None
            if node.op == "load":
                produced = self._flat.producer(node)
                if produced is None:
                    break
                guard = None
                if not isinstance(produced[0], Loop):
                    break
                node = produced[0].bodies[produced[1]]
                continue
            through = self._analysis.unrounded(node)
            if through is None:
                break
            node = through
        if guard is not None and self._builder.find((node, None)) is not None:
            guard = None
        return node, guard

    def _needs(self, key: Key) -> list[Key]:  # noqa: PLR0911  # a case for each form
        node, guard = key
        match node.op:
            case "const":
                return []
            case "load" | "index":
                conditions = _conditions(guard if node.op == "load" else None)
                return [*((value, guard) for value in indirects(node)), *conditions]
            case "masked":
                condition, value, other = node.args
                load = self._analysis.guarded_load(node)
                if load is not None:
                    return [(condition, guard), *((index, Guard(condition, guard)) for index in indirects(load))]
                return [(condition, guard), (value, Guard(condition, guard)), (other, guard)]
            case op if op in REQUIREMENTS:
                return [*((operand, guard) for operand in node.args), *_conditions(guard)]
            case op if op in COMPARISONS and self._compares_indices(node):
                return [(value, guard) for operand in node.args for value in indirects(operand)]
            case "cast" | "rounded" if self._rough_quotient(node) is not None:
                return [(operand, guard) for operand in node.args[0].args]
            case "rand" if self._analysis.quarters(node) is not None:
                return [(node.args[0], guard)]
        return [(operand, guard) for operand in node.args]

    def _compares_indices(self, node: Scalar) -> bool:
        """Returns whether indices are compared with each other or with numbers, which the type of addresses holds."""
        limit = 1 << (self._index_dtype.bits - 1)
        return any(operand.op == "index" for operand in node.args) and all(
            operand.dtype.is_integer
            and (operand.op == "index" or (operand.op == "const" and -limit <= operand.value < limit))
            for operand in node.args
        )

    def _bare_index(self, node: Scalar, guard: Guard | None) -> Tile:
        if node.op == "const":
            return Tile(Literal(int(node.value), self._index_dtype), NO_AXES, self._index_dtype)
        return self._index.tile(node.args[0], lambda value: self._known(value, guard))

    def _rough_quotient(self, node: Scalar) -> Scalar | None:
        """Returns the f32 quotient that is rounded to a narrow type here: the fast division is exact enough."""
        operand: Scalar = node.args[0]
        rounds = node.dtype.is_narrow_float and operand.op == "div" and operand.dtype is F32
        return operand if rounds else None

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, key: Key) -> Tile:  # noqa: PLR0911  # a case for each form
        node, guard = key
        match node.op:
            case "const":
                return Tile(literal(node.value, node.dtype), NO_AXES, node.dtype)
            case "load":
                return self._write_load(node, guard)
            case "index":
                return self._write_index(node, guard)
            case "cast" | "rounded":
                return self._write_cast(node, guard)
            case "bitcast":
                tile = self._known(node.args[0], guard)
                return self._hold("bits", Bitcast(tile.expression, node.dtype), tile.axes)
            case "masked" if (load := self._analysis.guarded_load(node)) is not None:
                return self._write_guarded_load(node, load, guard)
            case op if op in REQUIREMENTS:
                return self._write_requirement(node, guard)
            case op if op in COMPARISONS and self._compares_indices(node):
                return self._write_operation(node, [self._bare_index(operand, guard) for operand in node.args])
        return self._write_computed(node, guard)

    def _write_computed(self, node: Scalar, guard: Guard | None) -> Tile:
        if node.op == "rand" and (drawn := self._quartets(node)) is not None:
            return self._write_quartets(node, *drawn, guard)
        inner = Guard(node.args[0], guard) if node.op == "masked" else guard
        tiles = [self._known(operand, inner if i == 1 else guard) for i, operand in enumerate(node.args)]
        if node in self.shares:
            return self._write_share(*tiles)
        if self._divides_rows(node, tiles):
            return self._write_row_quotient(*tiles, is_exact=node not in self._variants)
        return self._write_operation(node, tiles)

    def _hold(self, prefix: str, expression: Expression, axes: Axes) -> Tile:
        return self._builder.hold(prefix, expression, axes)

    def _write_operation(self, node: Scalar, tiles: list[Tile]) -> Tile:
        axes = NO_AXES.union(*(tile.axes for tile in tiles))
        is_narrow = _computes_wider(node, tiles)
        operands = [converted(t.expression, t.dtype, t.dtype.compute) if is_narrow else t.expression for t in tiles]
        op = self._variants.get(node, node.op)
        if op == "erf" and tiles[0].dtype.compute is F32 and self._analysis.reads_narrow(node.args[0]):
            op = "erf_narrow"
        made: Expression = apply(op, *operands)
        if is_narrow and node.dtype.is_narrow_float:
            made = Cast(made, node.dtype)
        return self._hold(node.op, made, axes)

    def _write_requirement(self, node: Scalar, guard: Guard | None) -> Tile:
        """Writes the assertion that a condition holds where the value counts: inside the axes and the guard."""
        condition, value = (self._known(operand, guard) for operand in node.args)
        guards = [self._known(each, outer) for each, outer in _conditions(guard)]
        mask, axes = self.addresses.mask_of(condition.axes, guards)
        assert_required(self._builder, node.op, condition.expression, (mask, axes))
        return value

    def _write_share(self, part: Tile, whole: Tile) -> Tile:
        """Writes the exact quotient of what is at most one by what is at least one: one division for all parts."""
        inverse = self._inverse(whole)
        axes = part.axes | whole.axes
        operands = (part.expression, whole.expression, inverse.expression)
        return self._builder.call("div", "share", operands, self._tile_type(F32, axes), axes)

    def _divides_rows(self, node: Scalar, tiles: list[Tile]) -> bool:
        """Returns whether an f32 quotient has a divisor, no literal, that a thread has several elements for."""
        if node.op != "div" or {node.dtype, *(tile.dtype for tile in tiles)} != {F32}:
            return False
        left, right = tiles
        return not isinstance(right.expression, Literal) and self._space.is_held_along(left.axes - right.axes)

    def _write_row_quotient(self, part: Tile, whole: Tile, *, is_exact: bool) -> Tile:
        """Writes the quotient of many elements by the same divisor: one division for all of them.

        Without the correction that makes it exact it is off by up to 1.5 ulp.
        """
        kind, axes = self._tile_type(F32, whole.axes), part.axes | whole.axes
        find, remember = self._builder.find, self._builder.remember
        keys = [(name, whole.expression) for name in ("scale", "divisor", "inverse")]
        scale, divisor, inverse = map(find, keys)
        if scale is None or divisor is None or inverse is None:
            scale = self._builder.call("scale", "divisor_scale", (whole.expression,), kind, whole.axes)
            divisor = self._hold("divisor", mul(whole.expression, scale.expression), whole.axes)
            inverse = self._inverse(divisor)
            for key, tile in zip(keys, (scale, divisor, inverse), strict=True):
                remember(key, tile)
        if not is_exact:
            return self._hold("div", mul(mul(part.expression, scale.expression), inverse.expression), axes)
        operands = (part.expression, divisor.expression, scale.expression, inverse.expression)
        return self._builder.call("div", "row_quotient", operands, self._tile_type(F32, axes), axes)

    def _inverse(self, divisor: Tile) -> Tile:
        """Writes the rounded reciprocal of a divisor in the middle of the range of f32."""
        kind = self._tile_type(F32, divisor.axes)
        return self._builder.call("inverse", "rounded_inverse", (divisor.expression,), kind, divisor.axes)

    def _tile_type(self, dtype: DType, axes: Axes) -> TileType:
        return TileType(dtype, self._space.shape(axes))

    def _quartets(self, node: Scalar) -> tuple[Index, Expression] | None:
        """Returns what is added to the numbers of quartets in random numbers of neighbours, and these numbers.

        None where tiles along the fastest axis do not hold whole quartets, or nothing has numbered them.
        """
        rest = self._analysis.quarters(node)
        if rest is None:
            return None
        numbers = self._builder.positions[self._space.order[-1]].quartet
        return None if numbers is None else (rest, numbers)

    def _write_quartets(self, node: Scalar, rest: Index, quartet: Expression, guard: Guard | None) -> Tile:
        """Writes random numbers of neighbours, four of which come from one draw."""
        base, seed = self._index.tile(rest), self._known(node.args[0], guard)
        axis = self._space.order[-1]
        if base.literal != 0:
            quartet = add(base.expression, converted(quartet, self._builder.type_of(quartet).dtype, base.dtype))
        axes = base.axes | {axis}
        *outer, inner = self._space.shape(axes)
        assert isinstance(inner, Block), "a tile along an axis has an extent there"
        drawn = TileType(F32, (*outer, Block(inner.constant, 4), 2, 2))
        four = self._builder.call("draws", "rand4", (seed.expression, quartet), drawn, axes)
        return self._hold("rand", Reshape(four.expression, self._space.shape(axes)), axes)

    def _write_cast(self, node: Scalar, guard: Guard | None) -> Tile:
        quotient = self._rough_quotient(node)
        if quotient is not None:
            return self._write_rough_quotient(node, quotient, guard)
        tile = self._known(node.args[0], guard)
        if self._analysis.is_wide_scalar(node.args[0]) and node.dtype is F32:
            return tile
        if node.dtype is F16 and tile.dtype in (F32, F64) and self._analysis.is_made_of_integers(node.args[0]):
            whole = converted(tile.expression, tile.dtype, F32)
            kind = replace(self._builder.type_of(tile.expression), dtype=F16)
            return self._builder.call("cast", "whole_to_half", (whole,), kind, tile.axes)
        return self._hold("cast", Cast(tile.expression, node.dtype), tile.axes)

    def _write_rough_quotient(self, node: Scalar, quotient: Scalar, guard: Guard | None) -> Tile:
        """Writes a quotient that is rounded to a narrow type: by the fast division, or of a softmax one for a row."""
        left, right = (self._known(operand, guard) for operand in quotient.args)
        if quotient in self._weights:
            inverse = apply("div_fast", literal(1.0, F32), right.expression)
            divided = mul(left.expression, inverse)
        else:
            divided = apply("div_fast", left.expression, right.expression)
        return self._hold("div", Cast(divided, node.dtype), left.axes | right.axes)

    def _write_index(self, node: Scalar, guard: Guard | None) -> Tile:
        tile = self._index.tile(node.args[0], lambda value: self._known(value, guard))
        if tile.dtype is node.dtype:
            return tile
        return self._hold("index", Cast(tile.expression, node.dtype), tile.axes)

    # --- memory -----------------------------------------------------------------------------------------------------

    def _write_load(self, node: Scalar, guard: Guard | None) -> Tile:
        if self._flat.producer(node) is not None:
            found = self.results.get(node.source)
            if found is None:
                raise ScheduleMismatch(
                    f"kernel {self._flat.kernel.name} reads {node.source} before the loop that computes it has ended; "
                    "split the kernel between them"
                )
            return found
        param = self._flat.param_of(node.source)
        if param.param.host_scalar:
            return Tile(Name(param.text), NO_AXES, F32 if node.dtype.is_narrow_float else node.dtype)
        return self._loaded(node, guard, None)

    def _write_guarded_load(self, node: Scalar, load: Scalar, guard: Guard | None) -> Tile:
        other = literal(node.args[2].value, load.dtype)
        tile = self._loaded(load, Guard(node.args[0], guard), other)
        if load.dtype is node.dtype:
            return tile
        return self._hold("cast", Cast(tile.expression, node.dtype), tile.axes)

    def _loaded(self, node: Scalar, guard: Guard | None, other: Expression | None) -> Tile:
        param = self._flat.param_of(node.source)
        index = self._flat.offset(node.source, node.indices)
        address = self.addresses.address(param, index, lambda value: self._known(value, guard))
        conditions = [self._known(condition, outer) for condition, outer in _conditions(guard)]
        # What has to be zero past the end of a row is not read up to where a vector ends.
        row_mask = None if node in self._zeroed else self.addresses.row_mask(param, index)
        pointer, mask, axes = self.addresses.access(address, conditions, row_mask=row_mask)
        if index.is_indirect:
            assert_in_bounds(
                self._flat,
                self._builder,
                node.indices,
                lambda value: self._known(value, guard),
                (mask, axes),
                self._index_dtype,
            )
        is_own_row = self._flat.space.row_per_thread and {"x", "r"} <= axes
        if node in self._pieces and not is_own_row:
            pointer = self.addresses.in_pieces(pointer, self._pieces[node])
        is_whole = guard is None and other is None
        if mask is not None and other is None and (self._pads or node in self._zeroed):
            other = literal(0, node.dtype)
        load = Load(pointer, mask, other, self.hints.get(node, ""), row_per_thread=is_own_row)
        if self._descriptors is None or not is_whole:
            tile = self._hold("load", load, axes)
        else:
            tile = self._hold("load", self._descriptors.choice(node, load, self._space.order), axes)
        if node in self.ahead and guard is None:
            self.addresses.prefetch(param, index)
        return tile

    def address(self, param: KernelParam, index: Index) -> Tile:
        """Returns the address of an element of a parameter, of whose index the indirect parts are written first."""
        for value in indirects_of((index,)):
            self.tile(value)
        return self.addresses.address(param, index)


def _conditions(guard: Guard | None) -> list[Key]:
    found: list[Key] = []
    while guard is not None:
        found.append((guard.condition, guard.outer))
        guard = guard.outer
    return found[::-1]


def _computes_wider(node: Scalar, tiles: list[Tile]) -> bool:
    """Returns whether narrow operands are widened first: always for arithmetic, for a choice only if 8 bits wide."""
    if node.op in SELECTIONS:  # narrow floats pass through these as they are stored
        return bool(node.dtype.is_narrow_float and node.dtype.bits == 8)
    return any(tile.dtype.is_narrow_float for tile in tiles)
