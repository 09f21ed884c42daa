"""Kernels that normalise images, whose programs hold what they have read until the moments of its groups are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.dtypes import BOOL, F32
from ferrite_ir.graph import Computed, Fold, Loop, bodies_of
from ferrite_ir.scalar import Scalar, postorder
from ferrite_scheduler.held_images import slots_of, spans_of

from .asking import ask_for_image
from .evaluate import Evaluator
from .flat import FlatKernel, memory_loads, reads_along_fold
from .folds import R
from .halves import held_loads, holds_only_halves
from .literals import number_text
from .passes import READ_THE_LAST_TIME
from .positions import position_lines
from .space import NO_AXES, Space, next_power_of_two
from .writer import Tile, Writer

PLACES = 32
"""Places of a piece of what a program holds: of one after the other floats are made, while others wait as they came."""
REGISTERS, REGISTERS_OF_HALVES = 96, 56
"""Registers of a thread, 64 or 32 of which hold elements: a multiprocessor has five programs of four warps, or nine."""
THREADS = 128
"""Threads of a program, which the spec states. Each asks for words of its own."""
CHANNELS = 2
"""Channels of a thread. Of more it would need registers for the sums and the factors of each."""
X = frozenset("x")


def pieces_of(flat: FlatKernel) -> int:
    """Returns in how many pieces a program takes what it holds."""
    return flat.kernel.points // PLACES


def registers_of(flat: FlatKernel) -> int:
    """Returns how many registers a thread has."""
    return REGISTERS_OF_HALVES if holds_only_halves(flat) else REGISTERS


def image_lines(space: Space, status: str, wide: str) -> list[str]:
    """Returns the lines that place a program: the parts of a block of channels lie one after the other.

    Where a block begins is hidden from the compiler, but for being a multiple of `CHANNELS`: so no thread reads more
    channels of a place.
    """
    x, y = space.axis("x"), space.axis("y")
    if x is None:
        raise AssertionError("images without channels")
    if x.block is None:
        raise AssertionError("blocks of channels of any size")
    blocks = -(-int(x.size) // x.block)
    lines = [f"program = fmath.part_in_order({status}, tl.num_programs(0)){wide}"]
    lines += [f"member = program % {space.parts}", f"block = program // {space.parts} % {blocks}"]
    lines += [f"y = program // {space.parts * blocks}"] if y is not None else []
    position = position_lines(space, x, "xfirst + tl.arange(0, XBLOCK)")
    first = f"{_hidden(f'block * (XBLOCK // {CHANNELS})', is_wide=bool(wide))} * {CHANNELS}"
    return [*lines, f"xfirst = {first}", f"xlane = tl.arange(0, XBLOCK){space.expand('x')}", *position]


def _hidden(number: str, *, is_wide: bool) -> str:
    """Returns the text of an integer of which the compiler does not know what it is made of."""
    return f"fmath.as_it_came(({number}).to(tl.int32)).to(tl.int64)" if is_wide else f"fmath.as_it_came({number})"


@dataclass(frozen=True, slots=True)
class HeldImagesText:
    """Writes the lines of one kernel; `fmath.held_groups` has what its programs tell each other.

    Args:
        flat: the kernel.
        writer: takes the lines.
        evaluator: writes values.
        store: stores the results of a definition where the conditions hold.
        flush: writes the stores that wait.
        wide: whether addresses have 64 bits.
    """

    flat: FlatKernel
    writer: Writer
    evaluator: Evaluator
    store: Callable[[Computed, list[Tile]], None]
    flush: Callable[[], None]
    wide: bool

    def write(self) -> None:
        """Writes the lines."""
        fold = next(definition for definition in self.flat.definitions if isinstance(definition, Fold))
        (load,) = held_loads(self.flat)
        self.writer.line(f"words = {self._words}", NO_AXES)
        sizes = (self._members, self.flat.kernel.columns, self._spans, self.flat.space.parts)
        sign = f"fmath.sign_of_launch(words, xfirst, member, {', '.join(map(str, sizes))})"
        self.writer.line(f"sign = {sign}", NO_AXES)
        self.evaluator.hints = {load: READ_THE_LAST_TIME}
        self.writer.line(f"rfirst = member * {self.flat.kernel.points}", NO_AXES)
        pieces = [self._loaded(piece, load) for piece in range(self.flat.space.pieces)]
        self.evaluator.hints = {}
        self._publish(fold, load, pieces)
        self._load_channels()
        # All that it reads itself has come by now: what it waits for is what others tell it.
        ask_for_image(self.flat, self.evaluator.addresses, load)
        self._await(fold)
        for definition in self.flat.definitions:
            if not self._is_of_elements(definition):
                self.store(definition, [Tile("member == 0", NO_AXES, BOOL)])
        self.flush()
        # No register holds addresses meanwhile.
        self.writer.forget_if(lambda key, _: isinstance(key, tuple) and key[0] == "first")
        member = _hidden("member", is_wide=self.wide)
        self.writer.line(f"rfirst = {member} * {self.flat.kernel.points}", NO_AXES)
        for piece, held in enumerate(pieces):
            self._place(piece)
            self.evaluator.renew_elements({load: held})
            for definition in self.flat.definitions:
                if self._is_of_elements(definition):
                    self.store(definition, [])
            self.flush()
            self.writer.forget(R)

    def _is_of_elements(self, definition: Computed) -> bool:
        return isinstance(definition, Loop) and self.flat.is_fold_level(definition)

    def _place(self, piece: int) -> None:
        """Writes which places a piece holds."""
        self._position(f"tl.arange(0, RBLOCK) + {piece} * RBLOCK" if piece else "tl.arange(0, RBLOCK)")

    def _position(self, lanes: str) -> None:
        """Writes which places of its part the program is about to take."""
        suffix = self.flat.space.expand("r")
        self.writer.line(f"rlane = ({lanes}){suffix}", R)
        self.writer.line("r = rfirst + rlane", R)

    def _loaded(self, piece: int, load: Scalar) -> Tile:
        self._place(piece)
        tile = self.evaluator.tile(load)
        self.writer.forget(R)
        return tile

    def _publish(self, fold: Fold, load: Scalar, pieces: list[Tile]) -> None:
        """Writes the moments of a program's own places, which others wait for."""
        (body,) = fold.bodies
        points = self.flat.kernel.points
        self._position("tl.arange(0, 1)")
        origin = self.evaluator.tile(body)
        self.writer.forget(R)
        together = THREADS * CHANNELS // self.flat.kernel.columns
        sums: list[tuple[str, str]] = []
        for piece, held in enumerate(pieces):
            self._place(piece)
            self.evaluator.renew_elements({load: held})
            tile = self.evaluator.tile(body)
            names = self.writer.fresh("sums"), self.writer.fresh("squares")
            self.writer.line(f"{', '.join(names)} = fmath.sums_apart({tile.text}, {origin.text}, {together})", X)
            sums.append(names)
            self.writer.forget(R)
        total, squares = (" + ".join(names) for names in zip(*sums, strict=True))
        self.writer.line(f"mean, squares = fmath.moments_of_columns({total}, {squares}, {origin.text}, {points})", X)
        self.writer.line(f"fmath.publish_groups(words, sign, mean, squares, xfirst, member, {self._sizes})", X)

    def _load_channels(self) -> None:
        """Writes the loads of what all places of a channel share: they come while the program waits."""
        roots = tuple(body for definition in self.flat.definitions for body in bodies_of(definition))
        for load in memory_loads(self.flat, roots):
            if not reads_along_fold(self.flat, load) and not any(index.is_indirect for index in load.indices):
                self.evaluator.tile(load)

    def _await(self, fold: Fold) -> None:
        """Writes the moments of whole groups, what is computed of them alone, and which of it each channel has."""
        lanes = max(next_power_of_two(self._spans * self.flat.space.parts), THREADS // self._slots)
        mean, squares = (Tile(self.writer.fresh(name), NO_AXES, F32) for name in ("mean", "squares"))
        call = f"fmath.whole_groups(words, sign, xfirst, {self._sizes}, {lanes})"
        self.writer.line(f"{mean.text}, {squares.text} = {call}", NO_AXES)
        weight = float(self._members * int(self.flat.kernel.axes[-1].size))
        states = (mean, squares, Tile(number_text(weight, F32), NO_AXES, F32, weight))
        self.evaluator.publish(fold, states)
        values = self._values_of_groups(fold)
        tiles = [self.evaluator.tile(node) for node in values]
        for node, tile in zip(values, tiles, strict=True):
            self.evaluator.know(node, self._of_channels(tile))
        self.evaluator.publish(fold, tuple(self._of_channels(state) for state in states))

    def _of_channels(self, tile: Tile) -> Tile:
        """Returns what each channel has of a value of groups, a vector."""
        if tile.literal is not None:
            return tile
        call = f"fmath.of_columns({tile.text}, xfirst, {self._columns}, {self._members}, {self.flat.kernel.columns})"
        return self.writer.hold("of", call, X, tile.dtype)

    def _values_of_groups(self, fold: Fold) -> list[Scalar]:
        """Returns what is computed of the moments of groups and of nothing else, the largest expressions."""
        results = {result.name for result in fold.results}
        bodies = [body for d in self.flat.definitions if d is not fold for body in bodies_of(d)]
        alone: dict[Scalar, bool] = {}
        used: dict[Scalar, None] = {}
        for node in postorder(bodies):
            if node.op in ("load", "index"):
                alone[node] = node.op == "load" and node.source in results
                continue
            parts = [part for part in node.args if isinstance(part, Scalar)]
            alone[node] = all(alone[part] for part in parts) and (bool(parts) or node.op == "const")
            if not alone[node]:
                used |= dict.fromkeys(parts)
        used |= dict.fromkeys(bodies)
        return [n for n in used if alone.get(n) and n.op not in ("load", "const") and n.loads and n.dtype is F32]

    @property
    def _members(self) -> int:
        return int(self.flat.kernel.axes[-2].dims[1].size)

    @property
    def _columns(self) -> int:
        return int(self.flat.kernel.axes[-2].size)

    @property
    def _spans(self) -> int:
        return spans_of(self._members, self._columns)

    @property
    def _slots(self) -> int:
        return next_power_of_two(slots_of(self._members, self._columns))

    @property
    def _sizes(self) -> str:
        kernel = self.flat.kernel
        sizes = (kernel.points, self._columns, self._members, kernel.columns, self._slots, self._spans)
        return ", ".join(map(str, (*sizes, self.flat.space.parts)))

    @property
    def _words(self) -> str:
        """Returns where the words of an image begin, behind the counter."""
        first = f"{self.flat.param_of(self.flat.kernel.status).text} + 1"
        words = self._columns // self._members * self._spans * self.flat.space.parts
        return first if self.flat.space.axis("y") is None else f"{first} + y * {words}"
