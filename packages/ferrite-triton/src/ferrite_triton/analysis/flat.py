"""A kernel with its bodies rewritten over the flat positions of its axes, and its parameters named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ferrite_ir.language import index as ix
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import Attend, Computed, Contract, Loop, Reduction, Scan, Sort, Update, bodies_of
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.scalar import Scalar, postorder, substitute_dims
from ferrite_ir.language.sizes import Size, hint
from ferrite_ir.passes.renaming import Renaming
from ferrite_ir.passes.simplify import simplifier
from ferrite_scheduler.model.schedule import Kernel, Param
from ferrite_triton.analysis.attention_space import over_flat_positions
from ferrite_triton.analysis.rows import varies_along_reduction
from ferrite_triton.analysis.space import Space
from ferrite_triton.errors import ScheduleMismatch


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of the kernel function: its name in the text, and what it is."""

    text: str
    param: Param

    @property
    def dtype(self) -> DType:
        """Returns the element type."""
        return self.param.type.dtype

    @property
    def strides(self) -> tuple[Size, ...]:
        """Returns the strides in elements."""
        return self.param.type.strides

    @property
    def elements(self) -> int:
        """Returns the number of elements from the first to the last addressed one, by the hints of its sizes."""
        return hint(self.param.type.storage_size)


@dataclass(frozen=True, slots=True)
class FlatKernel:
    """A kernel over flat positions.

    Attributes:
        kernel: as scheduled.
        space: its axes.
        definitions: its body, with scalars and indices over flat positions.
        producers: ``(definition, number of the result)`` of every value defined in the body.
        homes: where each of these values may be read.
        params: by the names that loads and stores use.
    """

    kernel: Kernel
    space: Space
    definitions: tuple[Computed, ...]
    producers: dict[str, tuple[Computed, int]]
    homes: dict[str, tuple[Index, ...]]
    params: dict[str, KernelParam]

    @property
    def rows(self) -> int:
        """Returns how many points of an unrolled axis there are definitions for, one point after the other."""
        return 1 if self.kernel.unrolled is None else int(self.kernel.unrolled.size)

    def is_reduction_level(self, definition: Computed) -> bool:
        """Returns whether the definition is evaluated at every point of the reduction axis."""
        if isinstance(definition, (Reduction, Contract, Attend)):
            return True
        reduction = self.kernel.reduction
        return reduction is not None and any(dim in reduction.dims for dim in definition.dims)

    def producer(self, load: Scalar) -> tuple[Computed, int] | None:
        """Returns the definition that a load reads from a register, or None if it reads memory.

        Raises:
            ScheduleMismatch: the load is at another point than the one where the value is computed.
        """
        found = self.producers.get(load.source)
        if found is None:
            return None
        if load.indices != self.homes[load.source]:
            where = ", ".join(map(str, load.indices))
            home = ", ".join(map(str, self.homes[load.source]))
            raise ScheduleMismatch(
                f"kernel {self.kernel.name} reads {load.source}[{where}], which lies in registers only at [{home}]; "
                "split the kernel there"
            )
        return found

    def param_of(self, name: str) -> KernelParam:
        """Returns the parameter through which a value is read or written.

        Raises:
            ScheduleMismatch: the kernel has none.
        """
        found = self.params.get(name)
        if found is None:
            raise ScheduleMismatch(
                f"kernel {self.kernel.name} uses {name}, which is neither computed in it nor one of its params"
            )
        return found

    def offset(self, name: str, indices: tuple[Index, ...]) -> Index:
        """Returns the element offset of a point of a value in memory."""
        return ix.linearize(indices, self.param_of(name).strides)


_PREFIXES = {"read": "in", "write": "out", "readwrite": "inout", "atomic": "inout"}


def name_params(kernel: Kernel) -> dict[str, KernelParam]:
    """Returns the parameters by value name, called ``in0``, ``out0``, ``inout0``, … in order."""
    counts: dict[str, int] = {}
    named: dict[str, KernelParam] = {}
    for param in kernel.params:
        prefix = _PREFIXES[param.access]
        number = counts.get(prefix, 0)
        counts[prefix] = number + 1
        named[param.name] = KernelParam(f"{prefix}{number}", param)
    for definition in kernel.body:
        # The old contents of an updated value lie where the new ones go.
        if isinstance(definition, Update) and definition.target not in named and definition.result.name in named:
            named[definition.target] = named[definition.result.name]
    return named


def unrolled(kernel: Kernel) -> Kernel:
    """Returns a kernel with each definition once for each point of its unrolled axis; itself if it has none.

    What belongs to a further point has a name of its own, under which its home is known.
    """
    if kernel.unrolled is None:
        return kernel
    (dim,) = kernel.unrolled.dims
    simplify = simplifier("rounding")
    body: list[Computed] = []
    homes: dict[str, tuple[Index, ...]] = {}
    stored: list[str] = []
    for number in range(int(dim.size)):
        mapping: dict[Dim, Index] = {dim: ix.constant(number)}
        renaming = Renaming({name: name_at(name, number) for name in kernel.homes})
        memo: dict[Scalar, Scalar] = {}
        for definition in kernel.body:
            assert isinstance(definition, Loop), "the scheduler unrolls pointwise kernels"
            dims = tuple(each for each in definition.dims if each != dim)
            bodies = tuple(simplify(substitute_dims(root, mapping, memo)) for root in definition.bodies)
            body.append(renaming.definition(replace(definition, dims=dims, bodies=bodies)))
        homes |= {
            name_at(name, number): tuple(substitute(index, mapping) for index in home)
            for name, home in kernel.homes.items()
        }
        stored += (name_at(name, number) for name in kernel.stored)
    return replace(kernel, body=tuple(body), homes=homes, stored=tuple(stored))


def name_at(name: str, number: int) -> str:
    """Returns what a value is called at a point of an unrolled axis."""
    return f"{name}[{number}]" if number else name


def flatten(kernel: Kernel, space: Space) -> FlatKernel:
    """Returns the kernel with every body and index over the flat positions of ``space``."""
    params = name_params(kernel)
    if kernel.unrolled is not None:  # the results of all its points lie in one tensor
        numbers = range(int(kernel.unrolled.size))
        params |= {name_at(name, number): params[name] for name in kernel.stored for number in numbers}
    kernel = unrolled(kernel)
    memo: dict[Scalar, Scalar] = {}

    def scalar(root: Scalar) -> Scalar:
        return substitute_dims(root, space.mapping, memo)

    def index(value: Index) -> Index:
        return substitute(value, space.mapping)

    definitions: list[Computed] = []
    for definition in kernel.body:
        match definition:
            case Loop() | Reduction() | Scan():
                definitions.append(replace(definition, bodies=tuple(map(scalar, definition.bodies))))
            case Update():
                condition = None if definition.condition is None else scalar(definition.condition)
                indices = tuple(map(index, definition.indices))
                definitions.append(
                    replace(definition, indices=indices, body=scalar(definition.body), condition=condition)
                )
            case Sort():
                definitions.append(replace(definition, body=scalar(definition.body)))
            case Attend():
                definitions.append(over_flat_positions(definition, space, memo))
            case Contract():
                definitions.append(definition.with_bodies(tuple(map(scalar, definition.bodies))))
    producers = {
        result.name: (definition, position)
        for definition in definitions
        for position, result in enumerate(definition.results)
    }
    homes = {name: tuple(map(index, point)) for name, point in kernel.homes.items()}
    for definition in definitions:
        if isinstance(definition, Attend):  # products lie in registers, at every point where weights are made of them
            producers |= {product.name: (definition, -1) for product in definition.products}
            homes |= {product.name: () for product in definition.products}
    return FlatKernel(kernel, space, tuple(definitions), producers, homes, params)


def reads_along_reduction(flat: FlatKernel, load: Scalar) -> bool:
    """Returns whether a load from memory has an address of its own at each position along the reduction axis.

    That it has an index there does not say so: what an expanded tensor repeats lies at one address, with stride 0.
    """
    return varies_along_reduction((flat.offset(load.source, load.indices),))


def memory_loads(flat: FlatKernel, roots: tuple[Scalar, ...]) -> dict[Scalar, None]:
    """Returns the loads from memory that computing the roots takes, in first-use order.

    Values that stay in registers count by what computing them loads.
    """
    nodes = computed_nodes(flat, roots)
    return dict.fromkeys(node for node in nodes if node.op == "load" and node.source not in flat.producers)


def computed_nodes(flat: FlatKernel, roots: tuple[Scalar, ...]) -> Iterator[Scalar]:
    """Yields what is computed and loaded for the roots, and for the values in registers that they are made of."""
    done: set[Scalar] = set()
    pending = list(reversed(roots))
    while pending:
        for node in postorder((pending.pop(),), done):
            yield node
            produced = flat.producers.get(node.source) if node.op == "load" else None
            if produced is None:
                continue
            if isinstance(produced[0], Loop):
                pending.append(produced[0].bodies[produced[1]])
            elif isinstance(produced[0], (Scan, Sort)):
                pending.extend(bodies_of(produced[0]))
