"""Random programs, built line by line: each is run in eager at once, so that programs are valid and tame."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from fuzz_ops import FLOATS, INTEGERS, OPERATIONS, Line, Pool, storage
from fuzz_program import Input, Program

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGE = (64, 129, 257, 1000, 1025)
MOST_LINES = 40
LIMIT = 4096.0
"""No number of a program is larger: float16 holds it, and few of its neighbours are lost."""
SPREAD = 0.02
"""A line whose result in its own dtype is further than this share of its size from float64 is left out."""

_NARROW = re.compile(r"torch\.(float32|float16|bfloat16)\b")


def widened_text(text: str) -> str:
    """Returns the text of a program with every float type replaced by float64."""
    return _NARROW.sub("torch.float64", text)


class Draft:
    """A program under construction, with its tensors in their own dtypes and, beside them, in float64."""

    def __init__(self, seed: int, elements: int, *, is_trained: bool) -> None:
        self.rng = Random(seed)
        self.seed, self.elements = seed, elements
        sizes = (1, *self.rng.sample(SIZES, 3))
        if elements > 1 << 14 and self.rng.random() < 0.5:
            sizes = (*sizes, self.rng.choice(LARGE))
        self.pool = Pool(self.rng, sizes, is_written=self.rng.random() < 0.6, is_trained=is_trained)
        self.wide: dict[str, Tensor] = {}
        self.inputs = tuple(self._input(number, is_trained=is_trained) for number in range(self.rng.randint(1, 4)))
        self.statements: list[Any] = []
        self.scale = 2.0
        for number, each in enumerate(self.inputs):
            x = each.make("cpu")
            self.pool.tensors[f"x{number}"] = x
            self.wide[f"x{number}"] = x.double() if x.is_floating_point() else x.clone()
            if is_trained:
                self.pool.kept.add(storage(x))
        # What is widened must keep sharing as the originals do; inputs share nothing.

    def _input(self, number: int, *, is_trained: bool) -> Input:
        rng = self.rng
        dtype = rng.choice((torch.float32,) * 4 + (*FLOATS, *INTEGERS, torch.int64, torch.bool))
        if is_trained and number == 0:
            dtype = torch.float32
        shape = tuple(rng.choice(self.pool.sizes) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3, 4))))
        while torch.Size(shape).numel() > self.elements:
            shape = shape[1:]
        return Input(dtype, shape, self._strides(shape), rng.randrange(1 << 30))

    def _strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns strides: packed in some order, with gaps or repeated now and then."""
        rng, kind = self.rng, self.rng.random()
        order = list(reversed(range(len(shape)))) if kind < 0.6 else rng.sample(range(len(shape)), len(shape))
        strides, step = [0] * len(shape), 1
        for axis in order:
            strides[axis] = step
            step = step * max(shape[axis], 1) + (rng.randint(0, 3) if kind > 0.85 else 0)
        if kind > 0.95 and shape:
            strides[rng.randrange(len(shape))] = 0
        return tuple(strides)

    def grow(self) -> None:
        """Adds a line, if one is found that works."""
        weights, functions = zip(*OPERATIONS, strict=True)
        line = self.rng.choices(functions, weights)[0](self.pool)
        if line is not None:
            self._try(line)

    def _try(self, line: Line) -> None:
        target = f"t{len(self.statements)}"
        statement = line.statement(target)
        saved = copy.deepcopy((self.pool.tensors, self.wide)) if line.writes else None
        inexact = not line.is_exact or any(self.pool.is_inexact(name) for name in line.reads)
        marks = {name for name in self.pool.tensors if self.pool.is_inexact(name)}
        try:
            scale = self._run(statement.text(), target if line.assigns else None, line)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            scale = None
        if scale is None:
            self.pool.tensors.pop(target, None)
            self.wide.pop(target, None)
            if saved is not None:
                # Storages are new: marks move with the names.
                kept = {name for name, x in self.pool.tensors.items() if storage(x) in self.pool.kept}
                self.pool.tensors, self.wide = saved
                self.pool.inexact = {storage(self.pool.tensors[name]) for name in marks}
                self.pool.kept = {storage(self.pool.tensors[name]) for name in kept}
            return
        self.scale = max(self.scale, scale)
        self.statements.append(statement)
        written = self.pool.tensors[line.writes or target]
        if inexact or not torch.equal(written.double(), self.wide[line.writes or target].double()):
            self.pool.inexact.add(storage(written))

    def _run(self, text: str, target: str | None, line: Line) -> float | None:
        """Returns the size of the line's result; None if the program is better without it."""
        for space, code, default in (
            (self.pool.tensors, text, torch.float32),
            (self.wide, widened_text(text), torch.float64),
        ):
            torch.set_default_dtype(default)
            try:
                names = {"torch": torch, "F": torch.nn.functional, "device": "cpu", **space}
                exec(code, names)
            finally:
                torch.set_default_dtype(torch.float32)
            if target is not None:
                if not isinstance(names[target], Tensor):
                    return None
                space[target] = names[target]
        name = target or line.writes
        assert name is not None
        mine, right = self.pool.tensors[name], self.wide[name]
        if mine.numel() > self.elements or mine.shape != right.shape or mine.ndim > 5:
            return None
        if not mine.numel():
            return 0.0
        size = float(right.double().abs().max())
        error = float((mine.double() - right.double()).norm()) if mine.dtype is not torch.bool else 0.0
        is_good = bool(torch.isfinite(mine.double()).all()) and size <= LIMIT
        return size if is_good and error <= SPREAD * float(right.double().norm()) + 1e-30 else None

    def finish(self) -> Program | None:
        """Returns the program; None if it computes nothing."""
        made = [statement.target for statement in self.statements if statement.target is not None]
        if not made:
            return None
        # Unused results are of no use: return what nobody reads, and a few others.
        read = {name for statement in self.statements for name in statement.reads}
        ends = [name for name in made if name not in read][-6:]
        returned = tuple(dict.fromkeys([*ends, made[-1], self.rng.choice(made)]))
        return Program(self.seed, self.inputs, tuple(self.statements), returned, self.scale)


def generate(seed: int, elements: int, *, is_trained: bool = False) -> Program:
    """Returns the program of a seed, with no tensor of more than so many elements."""
    for attempt in range(100):
        draft = Draft(seed + (attempt << 40), elements, is_trained=is_trained)
        lines = min(MOST_LINES, 3 + int(draft.rng.expovariate(1 / 12)))
        for _ in range(4 * lines):
            if len(draft.statements) >= lines:
                break
            draft.grow()
        program = draft.finish()
        if program is not None:
            return replace(program, seed=seed)
    raise AssertionError(f"seed {seed} gives no program")
