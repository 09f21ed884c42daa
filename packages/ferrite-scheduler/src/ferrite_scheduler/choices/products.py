"""Which products of matrices are kernels of ours, and which extern calls: by what each costs with what it fuses.

    graph, products as contractions -> schedule -> a part for each kernel that has some: the products and what is fused
    part, as it is                  -> schedule -> cost
    part, products as extern calls -> schedule -> cost       -> the cheaper one, in the graph

Parts of equal text are asked about once: layers of a model are alike.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import Contract, Extern, Graph, Loop, names_read, whole
from ferrite_ir.passes.renaming import Renaming
from ferrite_ir.text.fingerprint import fingerprint
from ferrite_scheduler.model.choices import Choice, Cost
from ferrite_scheduler.model.forms import TiledContraction
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import DEFAULT_POLICY, DEFAULT_TARGET, Policy, Target
from ferrite_scheduler.pipeline import schedule

from .grouped_calls import with_even_groups
from .library_products import as_extern_calls
from .oracle import CostOracle

OWN, LIBRARY = "own kernel", "library"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A graph with extern calls for the products that are to be some, and how each product was decided.

    ``calls`` has the targets of these calls.
    """

    graph: Graph
    choices: tuple[Choice, ...] = ()
    calls: tuple[str, ...] = ()


def choose_products(
    graph: Graph, oracle: CostOracle, target: Target = DEFAULT_TARGET, policy: Policy = DEFAULT_POLICY
) -> Chosen:
    """Returns a graph whose products that cost less as extern calls are such.

    Args:
        graph: with contractions.
        oracle: says what schedules cost.
        target: the device.
        policy: thresholds; what is no kernel of tiles by these is left as it is.
    """
    plan = schedule(graph, target, replace(policy, product_parts=1))  # a kernel with all that a product fuses
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel.form, TiledContraction)]
    decided: dict[str, Choice] = {}
    choices: list[Choice] = []
    for kernel in kernels:
        part = part_of(plan.graph, kernel)
        if part is None:
            choices.append(Choice(kernel.stored, (), OWN, "it updates memory in place"))
            continue
        key = fingerprint(part)
        if key not in decided:
            decided[key] = _decide(part, oracle, target, policy)
        choices.append(replace(decided[key], values=kernel.stored))
    called = {
        definition.results[0].name
        for kernel, choice in zip(kernels, choices, strict=True)
        if choice.chosen == LIBRARY
        for definition in kernel.body
        if isinstance(definition, Contract)
    }
    if not called:
        return Chosen(graph, tuple(choices))
    changed = as_extern_calls(graph, called)
    targets = Counter(definition.target for definition in changed.definitions if isinstance(definition, Extern))
    targets -= Counter(definition.target for definition in graph.definitions if isinstance(definition, Extern))
    return Chosen(changed, tuple(choices), tuple(targets.elements()))


def _decide(part: Graph, oracle: CostOracle, target: Target, policy: Policy) -> Choice:
    products = [d.result.name for d in part.definitions if isinstance(d, Contract)]
    called = as_extern_calls(part, products)
    if any(isinstance(definition, Contract) for definition in called.definitions):
        return Choice((), (), OWN, "no call computes it")
    ways = ((LIBRARY, called), (OWN, part))
    costs: list[tuple[str, Cost]] = [(name, oracle.cost(schedule(way, target, policy))) for name, way in ways]
    library, own = (cost.seconds for _, cost in costs)
    is_cheaper = own < policy.library_gain * library if math.isfinite(library) else math.isfinite(own)
    return Choice((), tuple(costs), OWN if is_cheaper else LIBRARY)


def part_of(graph: Graph, kernel: Kernel) -> Graph | None:
    """Returns what a kernel computes as a graph of its own, its values numbered; None if it updates memory in place."""
    body = [d for d in graph.definitions if any(r is not None and r.name in kernel.homes for r in d.results)]
    computed = [definition for definition in body if isinstance(definition, (Loop, Contract))]
    if len(computed) < len(body):
        return None
    made = {result.name for definition in computed for result in definition.results}
    read = dict.fromkeys(name for definition in computed for name in names_read(definition) if name not in made)
    names = (*read, *(result.name for definition in computed for result in definition.results))
    numbered = Renaming({name: f"v{number}" for number, name in enumerate(names)})
    inputs = tuple(numbered.value(graph.values[name]) for name in read)
    definitions = tuple(map(numbered.definition, computed))
    outputs = tuple(whole(numbered.value(graph.values[name])) for name in kernel.stored)
    return with_even_groups(Graph("product", inputs, definitions, outputs, device=graph.device, sizes=graph.sizes))
