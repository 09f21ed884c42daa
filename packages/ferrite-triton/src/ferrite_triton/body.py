"""The lines of a kernel: definitions in order, or spread over loops along the fold axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from ferrite_ir.dtypes import I32, I64
from ferrite_ir.graph import Computed, Contract, Fold, Scan, Sort, Update, bodies_of
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size, is_provably_at_most
from ferrite_scheduler.marks import ColumnFold

from .cooperation import CooperativeFoldText
from .evaluate import Evaluator
from .flat import FlatKernel, memory_loads
from .folds import FoldText, R
from .held_images import HeldImagesText
from .indices import run_atom
from .memory import StoreText, value_of
from .passes import READ_THE_LAST_TIME, goes_backwards, plan_passes, read_ahead, rereads, roots_of
from .positions import position_lines, skewed_lines
from .products import open_product
from .scans import ScanText, look_back_scans, waiting_halves
from .sorts import SortText
from .space import FOLD_AXES, NO_AXES, AxisText, Space
from .updates import UpdateText
from .walked import in_order
from .writer import Tile, Writer

COLUMN_STAGES = 2
"""Blocks of a scan along columns that are on their way at once."""
SHORT_ROW = 1024
"""Elements of a row that takes little of the shared memory."""
MOST_WAITING = 8
"""Stores that wait for the loads after them: each holds registers."""


class KernelBody:
    """Writes the lines of a kernel after its header."""

    def __init__(self, flat: FlatKernel, width: int) -> None:
        self._flat = flat
        self._wide = width == 64
        self._writer = Writer()
        self._evaluator = Evaluator(flat, self._writer, width)
        self._stores = StoreText(flat, self._writer, self._evaluator)
        self._folds = FoldText(flat, self._writer, self._evaluator)
        self._scans = ScanText(flat, self._writer, self._evaluator, self._folds, self._wide)
        self._sorts = SortText(flat.space, self._writer, self._evaluator, self._folds)
        self._updates = UpdateText(flat, self._writer, self._evaluator, self._stores)
        # Stores into memory that is also read wait until every load beside them has been written. Others of a pointwise
        # kernel wait so that the loads are under way together: the compiler moves no load before a store.
        self._waits = overwrites_operands(flat)
        self._most_waiting = MOST_WAITING if flat.kernel.strategy == "pointwise" else 0
        self._waiting: list[Callable[[], None]] = []

    def write(self) -> list[str]:
        """Returns the lines."""
        if self._flat.space.runs:
            self._write_run()
        elif self._flat.space.loops and self._flat.space.folds_tile:
            self._write_loops()
        elif self._flat.kernel.columns:
            self._write_images()
        elif self._flat.kernel.points:
            self._write_cooperation()
        elif self._flat.space.pieces > 1:
            self._write_pieces()
        else:
            self._evaluator.hints = shared_loads(self._flat) or last_loads(self._flat)
            definitions = iter(self._flat.definitions)
            counts = self._flat.kernel.branches or (len(self._flat.definitions),)
            self._write_branches([tuple(islice(definitions, count)) for count in counts])
        return self._writer.function.lines

    def _write_definition(self, definition: Computed) -> None:
        """Writes a definition that is not just evaluated where it is used."""
        match definition:
            case Fold():
                self._evaluator.publish(definition, self._folds.write(definition))
            case Scan():
                self._evaluator.publish(definition, self._scans.write(definition))
            case Sort():
                self._evaluator.publish(definition, self._sorts.write(definition))
            case Update():
                self._write_update(definition)

    def _write_update(self, update: Update) -> None:
        if update.target in self._flat.producers:
            self._flush()
        new, store = self._updates.prepare(update)
        if new is not None:
            self._evaluator.results[update.result.name] = new
        self._put(store)

    def _store_results(self, definition: Computed, conditions: Sequence[Tile] = ()) -> None:
        """Writes the stores of a definition's results, where the conditions hold."""
        if isinstance(definition, Update):
            return
        stored = [result.name for result in definition.results if result.name in self._flat.kernel.stored]
        for name in stored:
            tile = value_of(self._evaluator, self._flat, name)
            home = in_order(self._flat.space, self._flat.offset(name, self._flat.homes[name]))
            if isinstance(definition, Sort):
                self._put(self._stores.prepare(name, tile, *self._sorts.ranked(definition, home)))
            else:
                self._put(self._stores.prepare(name, tile, home, [*conditions]))

    def _put(self, store: Callable[[], None]) -> None:
        self._waiting.append(store)
        if not self._waits and len(self._waiting) > self._most_waiting:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._waits:
            # Several threads may load one element (of a small tile all do, and Triton repeats cheap loads in another
            # layout): none may overwrite it before all have it.
            self._writer.line("tl.debug_barrier()", R)
        for store in waiting:
            store()

    def _write_branches(self, branches: list[tuple[Computed, ...]], first: int = 0) -> None:
        """Writes what the programs of some branches do, the first of which has the number ``first``.

        They are told apart by halves: of many branches most programs would go through dozens of conditions in a row.
        """
        if len(branches) == 1:
            self._write_branch(branches[0])
            return
        half = len(branches) // 2
        for header, part, number in (
            (f"if branch < {first + half}:", branches[:half], first),
            ("else:", branches[half:], first + half),
        ):
            self._writer.open_branch()
            self._write_branches(part, number)
            self._writer.close_branch(header)

    def _write_branch(self, definitions: tuple[Computed, ...]) -> None:
        """Writes what the programs of one branch do: of several, in a loop over their only block.

        Branches of lists are alike but for their params, and the compiler would make one of them, which every program
        would begin with choosing all its params for: two hundred instructions, and registers that hold them. Loops it
        keeps apart.
        """
        space = self._flat.space
        axis = branch_axis(space)
        if axis is None:
            self._write_grid_level(definitions)
            return
        self._writer.open_branch()
        self._write_grid_level(definitions)
        lane = f"tl.arange(0, {axis.constant})"
        position = f"{axis.name}start + {lane}"
        # A loop counts in the type of its bounds, but in the interpreter, where it counts in Python's integers.
        lines = position_lines(space, axis, f"({position}).to(tl.int64)" if self._wide else position)
        if self._writer.speaks_of(f"{axis.name}_quarter"):
            quarter = f"{axis.name}start // 4 + tl.arange(0, {axis.constant} // 4)"
            lines.append(f"{axis.name}_quarter = ({quarter}){space.expand(axis.name)}")
        first, size = f"{axis.name}first", space.params.text(axis.size)
        end = f"tl.minimum({first} + {axis.constant}, {size})"
        self._writer.close_branch(f"for {axis.name}start in tl.range({first}, {end}, {axis.constant}):", lines)

    def _write_cooperation(self) -> None:
        """Writes all folds first, so that a program waits once, then what needs them: nothing is stored before."""
        self._evaluator.hints = shared_loads(self._flat)
        folds = [definition for definition in self._flat.definitions if isinstance(definition, Fold)]
        CooperativeFoldText(self._flat, self._writer, self._folds, self._evaluator).write(folds)
        for definition in self._flat.definitions:
            self._store_results(definition)
        self._flush()

    def _write_images(self) -> None:
        stores = self._store_results, self._flush
        HeldImagesText(self._flat, self._writer, self._evaluator, *stores, self._wide).write()

    def _write_pieces(self) -> None:
        """Writes a scan whose programs take their parts in pieces, and what is computed beside it, piece by piece."""
        space, (scan,) = self._flat.space, look_back_scans(self._flat)
        fold = space.fold
        if fold is None:
            raise AssertionError("a scan without a fold axis")
        self._evaluator.hints = shared_loads(self._flat) or last_loads(self._flat)
        wide = ".to(tl.int64)" if self._wide else ""

        def place(piece: int) -> None:
            start = f"(part{wide} * {space.pieces} + {piece}) * RBLOCK"
            for line in position_lines(space, fold, f"{start} + tl.arange(0, RBLOCK)"):
                self._writer.line(line, frozenset("r"))

        for tile in self._scans.pieces(scan, waiting_halves(self._flat), place):
            self._evaluator.publish(scan, (tile,))
            for definition in self._flat.definitions:
                self._store_results(definition)
            self._flush()

    # --- loops over the fold axis -----------------------------------------------------------------------------------

    def _write_loops(self) -> None:
        plan = plan_passes(self._flat)
        policies, shared = rereads(self._flat, plan), shared_loads(self._flat)
        self._write_grid_level(plan.before)
        backwards, ahead = goes_backwards(self._flat, plan), read_ahead(self._flat, policies)
        for loop, policy, is_backward, asked in zip(plan.loops, policies, backwards, ahead, strict=True):
            self._evaluator.hints, self._evaluator.ahead = policy | shared, asked
            if loop.inside:
                self._write_loop(loop.inside, is_backward=is_backward)
            self._write_grid_level(loop.after)

    def _write_loop(self, definitions: tuple[Computed, ...], *, is_backward: bool) -> None:
        fold = self._flat.space.fold
        if fold is None:
            raise AssertionError("a loop without a fold axis")
        size: Size = fold.size
        skew = self._flat.space.skew
        skewed = None if skew is None else self._evaluator.offset(skew.elements).text
        if skew is not None:
            size = size + skew.width - 1
            self._writer.before_loop(f"vectors_end = ({skewed} + {size}) // {skew.width} * {skew.width}")
        self._writer.open_loop()
        start = "rback" if is_backward else "rstart"
        if is_backward:
            last = self._flat.space.params.operand(size - 1)
            self._writer.line(f"rback = {last} // RBLOCK * RBLOCK - rstart", frozenset("r"))
        position = f"{start} + {self._flat.space.fold_lanes}"
        position = f"({position}).to(tl.int64)" if self._wide else position
        lines = position_lines(self._flat.space, fold, position)
        for line in lines if skewed is None else skewed_lines(self._flat.space, fold, position, skewed):
            self._writer.line(line, frozenset("r"))
        first = self._writer.mark()
        finishers: list[tuple[Fold | Contract, Callable[[], tuple[Tile, ...]]]] = []
        for definition in with_scans(self._flat, definitions):
            if isinstance(definition, Fold):
                finishers.append((definition, self._folds.open(definition)))
                continue
            if isinstance(definition, Contract):
                product = open_product(
                    definition, self._flat, self._folds, self._writer, self._evaluator, wide=self._wide
                )
                finishers.append((definition, product))
                continue
            self._write_definition(definition)
            if any(definition is wanted for wanted in definitions):
                self._store_results(definition)
        self._flush()
        if self._writer.uses("r_quarter", first):
            quarter = f"{start} // 4 + tl.arange(0, RBLOCK // 4){self._flat.space.expand('r')}"
            self._writer.insert(first, f"r_quarter = {quarter}")
        stages = f", num_stages={COLUMN_STAGES}" if self._flat.space.serial else ""
        bound = self._flat.space.params.text(size)
        self._writer.close_loop(f"for rstart in tl.range(0, {bound}, RBLOCK{stages}):")
        for definition, finish in finishers:
            self._evaluator.publish(definition, finish())
        for definition, _ in finishers:
            self._store_results(definition)
        self._flush()

    def _write_run(self) -> None:
        """Writes a loop over the rows of a run; column folds are complete after it."""
        space = self._flat.space
        rows = space.axis("x")
        if rows is None:
            raise AssertionError("a run without rows")
        self._writer.function.known[run_atom(space)] = Tile("program", NO_AXES, I64 if self._wide else I32)
        self._evaluator.hints = shared_loads(self._flat)
        first, bound = f"program * {space.run}", str(space.run)
        if rows.masked:  # the last runs have fewer rows, or none
            size = space.params.text(rows.size)
            self._writer.before_loop(f"run = ({size} + {space.runs - 1}) // {space.runs}")
            self._writer.before_loop(f"xend = tl.minimum(program * run + run, {size})")
            first, bound = "program * run", "xend - program * run"
        self._writer.open_loop("x")
        for line in position_lines(space, rows, f"{first} + xstart + tl.arange(0, XBLOCK)"):
            self._writer.line(line, frozenset("x"))
        finishers: list[tuple[ColumnFold, Callable[[], tuple[Tile, ...]]]] = []
        for definition in self._flat.definitions:
            if isinstance(definition, ColumnFold):
                finishers.append((definition, self._folds.open_columns(definition)))
                continue
            self._write_definition(definition)
            self._store_results(definition)
        self._flush()
        self._writer.close_loop(f"for xstart in tl.range(0, {bound}, XBLOCK, num_stages={stages_of(self._flat)}):")
        for definition, finish in finishers:
            self._evaluator.publish(definition, finish())
            self._store_results(definition)
        self._flush()

    def _write_grid_level(self, definitions: tuple[Computed, ...]) -> None:
        for definition in definitions:
            self._write_definition(definition)
            self._store_results(definition)
        self._flush()


def branch_axis(space: Space) -> AxisText | None:
    """Returns the axis along which a branch has blocks; None without branches, or if they have one point."""
    axis = space.axis("x")
    return axis if space.branches > 1 and axis is not None and axis.tiled else None


def stages_of(flat: FlatKernel) -> int:
    """Returns how many rows of a run are on their way at once: three of 2-byte elements, two of wider ones.

    Measured on an H200 for rows of 4,096: more of the wide ones leave no shared memory for a second program. Of short
    rows there is one more.
    """
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    widest = max((load.dtype.bytes for load in memory_loads(flat, roots) if _is_whole_row(load)), default=2)
    is_short = flat.space.fold is not None and is_provably_at_most(flat.space.fold.size, SHORT_ROW)
    return (3 if widest <= 2 else 2) + is_short


def _is_whole_row(load: Scalar) -> bool:
    return {"x", "r"} <= {dim.name for index in load.indices for dim in index.dims}


def overwrites_operands(flat: FlatKernel) -> bool:
    """Returns whether the kernel writes memory whose old contents it may read."""
    if any(isinstance(definition, Update) for definition in flat.definitions):
        return True
    return any(param.param.access == "readwrite" for param in flat.params.values())


def shared_loads(flat: FlatKernel) -> dict[Scalar, str]:
    """Returns a hint to keep what every program of a fold reads again, such as a weight along the fold axis."""
    if not flat.space.folds_tile or all(axis.size == 1 for axis in flat.space.grid):
        return {}
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    return {
        load: "evict_last"
        for load in memory_loads(flat, roots)
        if "r" in {dim.name for index in load.indices for dim in index.dims} <= FOLD_AXES
    }


def last_loads(flat: FlatKernel) -> dict[Scalar, str]:
    """Returns a hint to make room in the cache where what was read is done with."""
    if not any(param.param.is_last for param in flat.params.values()):
        return {}
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    return {load: READ_THE_LAST_TIME for load in memory_loads(flat, roots) if flat.param_of(load.source).param.is_last}


def with_scans(flat: FlatKernel, definitions: tuple[Computed, ...]) -> list[Computed]:
    """Returns the definitions of a loop with the scans of earlier loops that they read, which are done again."""
    wanted = {load.source for definition in definitions for root in roots_of(definition) for load in root.loads}
    pending = list(wanted)
    while pending:
        produced = flat.producers.get(pending.pop())
        if produced is None or isinstance(produced[0], Fold):
            continue
        names = {load.source for root in roots_of(produced[0]) for load in root.loads} - wanted
        wanted |= names
        pending.extend(names)
    chosen = {id(definition) for definition in definitions}
    for definition in flat.definitions:
        if isinstance(definition, Scan) and any(result.name in wanted for result in definition.results):
            chosen.add(id(definition))
    return [definition for definition in flat.definitions if id(definition) in chosen]
