"""Random programs, built line by line: each is run in eager at once, so that programs are valid and tame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Each of these modules enters its operations in the table.
import fuzz_casts  # noqa: F401
import fuzz_indexing  # noqa: F401
import fuzz_ops  # noqa: F401
import fuzz_writes  # noqa: F401
from fuzz_pool import FLOATS, INTEGERS, OPERATIONS, Line, Pool, World
from fuzz_program import Input, Program, Statement, names_of
from fuzz_views import views_of

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGE = (64, 129, 257, 513, 1025)
LONG = (1000, 1025, 4097, 20000, 40000)
MOST_LINES = 40
USUAL_LINES = {False: 9.0, True: 5.0}
"""Lines of a program beyond the first three, on average: for tensors of up to a few thousand elements, and for more."""
LIMIT = 4096.0
"""No float of a program is larger: float16 holds it, and few of its neighbours are lost."""
SPREAD = 0.02
"""A line whose result in its own dtype is further than this share of its size from float64 is left out."""


MOST = 1 << 27
"""Elements that no operation makes, not even on the way to something small."""


class Refused(Exception):
    """A line that a program is better without."""


class Sizes(TorchDispatchMode):
    """While this is active, operations on tensors without memory may not make too many elements."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns what the operation returns.

        Raises:
            Refused: it has too many elements.
        """
        results = func(*args, **(kwargs or {}))
        if any(isinstance(each, Tensor) and each.numel() > MOST for each in pytree.tree_leaves(results)):
            raise Refused
        return results


def makes_too_much(world: World, statement: Statement) -> bool:
    """Returns whether a line computes more than there is memory for, as three indices that broadcast may.

    What it gives is not computed: a machine with much memory would do so for minutes.
    """
    space = {
        name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for name, x in world.narrow.items()
    }
    try:
        with Sizes():
            exec(statement.text(), {**names_of("meta"), **space})
    except Refused:
        return True
    except Exception:  # noqa: BLE001 - what it computes depends on data
        return False
    return False


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an input lies in memory, whatever its sizes: the order of its dims, gaps after them, repeated dims."""

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    repeated: frozenset[int]
    offset: int

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the strides of a shape."""
        strides, step = [0] * len(shape), 1
        for axis in self.order:
            strides[axis] = 0 if axis in self.repeated else step
            step = step * max(shape[axis], 1) + self.gaps[axis]
        return tuple(strides)


class Draft:
    """A program under construction, with its tensors in their own dtypes and, beside them, in float64."""

    def __init__(self, seed: int, elements: int, *, is_trained: bool, is_dynamic: bool) -> None:
        self.rng = Random(seed)
        self.seed, self.elements = seed, elements
        self.is_trained = is_trained
        self.pool = Pool(self.rng, self._sizes(), is_written=self.rng.random() < 0.6, is_trained=is_trained)
        inputs = [self._input(is_first=number == 0) for number in range(self.rng.randint(1, 4))]
        self.calls = [tuple(each for each, _ in inputs)]
        if is_dynamic:
            others = {size: size if size < 2 else size + self.rng.randint(1, 4) for size in self.pool.sizes}
            self.calls.append(tuple(enlarged(each, recipe, others) for each, recipe in inputs))
        self.statements: list[Statement] = []
        self.stored: set[str] = set()
        self.has_run_time_sizes = False
        self.scale = 2.0
        self._begin()

    def _begin(self) -> None:
        self.pool.worlds = [World(inputs) for inputs in self.calls]
        if self.is_trained:
            self.pool.kept.update(f"x{number}" for number in range(len(self.calls[0])))

    def _sizes(self) -> tuple[int, ...]:
        rng, is_large = self.rng, self.elements > 1 << 14
        sizes = (1, *rng.sample(SIZES, 3))
        if rng.random() < 0.1:
            sizes = (*sizes, 0)
        if rng.random() < (0.4 if is_large else 0.15):
            sizes = (*sizes, rng.choice((*LARGE, *LONG) if is_large else LARGE))
        return sizes

    def _input(self, *, is_first: bool) -> tuple[Input, Recipe]:
        rng = self.rng
        dtype = rng.choice((torch.float32,) * 5 + (*FLOATS, *FLOATS, *INTEGERS, torch.int64, torch.int64, torch.bool))
        if self.is_trained and is_first:
            dtype = torch.float32
        shape = tuple(rng.choice(self.pool.sizes) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3, 4))))
        while torch.Size(shape).numel() > self.elements // 2:
            shape = shape[1:]
        contents = "eighths"
        if rng.random() < 0.35:
            contents = "fine" if dtype.is_floating_point else "wide"
        recipe = self._recipe(len(shape))
        return Input(dtype, shape, recipe.strides(shape), rng.randrange(1 << 30), contents, recipe.offset), recipe

    def _recipe(self, rank: int) -> Recipe:
        """Returns packed dims in some order, with gaps or repeated dims now and then."""
        rng, kind = self.rng, self.rng.random()
        order = list(reversed(range(rank)))
        if kind > 0.5:
            order = [1, 3, 2, 0] if rank == 4 and kind < 0.7 else rng.sample(range(rank), rank)
        gaps = tuple(rng.randint(0, 3) if kind > 0.8 else 0 for _ in range(rank))
        repeated = frozenset((rng.randrange(rank),)) if kind > 0.93 and rank else frozenset()
        return Recipe(tuple(order), gaps, repeated, rng.randint(1, 5) if rng.random() < 0.1 else 0)

    def grow(self) -> None:
        """Adds a line, if one is found that works."""
        weights, functions = zip(*OPERATIONS, strict=True)
        line = self.rng.choices(functions, weights)[0](self.pool)
        if line is not None:
            self._try(line)

    def _try(self, line: Line) -> None:
        target = f"t{len(self.statements)}"
        statement = line.statement(target)
        try:
            scale = max(self._run(world, statement, line) for world in self.pool.worlds)
        except (Refused, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            if line.writes is not None or line.stores is not None:
                self._replay()
            for world in self.pool.worlds:
                world.narrow.pop(target, None)
                world.wide.pop(target, None)
            return
        self.scale = max(self.scale, scale)
        self.statements.append(statement)
        self.pool.note_windows(statement)
        self.has_run_time_sizes |= line.has_run_time_size
        if line.stores is not None:
            self.stored.add(line.stores)

    def _replay(self) -> None:
        """Makes the tensors anew: a line that was refused has written to them."""
        self._begin()
        for world in self.pool.worlds:
            for statement in self.statements:
                world.run(statement)
                if statement.target in self.stored:
                    world.store(statement.target)

    def _run(self, world: World, statement: Statement, line: Line) -> float:
        """Returns the size of the largest number of the line's result.

        Raises:
            Refused: the program is better without the line.
        """
        if makes_too_much(world, statement):
            raise Refused
        if line.stores is not None:
            world.store(line.stores)
        world.run(statement)
        name = statement.target or line.writes
        assert name is not None
        mine, right = world.narrow[name], world.wide[name]
        if mine.numel() > self.elements or mine.shape != right.shape or mine.ndim > 5:
            raise Refused
        if not mine.numel() or not mine.is_floating_point():
            if mine.is_floating_point() != right.is_floating_point():
                raise Refused
            return 0.0
        size = float(right.abs().max())
        error = float((mine.double() - right).norm())
        if not bool(torch.isfinite(mine).all()) or size > LIMIT or error > SPREAD * float(right.norm()) + 1e-30:
            raise Refused
        return size

    def finish(self) -> Program | None:
        """Returns the program; None if it computes nothing."""
        made = [statement.target for statement in self.statements if statement.target is not None]
        if not made:
            return None
        # Unused results are of no use: return what nobody reads, and a few others.
        read = {name for statement in self.statements for name in statement.reads}
        ends = [name for name in made if name not in read][-6:]
        returned = list(dict.fromkeys([*ends, made[-1], self.rng.choice(made), *sorted(self.stored)]))
        returned += self._aliases(made, returned)
        calls, statements = tuple(self.calls), tuple(self.statements)
        stored = frozenset(self.stored)
        return Program(
            self.seed,
            calls,
            statements,
            tuple(returned),
            stored,
            self.scale,
            has_run_time_sizes=self.has_run_time_sizes,
        )

    def _aliases(self, made: Sequence[str], returned: Sequence[str]) -> list[str]:
        """Returns more results that share memory: inputs, views of inputs and of other results, results twice."""
        rng, found = self.rng, []
        for source in (returned, self.pool.worlds[0].inputs):
            if rng.random() < 0.3:
                name = rng.choice(returned) if source is returned else f"x{rng.randrange(len(source))}"
                count = len(self.statements)
                self._try(Line(rng.choice(views_of(self.pool, self.pool.tensors[name])), (name,)))
                if len(self.statements) > count:
                    found.append(f"t{count}")
        if rng.random() < 0.15:
            found.append(f"x{rng.randrange(len(self.calls[0]))}")
        if rng.random() < 0.15:
            found.append(rng.choice(returned))
        return found


def enlarged(given: Input, recipe: Recipe, sizes: dict[int, int]) -> Input:
    """Returns an input of other sizes that lies as a given one does."""
    shape = tuple(sizes[size] for size in given.shape)
    return replace(given, shape=shape, strides=recipe.strides(shape), seed=given.seed + 1)


def generate(seed: int, elements: int, *, is_trained: bool = False, is_dynamic: bool = False) -> Program:
    """Returns the program of a seed, with no tensor of more than so many elements."""
    for attempt in range(100):
        draft = Draft(seed + (attempt << 40), elements, is_trained=is_trained, is_dynamic=is_dynamic)
        lines = min(MOST_LINES, 3 + int(draft.rng.expovariate(1 / USUAL_LINES[elements > 1 << 14])))
        for _ in range(4 * lines):
            if len(draft.statements) >= lines:
                break
            draft.grow()
        program = draft.finish()
        if program is not None:
            return replace(program, seed=seed)
    raise AssertionError(f"seed {seed} gives no program")
