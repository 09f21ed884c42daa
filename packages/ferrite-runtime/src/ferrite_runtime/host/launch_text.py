"""What the host function says of launches: their arguments as text, and how launches that may wait are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrite_runtime.formats.expression_sums import Names
from ferrite_runtime.formats.expressions import Expr
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.host.arena import Arenas
from ferrite_runtime.host.native_products import Location, Product
from ferrite_runtime.host.product_steps import HostStep


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a launch as text.

    The text says ``base`` plus the number ``offset``, or just the number ``literal``. ``owner`` is the variable whose
    tensor an address lies in. A ``suspect`` address may be less aligned than the param promises; a ``misaligned`` one
    surely is.
    """

    param: Param
    text: str
    owner: str | None = None
    suspect: bool = False
    misaligned: bool = False
    base: str = ""
    offset: int = 0
    literal: int | float | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """One launch of a program: its number, kernel, arguments, and the values of the size params, texts or ints.

    Where the writer of launches chooses among alternatives itself, ``options`` are tried in order before the kernel.
    """

    number: int
    kernel: KernelSpec
    arguments: tuple[Argument, ...]
    sizes: dict[str, Expr]
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """An alternative of a launch, or none, chosen where all of the texts ``tests`` are true."""

    tests: tuple[str, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class HostText:
    """The function's source, and what each of its global names has to be bound to.

    The source is built of names, numbers and words of the runtime's own; strings of a program are among the
    ``constants``, by the names that stand for them. ``captured`` has what `Program.captured` has. ``origins`` has what
    extern calls came from, by the numbers of their lines: an error of such a line gets a note of it, by `_note`.
    """

    source: str
    externs: dict[str, str]
    dtypes: dict[str, str]
    sites: tuple[Site, ...]
    constants: Mapping[str, object] = field(default_factory=dict)
    captured: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    origins: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


LaunchWriter: TypeAlias = Callable[[Site], Iterable[str]]
Flush: TypeAlias = Callable[[], Iterable[str]]
ProductWriter: TypeAlias = Callable[[Product, Sequence[Location]], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Sequencing:
    """How launches wait to be started together.

    Attributes:
        flush: writes the start of all launches that wait.
        write_product: writes a product that waits with them, given the places of its result and its operands.
        steps: what stands for the program's steps, with products that wait; None for these themselves.
        arenas: where buffers lie that are not allocated one by one.
        lengths: names that sizes of buffers may depend on which lie in arenas or die later than they could. A call in
            which these take up too much memory is left to the global function `LARGE_FALLBACK` of ``host_function.py``.
        sizes: values of the lengths for which it is decided what dies later; None where it is decided without.
    """

    flush: Flush
    write_product: ProductWriter | None = None
    steps: Sequence[HostStep] | None = None
    arenas: Arenas = field(default_factory=Arenas)
    lengths: Names = frozenset()
    sizes: Mapping[str, int] | None = None
