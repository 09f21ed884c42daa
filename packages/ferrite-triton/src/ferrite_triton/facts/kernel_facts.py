"""Numbers about a kernel that config policies and reports use."""

from __future__ import annotations

from math import prod

from ferrite_ir.language.graph import Contract, Reduction, Scan, Update, bodies_of
from ferrite_ir.language.ops import OPS, RANDOM
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import hint
from ferrite_scheduler.model.annotations import SortedScatter
from ferrite_scheduler.model.contractions import part_products
from ferrite_scheduler.model.forms import (
    Attention,
    Contraction,
    GridReduction,
    LookBackScan,
    RegisterNorm,
    RowColumnReduction,
    TiledContraction,
)
from ferrite_scheduler.model.scan_states import instructions_of
from ferrite_triton.analysis.accesses import (
    Access,
    begins_at_even_elements,
    contiguous_axis,
    is_noncoalesced,
    is_transposed,
    percent_apart,
    shortest_run,
    touched_elements,
    window_loads,
)
from ferrite_triton.analysis.attention_space import attend_of, inner_names
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.lane_groups import rows_together
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import REDUCTION_AXES, Space
from ferrite_triton.analysis.update_targets import needs_atomics
from ferrite_triton.facts.liveness import live_tiles
from ferrite_triton.facts.records import (
    AttentionFacts,
    CommonFacts,
    ContractionFacts,
    FormFacts,
    KernelFacts,
    PointwiseFacts,
    ReductionFacts,
    RegisterNormFacts,
    RowColumnFacts,
    SplitFacts,
    TiledContractionFacts,
)
from ferrite_triton.tile.language import Call
from ferrite_triton.tile.statements import For, TileProgram, expressions_of, has_assertions


def collect_facts(
    flat: FlatKernel, accesses: tuple[Access, ...], program: TileProgram, registers: int | None = None, threads: int = 0
) -> KernelFacts:
    """Returns the facts of a kernel that a tile program carries out, for the sizes that its spec expects.

    Args:
        flat: the kernel.
        accesses: its accesses of memory.
        program: what its programs do.
        registers: most that a thread may have, if its text is written for so many.
        threads: of a program, if its text relies on their number.
    """
    common = common_facts(flat, accesses, program, registers)
    if flat.space.reduction is None:
        return KernelFacts(common, pointwise_facts(flat, accesses))
    return KernelFacts(common, reduction_facts(flat, program), form_facts(flat, threads))


def common_facts(
    flat: FlatKernel, accesses: tuple[Access, ...], program: TileProgram, registers: int | None
) -> CommonFacts:
    """Returns the facts that kernels of all forms have."""
    beside = (each for d in flat.definitions if isinstance(d, (Scan, Update)) for each in d.scalars_beside)
    nodes = list(postorder((*(body for d in flat.definitions for body in bodies_of(d)), *beside)))
    operations = [node for node in nodes if node.op in OPS]
    points = prod(hint(axis.size) for axis in flat.space.axes)
    draws = LOWERING.quartet_share if draws_quartets(program) else 1.0
    costs = {node: OPS[node.op].cost * (draws if node.op in RANDOM else 1.0) for node in operations}
    # A point is combined twice: with those of its thread, and with what comes before the thread.
    combining = 2 * sum(instructions_of(d) for d in flat.definitions if isinstance(d, Scan))
    tensors = [access for access in accesses if not access.param.param.host_scalar]
    contiguous = contiguous_axis(flat, accesses)
    return CommonFacts(
        loads=len({access.param.text for access in tensors if not access.writes}),
        stores=len({access.param.text for access in tensors if access.writes}),
        reductions=sum(isinstance(definition, Reduction) for definition in flat.definitions),
        ops=len(operations),
        flops=int(sum(cost * points_of(flat.space, node) for node, cost in costs.items())) + combining * points,
        bytes=_expected_traffic(flat, tensors),
        element_bytes=max((access.param.dtype.bytes for access in tensors), default=1),
        contiguous_axis=contiguous,
        transposed=is_transposed(flat, accesses),
        numel=points // max(1, hint(flat.space.reduction_size)),
        atomics=any(isinstance(d, Update) and needs_atomics(flat, d) for d in flat.definitions),
        random=any(node.op in RANDOM for node in operations),
        asserts=has_assertions(program.body) or None,
        neighbours=shortest_run(flat, accesses),
        noncoalesced=is_noncoalesced(flat, accesses) or None,
        vectors=(count_columns(accesses, contiguous) if flat.space.reduction is None else count_vectors(accesses))
        or None,
        registers=registers,
    )


def _expected_traffic(flat: FlatKernel, tensors: list[Access]) -> int:
    """Returns the bytes of a launch, where a kernel is launched for no shorter reduction axis than some."""
    moved, reduction, least = traffic(flat, tensors), flat.space.reduction, flat.space.least
    expected = 0 if reduction is None else hint(reduction.size)
    return moved * least // max(1, expected) if reduction is not None and least > expected else moved


def pointwise_facts(flat: FlatKernel, accesses: tuple[Access, ...]) -> PointwiseFacts:
    """Returns the facts of a kernel without a reduction axis."""
    return PointwiseFacts(
        percent_apart=percent_apart(flat, accesses) or None,
        sorted=any(isinstance(definition, SortedScatter) for definition in flat.definitions) or None,
        unrolled=flat.rows if flat.rows > 1 else None,
        window=loads if (loads := window_loads(accesses)) > 1 else None,
        parts=flat.space.parts if flat.space.parts > 1 else None,
    )


def reduction_facts(flat: FlatKernel, program: TileProgram) -> ReductionFacts:
    """Returns the facts of a kernel with a reduction axis."""
    space, rows = flat.space, rows_together(flat)
    return ReductionFacts(
        reduction_size=hint(space.reduction_size),
        live_values=live_tiles(space, program),
        passes=count_loops(program) if space.loops else None,
        rows_together=rows if rows > 1 else None,
        row_per_thread=space.row_per_thread or None,
    )


def form_facts(flat: FlatKernel, threads: int) -> FormFacts | None:
    """Returns the facts that kernels of one form alone have, None for forms without such."""
    space = flat.space
    tiles = space.register_tiles if space.register_tiles > 1 else None
    match flat.kernel.form:
        case RowColumnReduction():
            return RowColumnFacts(chunk=hint(space.chunk_length))
        case Contraction(tensor_cores=True):
            return ContractionFacts(product=count_products(flat))
        case Contraction():
            return ContractionFacts(multiplied_rows=next(hint(axis.size) for axis in space.axes if axis.name == "y"))
        case TiledContraction(row_groups=row_groups):
            left, right = factor_bytes(flat)
            by_element = element_factors(flat)
            return TiledContractionFacts(
                product=count_products(flat),
                left_bytes=left,
                right_bytes=right,
                factor_bytes=widest_factor(flat),
                partial_sums=has_partial_sums(flat),
                part_products=count_parts(flat),
                row_groups=row_groups or None,
                sum_groups=count_sum_groups(flat),
                left_elements=by_element[0] or None,
                right_elements=by_element[1] or None,
            )
        case Attention():
            return attention_facts(flat)
        case RegisterNorm():
            return RegisterNormFacts(splits=space.splits, register_tiles=tiles, threads=threads)
        case GridReduction() | LookBackScan():
            return SplitFacts(splits=space.splits, register_tiles=tiles)
    return None


def attention_facts(flat: FlatKernel) -> AttentionFacts:
    """Returns the facts about the products and sums of attention."""
    attend = attend_of(flat.kernel)
    factors = [*attend.factors, *(product.left for product in attend.products)]
    names = inner_names(attend)
    axes = [flat.space.axis(names[product.depth]) for product in attend.products]
    return AttentionFacts(
        sums=len(attend.weights),
        products=len(attend.products),
        depth=sum(axis.block or 0 for axis in axes if axis is not None),
        factors=0 if "x" in names.values() else len(attend.factors),
        factor_bytes=max(factor.dtype.bytes for factor in factors),
        softmax=attend.is_softmax,
    )


def count_products(flat: FlatKernel) -> int:
    """Returns how many products of matrices a kernel computes."""
    return sum(isinstance(definition, Contract) for definition in flat.definitions)


def widest_factor(flat: FlatKernel) -> int:
    """Returns the bytes of an element of what a kernel multiplies."""
    return max(definition.left.dtype.bytes for definition in flat.definitions if isinstance(definition, Contract))


def has_partial_sums(flat: FlatKernel) -> bool:
    """Returns whether sums of tensor cores are added to others in f32, as those of 8-bit floats that are not fast."""
    products = [definition for definition in flat.definitions if isinstance(definition, Contract)]
    return any(
        (product.left.dtype.bytes == 1 and not product.fast) or part_products(product) > 1 for product in products
    )


def count_parts(flat: FlatKernel) -> int | None:
    """Returns how many products of parts are added up for one of whole factors, None where these are multiplied."""
    most = max(part_products(definition) for definition in flat.definitions if isinstance(definition, Contract))
    return most if most > 1 else None


def count_sum_groups(flat: FlatKernel) -> int | None:
    """Returns in how many groups what is summed over is, of which a program has one; None where it is in none."""
    found = (d for d in flat.definitions if isinstance(d, Contract) and d.segments is not None)
    return next((int(d.segments.group.size) for d in found if d.segments and not d.has_grouped_rows), None)


def blocks_of_factors(flat: FlatKernel) -> tuple[list[Scalar], list[Scalar]]:
    """Returns the loads of blocks of either side's factors, those of all products."""
    contractions = [definition for definition in flat.definitions if isinstance(definition, Contract)]

    def blocks(factors: tuple[Scalar, ...]) -> list[Scalar]:
        return [load for load in memory_loads(flat, factors) if len(load.dims) > 1]

    return blocks(tuple(d.left for d in contractions)), blocks(tuple(d.right for d in contractions))


def factor_bytes(flat: FlatKernel) -> tuple[int, int]:
    """Returns the bytes that a point of a tile of either side's factors is loaded with, those of all products."""
    left, right = blocks_of_factors(flat)
    return sum(load.dtype.bytes for load in left), sum(load.dtype.bytes for load in right)


def element_factors(flat: FlatKernel) -> tuple[int, int]:
    """Returns how many tensors among either side's factors a thread loads element by element: they begin anywhere."""

    def by_element(loads: list[Scalar]) -> int:
        return sum(not begins_at_even_elements(flat.offset(load.source, load.indices)) for load in loads)

    left, right = blocks_of_factors(flat)
    return by_element(left), by_element(right)


def points_of(space: Space, node: Scalar) -> int:
    """Returns at how many points an expression has values of its own: what varies along rows alone is computed once."""
    along = {dim.name for dim in node.dims}
    return prod(hint(axis.size) for axis in space.axes if axis.name in along)


def count_vectors(accesses: tuple[Access, ...]) -> int:
    """Returns how many vectors each row of a matrix is reduced with; 0 where what is stored are no reductions."""
    along = [access for access in accesses if "r" in access.axes]
    if any(access.writes for access in along) or all(access.axes <= REDUCTION_AXES for access in along):
        return 0
    return len({access.param.text for access in along if access.axes <= REDUCTION_AXES})


def count_columns(accesses: tuple[Access, ...], contiguous: str | None) -> int:
    """Returns how many vectors the rows of a matrix are combined with; 0 where all that is read are vectors."""
    read = [access for access in accesses if not access.writes]
    if contiguous is None or all(len(access.axes) <= 1 for access in accesses):
        return 0
    return len({access.param.text for access in read if access.axes == {contiguous}})


def traffic(flat: FlatKernel, accesses: list[Access]) -> int:
    """Returns the bytes that one launch must move: for each parameter what its reads and its writes touch.

    Those of several places, such as the halves of rows, add up until they are all that there is.
    """
    touched: dict[tuple[str, bool], int] = {}
    for access in accesses:
        key = access.param.text, access.writes
        elements = touched.get(key, 0) + touched_elements(flat, access)
        touched[key] = min(elements, max(access.param.elements, 0))
    widths = {access.param.text: access.param.dtype.bytes for access in accesses}
    return sum(elements * widths[param] for (param, _), elements in touched.items())


def draws_quartets(program: TileProgram) -> bool:
    """Returns whether random numbers of a program come four from a draw."""
    return any(isinstance(each, Call) and each.function == "rand4" for each in expressions_of(program.body))


def count_loops(program: TileProgram) -> int:
    """Returns how many loops a program runs through: how often it goes along the reduction axis."""
    return sum(isinstance(statement, For) for statement in program.body)
