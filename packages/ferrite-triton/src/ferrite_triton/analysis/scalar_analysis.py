"""What is known of the scalar expressions of a kernel before any is written: what they read, ask for, and round."""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import BF16, F16, F32
from ferrite_ir.language.graph import Loop, bodies_of
from ferrite_ir.language.index import Index, floordiv
from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import hint, is_provably_at_most, is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.model.forms import Contraction, TiledContraction
from ferrite_triton.analysis.flat import FlatKernel, memory_loads, reads_along_reduction
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import behind, is_aligned_row, varies_along_reduction
from ferrite_triton.tile.operations import is_negative_zero


class ScalarAnalysis:
    """Answers questions about the expressions of one kernel."""

    def __init__(self, flat: FlatKernel) -> None:
        self._flat = flat
        self._space = flat.space
        self._inside: dict[Scalar, bool] = {}
        self._demanding: set[Scalar] | None = None
        self._whole: set[Scalar] | None = None

    def reads_memory(self, node: Scalar) -> bool:
        """Returns whether a guard around a value matters."""
        return any(load.source not in self._flat.producers and not self.is_always_inside(load) for load in node.loads)

    def requires(self, root: Scalar) -> bool:
        """Returns whether a value is made with an operation that asks something of its operands."""
        if self._demanding is None:
            self._demanding = set()
            for node in postorder(body for definition in self._flat.definitions for body in bodies_of(definition)):
                if node.op in REQUIREMENTS or any(part in self._demanding for part in node.below):
                    self._demanding.add(node)
        return root in self._demanding

    def is_made_of_integers(self, root: Scalar) -> bool:
        """Returns whether integers were converted to floats on the way to a value."""
        if self._whole is None:
            self._whole = set()
            for node in postorder(body for definition in self._flat.definitions for body in bodies_of(definition)):
                if self._is_whole(node, self._whole):
                    self._whole.add(node)
        return root in self._whole

    def _is_whole(self, node: Scalar, known: set[Scalar]) -> bool:
        if not node.dtype.is_float:
            return False
        if node.op == "index" or (node.op == "cast" and node.args[0].dtype.is_integer):
            return True
        produced = self._flat.producer(node) if node.op == "load" else None
        if produced is not None and isinstance(produced[0], Loop):
            return produced[0].bodies[produced[1]] in known
        return any(part in known for part in node.below)

    def is_always_inside(self, load: Scalar) -> bool:
        """Returns whether a load stays inside its tensor at every point, and is cheap where nobody needs it.

        Cheap is a tensor that the kernel reads many times over (a norm's weights at the windows of a pooling): it is
        in the cache, and one load for all guards replaces one for each.
        """
        found = self._inside.get(load)
        if found is None:
            param = self._flat.param_of(load.source)
            offset = self._flat.offset(load.source, load.indices)
            points = math.prod(hint(axis.size) for axis in self._space.axes)
            found = self._inside[load] = (
                not offset.is_indirect
                and param.elements * LOWERING.repeated_share <= points
                and offset.lo is not None
                and offset.hi is not None
                and is_provably_at_most(0, offset.lo)
                and is_provably_at_most(offset.hi + 1, param.param.type.storage_size)
            )
        return found

    def unrounded(self, node: Scalar) -> Scalar | None:
        """Returns ``e`` for ``cast.f32(cast.bf16(e))``, else None: values of half types have excess precision.

        The inner cast may be the body of a value that lies in a register alone; one that the kernel stores is seen as
        it is stored. Rounding to 8 bits is never left out: who writes it wants to see its effect.
        """
        if node.op != "cast" or node.dtype is not F32:
            return None
        inner = self._through_registers(node.args[0])
        if inner.op == "cast" and inner.dtype in (F16, BF16) and inner.args[0].dtype is F32:
            return inner.args[0]  # type: ignore[no-any-return]
        return None

    def _through_registers(self, node: Scalar) -> Scalar:
        while node.op == "load" and node.source not in self._flat.kernel.stored:
            produced = self._flat.producer(node)
            if produced is None or not isinstance(produced[0], Loop):
                break
            node = produced[0].bodies[produced[1]]
        return node

    def guarded_load(self, node: Scalar) -> Scalar | None:
        """Returns the load of a ``masked`` that is one masked load, else None.

        These are ``masked(c, x[i], constant)`` and ``masked(c, cast(x[i]), 0)``.
        """
        _, value, other = node.args
        if other.op != "const" or is_negative_zero(other.value) or node.dtype.bits == 8:
            return None
        load = value.args[0] if value.op == "cast" and other.value == 0 else value
        if load.op != "load" or load.dtype.bits == 8 or self._flat.producer(load) is not None:
            return None
        if not self._flat.param_of(load.source).param.host_scalar and self.is_always_inside(load):
            return None
        return None if self._flat.param_of(load.source).param.host_scalar else load

    def is_wide_scalar(self, node: Scalar) -> bool:
        """Returns whether the node reads a half-precision number that is passed by value, which travels as f32."""
        if node.op != "load" or node.source in self._flat.producers:
            return False
        param = self._flat.param_of(node.source)
        return param.param.host_scalar and node.dtype.is_narrow_float

    def reads_narrow(self, root: Scalar) -> bool:
        """Returns whether all floats that a value is computed from are of narrow types, and there are some."""
        pending, found = [root], False
        while pending:
            for load in pending.pop().loads:
                if not load.dtype.is_float:
                    continue
                produced = self._flat.producer(load)
                if load.dtype.is_narrow_float:
                    found = True
                elif produced is not None and isinstance(produced[0], Loop):
                    pending.append(produced[0].bodies[produced[1]])
                else:
                    return False
        return found

    def quarters(self, node: Scalar) -> Index | None:
        """Returns what is added to quarters of the fastest axis in a ``rand`` of neighbours, or None elsewhere."""
        seed, offset = node.args
        axis = self._space.axis(self._space.order[-1]) if self._space.order else None
        if (
            axis is None
            or not is_provably_at_most(LOWERING.shortest_draw, axis.size)
            or seed.dims
            or offset.op != "index"
        ):
            return None
        rest = behind(offset.args[0], axis.name)
        return None if rest is None or not is_aligned_row(offset.args[0], 4, axis.name) else floordiv(rest, 4)


def reads_one_along_the_reduction_axis(flat: FlatKernel) -> bool:
    """Returns whether a kernel reads a single tensor along the reduction axis and writes none."""
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    read = {load.source for load in memory_loads(flat, roots) if reads_along_reduction(flat, load)}
    return len(read) == 1 and not any(varies_along_reduction(flat.homes[name]) for name in flat.kernel.stored)


def bytes_beside(flat: FlatKernel) -> dict[Scalar, int]:
    """Returns the loads of bytes along rows beside wider ones, and how many elements of the widest are one access.

    A thread that reads 16 bytes at once has 16 elements of all tensors, and accesses to wide ones, which take several,
    are not next to those of its neighbours: a multiprocessor needs that many turns for each.
    """
    form = flat.kernel.form
    on_tensor_cores = form.tensor_cores if isinstance(form, Contraction) else isinstance(form, TiledContraction)
    if flat.space.order[-1:] != ("r",) or flat.space.misalignment is not None or on_tensor_cores:
        return {}
    if not is_static(flat.space.reduction_size) or flat.space.reduction_size < VECTOR_BYTES:
        return {}  # what is said of neighbours would not be true of rows that are shorter
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    along = [load for load in memory_loads(flat, roots) if behind(flat.offset(load.source, load.indices)) is not None]
    widths = {load: flat.param_of(load.source).dtype.bytes for load in along}
    widest = max(widths.values(), default=1)
    return {load: VECTOR_BYTES // widest for load, width in widths.items() if width == 1 < widest}
