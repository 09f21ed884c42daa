"""Graphs: ordered definitions of named values.

Views do not exist here. A value has a logical shape and a physical layout (strides); a transposed or reshaped use is
an index expression in a load, and only extern calls and graph outputs see a `View`. Every name is defined once. A
value that is updated in place gets a new name for its new contents and the old name must not be used below (see
`Update` and `Extern.aliases`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from . import sizes
from .attend import Attend
from .combine_functions import AnyCombine
from .contract import Contract, Segments
from .dtypes import DType
from .index import Dim, Index
from .scalar import Scalar, indirects_of
from .sizes import Size
from .text_hooks import printed
from .values import Origin, Origins, TensorType, Value, overlaps, row_major

__all__ = [
    "UPDATE_MODES",
    "Argument",
    "Attend",
    "Call",
    "Computed",
    "Contract",
    "ControlFlow",
    "Definition",
    "Extern",
    "For",
    "Graph",
    "If",
    "Loop",
    "Module",
    "Origin",
    "Origins",
    "Output",
    "Reduction",
    "Scan",
    "Segments",
    "Sort",
    "Tag",
    "TensorType",
    "Update",
    "Value",
    "View",
    "While",
    "bodies_of",
    "domain_of",
    "index_loads",
    "loads_of",
    "names_read",
    "overlaps",
    "row_major",
    "row_type",
    "views_in",
    "whole",
]


@dataclass(frozen=True, slots=True)
class View:
    """A strided tensor over the storage of a value, as extern calls and graph outputs see it.

    ``offset`` counts elements of ``dtype`` from the first element of the value.
    """

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0


def whole(value: Value) -> View:
    """Returns the view that is the whole value as it lies in memory."""
    return View(value.name, value.type.dtype, value.type.shape, value.type.strides, 0)


@dataclass(frozen=True, slots=True)
class Tag:
    """A non-tensor, non-number argument of an extern call.

    ``Tag("dtype", "f32")``, ``Tag("device", "cuda")``, ``Tag("layout", "strided")``,
    ``Tag("memory_format", "channels_last")``: the kinds are those of the program format.
    """

    kind: str
    value: str


Argument: TypeAlias = "View | Tag | bool | int | float | complex | str | tuple[Any, ...] | None"


@dataclass(frozen=True, slots=True)
class Loop:
    """Pointwise definition: each result at each point of ``dims`` is its body.

    All results have the shape of the domain.
    """

    results: tuple[Value, ...]
    dims: tuple[Dim, ...]
    bodies: tuple[Scalar, ...]
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduction: for each point of ``dims``, the operands at all points of ``reduction_dims`` combined.

    There is one result for each component of the state.
    """

    results: tuple[Value, ...]
    combine: str
    dims: tuple[Dim, ...]
    reduction_dims: tuple[Dim, ...]
    bodies: tuple[Scalar, ...]
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive associative scan along the dim ``along`` (one of ``dims``), by a named combine or a user's.

    With ``reverse`` the points are taken from the last one to the first: each result combines its point and all after.
    """

    results: tuple[Value, ...]
    combine: AnyCombine
    dims: tuple[Dim, ...]
    along: Dim
    bodies: tuple[Scalar, ...]
    reverse: bool = False
    origins: Origins = field(default=(), compare=False)

    @property
    def named(self) -> str:
        """Returns the name of the combine, which is one of the table."""
        assert isinstance(self.combine, str), "a user's combine has no name"
        return self.combine

    @property
    def scalars_beside(self) -> tuple[Scalar, ...]:
        """Returns what is evaluated besides the operands: nothing, but by subclasses that say how it is computed."""
        return ()


@dataclass(frozen=True, slots=True)
class Sort:
    """Stable sort along ``along``: results are the sorted values and (i64) the positions they came from.

    With ``top`` only the first that many are kept.
    """

    results: tuple[Value, ...]
    dims: tuple[Dim, ...]
    along: Dim
    body: Scalar
    descending: bool = False
    top: Size | None = None
    origins: Origins = field(default=(), compare=False)


UPDATE_MODES = ("set", "add", "mul", "min", "max")


@dataclass(frozen=True, slots=True)
class Update:
    """In-place store: at each point of ``dims``, ``target[indices]`` is set to, or atomically combined with, the body.

    The result is the new version of ``target``, in its storage; ``target`` must not be named after this definition.
    With ``condition`` (bool) only the points where it holds store. Several points storing to one place with mode
    ``set`` leave any one of their values.
    """

    result: Value
    target: str
    mode: str
    dims: tuple[Dim, ...]
    indices: tuple[Index, ...]
    body: Scalar
    condition: Scalar | None = None
    origins: Origins = field(default=(), compare=False)

    @property
    def results(self) -> tuple[Value, ...]:
        """Returns the one result, as other definitions hold theirs."""
        return (self.result,)

    @property
    def scalars_beside(self) -> tuple[Scalar, ...]:
        """Returns what is evaluated besides the body, as `Scan.scalars_beside` says."""
        return ()


@dataclass(frozen=True, slots=True)
class Extern:
    """An extern call by qualified name (``aten.mm.default``).

    Attributes:
        results: what it returns, flattened, None for a returned thing that nobody may use.
        target: namespace.op.overload, looked up by the runtime.
        args, kwargs: arguments; tensors appear as `View`, nested in tuples where the op takes lists.
        aliases: ``(result name, operand name)`` pairs that share storage; if the operand is also in ``mutates``, the
            result is its new version.
        mutates: names of operands whose contents change.
        effects: True for a call that must happen, in program order with other effects, even if its results are unused.
    """

    results: tuple[Value | None, ...]
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    mutates: tuple[str, ...] = ()
    effects: bool = False
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """Another graph of the module applied to values by name, and to the integers that it takes (`Graph.sizes`).

    A called graph changes none of its inputs. Its results are new tensors, laid out as their types say.
    """

    results: tuple[Value, ...]
    callee: str
    args: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class If:
    """One of two graphs of the module, chosen by a one-element bool value, called as by `Call`."""

    results: tuple[Value, ...]
    condition: str
    then: str
    otherwise: str
    args: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class While:
    """A loop over graphs of the module: while ``condition`` gives true, ``body`` makes the operands that it carries.

    Both take ``args`` and ``sizes``. As many of the first args as there are results, and of the first sizes as there
    are ``binds``, are carried: ``body`` returns them for the next iteration, tensors before integers. The results are
    the last tensors; ``binds`` are the symbols that the last integers bind. ``condition`` returns one bool, or an
    integer that is not 0.

    With ``stacked`` the results have the tensors of every iteration, as rows: their first extent, which the loop binds,
    is the number of iterations. Where there is none the operands are the only row.
    """

    results: tuple[Value, ...]
    condition: str
    body: str
    args: tuple[str, ...]
    sizes: tuple[Size, ...] = ()
    binds: tuple[Size, ...] = ()
    stacked: bool = False
    origins: Origins = field(default=(), compare=False)


def row_type(kind: TensorType) -> TensorType:
    """Returns the type of what lies at a place along the first axis of a tensor."""
    return TensorType(kind.dtype, kind.shape[1:], kind.strides[1:], kind.device)


@dataclass(frozen=True, slots=True)
class For:
    """A loop over a graph of the module of ``count`` iterations: iteration ``i`` is given the rows ``i`` of operands.

    The first ``carried`` of the args are carried: the first outputs of ``body`` are given to the next iteration, and
    the last ones are the first results. Of the next ``sliced`` args each iteration is given a row, what lies at ``i``
    along their first axis, which is ``count`` long; the others are given as they are. The further outputs are the rows
    of the further results. ``count`` may be 0.
    """

    results: tuple[Value, ...]
    body: str
    args: tuple[str, ...]
    count: Size
    carried: int = 0
    sliced: int = 0
    sizes: tuple[Size, ...] = ()
    origins: Origins = field(default=(), compare=False)


Definition: TypeAlias = Loop | Reduction | Scan | Sort | Update | Contract | Attend | Extern | Call | If | While | For
ControlFlow: TypeAlias = Call | If | While | For
Computed: TypeAlias = Loop | Reduction | Scan | Sort | Update | Contract | Attend

Output: TypeAlias = "View | bool | int | float | sizes.Symbolic | None"


@dataclass(frozen=True)
class Graph:
    """Ordered definitions over named values.

    Attributes:
        name: of the graph in its module.
        inputs: values given by the caller, in call order.
        definitions: in an order where every name is defined before it is used.
        outputs: what is returned, in order: views of values, numbers, symbolic sizes or None.
        mutations: ``(input name, value name)``: the value that lies in the input's storage at the end (a chain of
            updates of that input).
        device: device type of all values whose type says nothing else.
        sizes: integers that the caller gives after the inputs, each with its name and the size that it is: a symbol,
            or something computed from symbols.
    """

    name: str
    inputs: tuple[Value, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[tuple[str, str], ...] = ()
    device: str = "cuda"
    sizes: tuple[tuple[str, Size], ...] = ()

    @cached_property
    def values(self) -> dict[str, Value]:
        """Returns every value by name, inputs first."""
        named = {value.name: value for value in self.inputs}
        for definition in self.definitions:
            for result in definition.results:
                if result is not None:
                    named[result.name] = result
        return named

    @cached_property
    def definer(self) -> dict[str, Definition]:
        """Returns the definition of every value that is not an input, by name."""
        return {
            result.name: definition
            for definition in self.definitions
            for result in definition.results
            if result is not None
        }

    def type_of(self, name: str) -> TensorType:
        """Returns the type of a value.

        Raises:
            KeyError: the graph has no such value.
        """
        return self.values[name].type

    @property
    def output_names(self) -> tuple[str, ...]:
        """Returns the names of values that outlive the graph.

        Outputs and final versions of mutated inputs, without repeats.
        """
        names = [output.name for output in self.outputs if isinstance(output, View)]
        return tuple(dict.fromkeys([*names, *(value for _, value in self.mutations)]))

    def __str__(self) -> str:
        return printed("graph", self)


@dataclass(frozen=True)
class Module:
    """Several named graphs; the first one is the entry."""

    graphs: tuple[Graph, ...]

    def graph(self, name: str) -> Graph:
        """Returns the graph with this name.

        Raises:
            KeyError: the module has no such graph.
        """
        for graph in self.graphs:
            if graph.name == name:
                return graph
        raise KeyError(f"no graph @{name}; the module has {', '.join('@' + g.name for g in self.graphs)}")

    def __str__(self) -> str:
        return printed("module", self)


def bodies_of(definition: Definition) -> tuple[Scalar, ...]:
    """Returns the scalar expressions of a definition, in order; none for calls."""
    match definition:
        case Loop() | Reduction() | Scan() | Attend():
            return definition.bodies
        case Sort():
            return (definition.body,)
        case Update():
            return (definition.body,) if definition.condition is None else (definition.body, definition.condition)
        case Contract():
            return definition.bodies
    return ()


def domain_of(definition: Definition) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Returns the dims of a computed definition: those that its results keep, and those reduced over.

    Those of an attention or contraction are all that its expressions know besides. Both empty for calls.
    """
    match definition:
        case Reduction():
            return definition.dims, definition.reduction_dims
        case Contract():
            return definition.dims, (*definition.reduction_dims, *definition.locals)
        case Loop() | Scan() | Sort() | Update():
            return definition.dims, ()
        case Attend():
            return definition.dims, (definition.along, *definition.locals)
    return (), ()


def views_in(argument: Any) -> Iterator[View]:
    """Yields the views in a (nested) argument of an extern call, left to right."""
    stack = [argument]
    while stack:
        item = stack.pop()
        if isinstance(item, View):
            yield item
        elif isinstance(item, tuple):
            stack.extend(reversed(item))


def index_loads(indices: tuple[Index, ...]) -> tuple[Scalar, ...]:
    """Returns the loads inside the indirect parts of indices."""
    return tuple(dict.fromkeys([found for scalar in indirects_of(indices) for found in scalar.loads]))


def loads_of(definition: Definition) -> tuple[Scalar, ...]:
    """Returns the loads of a definition without repeats, those that say where an update stores included.

    Elements of what an attention makes inside are none.
    """
    bodies = bodies_of(definition)
    beside = definition.scalars_beside if isinstance(definition, (Scan, Update)) else ()
    if len(bodies) == 1 and not beside and not isinstance(definition, Update):
        return bodies[0].loads
    loads = [load for scalar in (*bodies, *beside) for load in scalar.loads]
    if isinstance(definition, Update):
        loads += index_loads(definition.indices)
    if isinstance(definition, Attend):
        loads = [load for load in loads if load.source not in definition.names]
    return tuple(dict.fromkeys(loads))


def names_read(definition: Definition) -> tuple[str, ...]:
    """Returns the names of the values a definition reads, without repeats, in first-use order.

    The target of an update counts as read (its other elements stay), and so do all operands of an extern call.
    """
    match definition:
        case Extern():
            arguments = (*definition.args, *(value for _, value in definition.kwargs))
            return tuple(dict.fromkeys([view.name for view in views_in(arguments)] + list(definition.mutates)))
        case Call() | While() | For():
            return tuple(dict.fromkeys(definition.args))
        case If():
            return tuple(dict.fromkeys((definition.condition, *definition.args)))
    names = [load.source for load in loads_of(definition)]
    if isinstance(definition, Update):
        names.append(definition.target)
    return tuple(dict.fromkeys(names))
