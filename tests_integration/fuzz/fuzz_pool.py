"""The tensors of a program that is being written, from which its operations pick, and the table of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from fuzz_exactness import Exactness, storage
from fuzz_program import Input, Statement, names_of

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, *UNSIGNED)


@dataclass(frozen=True, slots=True)
class Line:
    """What an operation writes.

    Attributes:
        template, reads, wide: as in `Statement`.
        assigns: whether the line has a value.
        writes: the name whose storage it writes, None for none.
        stores: the name that it reads as the program returns it, None for none.
        has_run_time_size: whether the shape of its value, or of something on the way to it, depends on data.
    """

    template: str
    reads: tuple[str, ...]
    assigns: bool = True
    writes: str | None = None
    wide: str | None = None
    stores: str | None = None
    has_run_time_size: bool = False

    def statement(self, target: str) -> Statement:
        """Returns the line with a name for its value."""
        return Statement(target if self.assigns else None, self.template, self.reads, self.wide, self.writes)


@dataclass(slots=True)
class World:
    """The tensors of one call: in their own types, in float64, and which are exact."""

    inputs: tuple[Input, ...]
    narrow: dict[str, Tensor] = field(default_factory=dict)
    wide: dict[str, Tensor] = field(default_factory=dict)
    exactness: Exactness = field(default_factory=Exactness)

    def __post_init__(self) -> None:
        for number, each in enumerate(self.inputs):
            self.narrow[f"x{number}"] = x = each.make("cpu")
            self.wide[f"x{number}"] = widened(x)

    def run(self, statement: Statement) -> None:
        """Runs a line in both; what it raises, it raises."""
        spaces = ((self.narrow, False, torch.float32), (self.wide, True, torch.float64))
        for space, is_wide, default in spaces:
            names = {**names_of("cpu"), **space}
            torch.set_default_dtype(default)
            try:
                if is_wide:
                    exec(statement.text(is_wide=True), names)
                else:
                    with self.exactness:
                        exec(statement.text(), names)
            finally:
                torch.set_default_dtype(torch.float32)
            if statement.target is not None:
                if not isinstance(names[statement.target], Tensor):
                    raise TypeError("no tensor")
                space[statement.target] = names[statement.target]

    def store(self, name: str) -> None:
        """Takes what a name holds for given, from now on: of halves, all readers see what is stored."""
        self.wide[name].copy_(self.narrow[name])
        if self.narrow[name].dtype in HALVES:
            self.exactness.unmark(self.narrow[name])


def widened(x: Tensor) -> Tensor:
    """Returns a tensor of the same strides in float64, if it is of floats, that shares nothing with the original."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    whole = x.detach().as_strided((span if x.numel() else 0,), (1,))
    whole = whole.double() if x.dtype.is_floating_point and x.dtype is not torch.float64 else whole.clone()
    strided = torch.empty(0, dtype=whole.dtype, device=x.device)
    strided.set_(whole.untyped_storage(), 0, x.shape, x.stride())
    return strided.requires_grad_(x.requires_grad)


class Pool:
    """The tensors of a program under construction, as eager has them, and which of them are exact."""

    def __init__(self, rng: Random, sizes: tuple[int, ...], *, is_written: bool, is_trained: bool) -> None:
        self.rng, self.sizes, self.is_written, self.is_trained = rng, sizes, is_written, is_trained
        self.worlds: list[World] = []
        self.kept: set[str] = set()  # names whose storages must not be written, as of inputs whose gradients are wanted
        self.windows: set[str] = set()  # windows and views of them: to write to them is refused

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as eager has them."""
        return self.worlds[0].narrow

    @property
    def is_dynamic(self) -> bool:
        """Whether the program is compiled for any sizes."""
        return len(self.worlds) > 1

    def name(self, wanted: Callable[[Tensor], bool] = lambda x: True, *, exact: bool = False) -> str | None:
        """Returns the name of a tensor, the younger the likelier, or None if there is none."""
        names = [name for name, x in self.tensors.items() if wanted(x) and not (exact and self.is_inexact(name))]
        if not names:
            return None
        return names[-1 - min(int(self.rng.expovariate(0.35)), len(names) - 1)]

    def is_inexact(self, name: str) -> bool:
        """Returns whether a tensor holds floats that another order of operations would round otherwise."""
        return any(world.exactness.is_inexact(world.narrow[name]) for world in self.worlds)

    def is_kept(self, x: Tensor) -> bool:
        """Returns whether the storage of a tensor must not be written."""
        return any(storage(self.tensors[name]) == storage(x) for name in self.kept)

    def note_windows(self, statement: Statement) -> None:
        """Notes the value of a line if it is one of windows, or a view of some: torch's capture loses writes to it."""
        name = statement.target
        if name is None:
            return
        place = storage(self.tensors[name])
        seen = (read for read in statement.reads if storage(self.tensors[read]) == place)
        if any(".unfold(" in statement.template or read in self.windows for read in seen):
            self.windows.add(name)

    def is_window(self, x: Tensor) -> bool:
        """Returns whether a tensor is one of windows, or a view of some."""
        return any(self.tensors.get(name) is x for name in self.windows)

    def shares(self, name: str) -> bool:
        """Returns whether other names share the storage of a tensor."""
        x = self.tensors[name]
        return any(storage(y) == storage(x) for other, y in self.tensors.items() if other != name)

    def shape(self) -> tuple[int, ...]:
        """Returns a shape over the sizes of the program."""
        return tuple(self.rng.choice(self.sizes) for _ in range(self.rng.randint(0, 3)))

    def extent(self, size: int) -> str:
        """Returns the text of a size: where sizes may vary, an input's that has it."""
        if not self.is_dynamic:
            return str(size)
        inputs = self.worlds[0].inputs
        found = [f"x{n}.shape[{k}]" for n, each in enumerate(inputs) for k, s in enumerate(each.shape) if s == size > 1]
        return self.rng.choice(found) if found else str(size)

    def extents(self, shape: Iterable[int]) -> str:
        """Returns the text of a shape."""
        return listed(map(self.extent, shape))


Operation = Callable[[Pool], Line | None]
OPERATIONS: list[tuple[int, Operation]] = []
"""Operations with their weights."""


def operation(weight: int) -> Callable[[Operation], Operation]:
    """Returns a decorator that enters a function in the table."""

    def enter(function: Operation) -> Operation:
        OPERATIONS.append((weight, function))
        return function

    return enter


def is_float(x: Tensor) -> bool:
    return x.is_floating_point()


def is_integer(x: Tensor) -> bool:
    return x.dtype in INTEGERS


def is_number(x: Tensor) -> bool:
    return x.dtype is not torch.bool


def fits_into(shape: torch.Size, x: Tensor) -> bool:
    """Returns whether a shape broadcasts to that of a tensor."""
    try:
        return torch.broadcast_shapes(shape, x.shape) == x.shape
    except RuntimeError:
        return False


def broadcasts(x: Tensor) -> Callable[[Tensor], bool]:
    """Returns whether another tensor is of the same kind and broadcasts with this one."""

    def fits(y: Tensor) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return y.dtype == x.dtype and all(a == b or 1 in (a, b) for a, b in pairs)

    return fits


def is_apart(x: Tensor, y: Tensor) -> bool:
    """Returns whether writing into one tensor what is read of another one means the same in any order of elements.

    It does not where they lie over one storage, but for one and the same view: eager reads what it has just written.
    """
    is_same = (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())
    return storage(x) != storage(y) or is_same


def overlaps(x: Tensor) -> bool:
    """Returns whether two elements of a tensor may lie at one place."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def listed(values: Iterable[Any]) -> str:
    return "(" + "".join(f"{value}, " for value in values) + ")"
