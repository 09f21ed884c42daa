"""The rewrites before fusion, in order: a tuple that prints, as the passes of the language do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ferrite_ir.language.graph import Graph
from ferrite_ir.passes import Dce
from ferrite_scheduler.model.changes import Change, changes_between
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target
from ferrite_scheduler.model.tiled_contractions import keep_contractions

from .accumulated_products import accumulate_products
from .column_scales import scale_sums
from .hoisted_terms import separate_terms
from .in_place_products import add_in_place
from .intermediate_layouts import lay_out_intermediates
from .online_softmax import join_softmax
from .prologues import recompute_statistics
from .reductions.contiguous_inner import split_contiguous_inner
from .reductions.reduction_order import order_by_memory
from .row_results import separate_row_results
from .segmented_reductions import reduce_segments
from .sorted_scatters import sort_scatters
from .split_attention import split_attention
from .split_factors import split_factors
from .split_precision import cut_rows
from .split_products import split_products
from .stored_slices import store_in_slices
from .update_operands import separate_updates


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One step before fusion.

    Attributes:
        name: of the module that has it.
        reason: why it changes what it changes.
        apply: returns the graph that computes the same, the same object where nothing changes.
    """

    name: str
    reason: str
    apply: Callable[[Graph, Target, Policy], Graph] = field(repr=False)

    def __str__(self) -> str:
        return self.name


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        "accumulated_products",
        "products added to one result as they are made lower the peak of memory",
        lambda graph, _, policy: accumulate_products(graph, policy),
    ),
    Rewrite(
        "in_place_products",
        "the library copies what it adds a product to, unless the sum may take its place",
        lambda graph, _, policy: add_in_place(graph, policy),
    ),
    Rewrite(
        "stored_slices",
        "the library writes to its slice of a concatenation, and nothing is copied there",
        lambda graph, _, policy: store_in_slices(graph, policy),
    ),
    Rewrite(
        "contractions",
        "products of other sizes or types have no kernels of their own: they are reductions",
        lambda graph, _, policy: keep_contractions(graph, policy),
    ),
    Rewrite(
        "column_scales",
        "a factor of a whole column is applied to its sum once",
        lambda graph, _, policy: scale_sums(graph, policy),
    ),
    Rewrite(
        "split_precision",
        "tensor cores multiply float32 in three parts without rounding",
        lambda graph, _, policy: cut_rows(graph, policy),
    ),
    Rewrite(
        "split_factors",
        "tensor cores multiply float32 in parts of TF32, faster than other units multiply it whole",
        lambda graph, _, policy: split_factors(graph, policy),
    ),
    Rewrite("dead_code", "nobody reads it", lambda graph, _, __: Dce().run(graph)),
    Rewrite(
        "prologues",
        "recomputing a statistic of a few rows costs less than a kernel before the product",
        recompute_statistics,
    ),
    Rewrite(
        "split_products",
        "a program for each tile of the product would leave the device idle",
        split_products,
    ),
    Rewrite(
        "update_operands",
        "an update that reads what it overwrites, at other points, needs its operands first",
        lambda graph, _, __: separate_updates(graph),
    ),
    Rewrite(
        "segmented_reductions",
        "rows that are combined by index are combined in one order, without atomic updates",
        reduce_segments,
    ),
    Rewrite(
        "sorted_scatters",
        "many rows for few destinations meet in registers once they are sorted",
        lambda graph, _, policy: sort_scatters(graph, policy),
    ),
    Rewrite(
        "online_softmax",
        "a maximum and a sum of exponentials relative to it are one reduction, of one pass",
        lambda graph, _, policy: join_softmax(graph, policy),
    ),
    Rewrite(
        "row_results",
        "what is computed of the result of each row is computed where the rows are reduced",
        lambda graph, _, policy: separate_row_results(graph, policy),
    ),
    Rewrite(
        "reduction_order",
        "parts of what lies together in memory read whole lines",
        lambda graph, _, policy: order_by_memory(graph, policy),
    ),
    Rewrite(
        "contiguous_inner",
        "a short contiguous inner axis is reduced by neighbouring threads first",
        lambda graph, _, policy: split_contiguous_inner(graph, policy),
    ),
    Rewrite(
        "intermediate_layouts",
        "what only reductions read lies as what it is computed from",
        lambda graph, _, __: lay_out_intermediates(graph),
    ),
    Rewrite(
        "hoisted_terms",
        "what depends on few of the dims is computed once",
        lambda graph, _, policy: separate_terms(graph, policy),
    ),
    Rewrite(
        "split_attention",
        "keys are read once for all heads that share them, by as many programs as the device has room for",
        split_attention,
    ),
)
"""What happens to a graph before fusion. Reductions get their stages later, as fusion has a say in it
(`split_reductions.prepare_reductions`)."""


def rewrite(graph: Graph, target: Target, policy: Policy) -> tuple[Graph, tuple[Change, ...]]:
    """Returns the graph after all rewrites, and what they changed."""
    changes: list[Change] = []
    for step in REWRITES:
        rewritten = step.apply(graph, target, policy)
        changes += changes_between(step.name, graph, rewritten, step.reason)
        graph = rewritten
    return graph, tuple(changes)
