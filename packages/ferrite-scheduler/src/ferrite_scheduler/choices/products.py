"""Which products of matrices are computed by whom: by what each candidate costs with what it fuses.

    graph, products as contractions -> schedule -> a part for each kernel that has some: the products and what is fused
    part, in each candidate's way   -> schedule -> cost         -> the cheapest one, in the graph

Who offers candidates is said by `providers`. Parts of equal text are asked about once: layers of a model are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ferrite_ir import require_valid
from ferrite_ir.language.graph import Contract, Extern, Graph, Loop, Module, names_read, whole
from ferrite_ir.passes.renaming import Renaming
from ferrite_ir.text.fingerprint import fingerprint
from ferrite_scheduler.model.choices import Choice, Cost
from ferrite_scheduler.model.forms import TiledContraction
from ferrite_scheduler.model.policy import DEFAULT_POLICY, Policy
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import DEFAULT_TARGET, Target
from ferrite_scheduler.pipeline import schedule

from .grouped_calls import with_even_groups
from .oracle import CostOracle
from .providers import OWN, SHIPPED, Emitted, Part, Provider


class ProviderFailed(Exception):
    """A provider raised, or rewrote a graph into one that is not well-formed; the message names it and what it did."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A graph with products computed by whom they are to be, and how each was decided.

    Attributes:
        graph: the graph.
        choices: one for each kernel of products.
        calls: the targets of the library's calls that there are now.
        kernels: specs of kernels that other calls stand for, by their targets.
    """

    graph: Graph
    choices: tuple[Choice, ...] = ()
    calls: tuple[str, ...] = ()
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Way:
    provider: Provider
    candidate: str


_OWN = next(_Way(provider, OWN) for provider in SHIPPED if provider.name == OWN)


def choose_products(
    graph: Graph,
    oracle: CostOracle,
    target: Target = DEFAULT_TARGET,
    policy: Policy = DEFAULT_POLICY,
    providers: Sequence[Provider] = SHIPPED,
) -> Chosen:
    """Returns a graph in which products are computed by those who do it cheapest.

    Args:
        graph: with contractions.
        oracle: says what schedules cost.
        target: the device.
        policy: thresholds; what is no kernel of tiles by these is left as it is.
        providers: whom to ask for candidates, in order.

    Raises:
        ProviderFailed: one of them failed.
    """
    plan = schedule(graph, target, replace(policy, product_parts=1))  # a kernel with all that a product fuses
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel.form, TiledContraction)]
    decided: dict[str, tuple[Choice, _Way]] = {}
    choices: list[Choice] = []
    taken: dict[tuple[str, str], tuple[_Way, set[str]]] = {}
    for kernel in kernels:
        part = part_of(plan.graph, kernel)
        if part is None:
            choices.append(Choice(kernel.stored, (), OWN, "it updates memory in place"))
            continue
        key = fingerprint(part)
        if key not in decided:
            decided[key] = _decide(part, oracle, target, policy, providers)
        choice, way = decided[key]
        choices.append(replace(choice, values=kernel.stored))
        names = {definition.result.name for definition in kernel.body if isinstance(definition, Contract)}
        taken.setdefault((way.provider.name, way.candidate), (way, set()))[1].update(names)
    changed = Emitted(graph)
    for way, names in taken.values():
        emitted = _emitted(way, changed.graph, names)
        changed = Emitted(emitted.graph, {**changed.kernels, **emitted.kernels})
    if changed.graph is graph:
        return Chosen(graph, tuple(choices))
    targets = Counter(definition.target for definition in changed.graph.definitions if isinstance(definition, Extern))
    targets -= Counter(definition.target for definition in graph.definitions if isinstance(definition, Extern))
    calls = tuple(target for target in targets.elements() if target not in changed.kernels)
    return Chosen(changed.graph, tuple(choices), calls, changed.kernels)


def _decide(
    graph: Graph, oracle: CostOracle, target: Target, policy: Policy, providers: Sequence[Provider]
) -> tuple[Choice, _Way]:
    """Returns how a part is computed: by the first way unless another one surely costs less, and so on."""
    products = tuple(d.result.name for d in graph.definitions if isinstance(d, Contract))
    ways = list(_ways(Part(graph, products, target), providers))
    if len(ways) < 2:
        way = ways[0] if ways else _OWN
        return Choice((), (), way.candidate, "nobody else computes it"), way
    costs: list[Cost] = []
    best = 0
    for number, way in enumerate(ways):
        emitted = _emitted(way, graph, products)
        costs.append(oracle.cost(schedule(emitted.graph, target, policy), emitted.kernels))
        if number and costs[number].seconds < policy.library_gain * costs[best].seconds:
            best = number
    named = tuple((way.candidate, cost) for way, cost in zip(ways, costs, strict=True))
    return Choice((), named, ways[best].candidate), ways[best]


def _ways(part: Part, providers: Sequence[Provider]) -> list[_Way]:
    """Returns the candidates of all providers that are applicable to a part.

    Raises:
        ProviderFailed: one of them raised.
    """
    found: list[_Way] = []
    for provider in providers:
        try:
            if provider.applicable(part):
                found += [_Way(provider, candidate) for candidate in provider.candidates(part)]
        except Exception as error:
            raise ProviderFailed(f"the provider {provider.name!r} raised where it was asked for candidates") from error
    return found


def _emitted(way: _Way, graph: Graph, products: Sequence[str] | set[str]) -> Emitted:
    """Returns a graph with products in a candidate's way.

    Raises:
        ProviderFailed: the provider raised, or the graph is not well-formed.
    """
    try:
        emitted = way.provider.emit(graph, products, way.candidate)
        if emitted.graph is not graph:
            require_valid(Module((emitted.graph,)))
    except Exception as error:
        what = (
            f"the provider {way.provider.name!r} failed to compute {', '.join(sorted(products))} as {way.candidate!r}"
        )
        raise ProviderFailed(f"{what}: {error}") from error
    return emitted


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
