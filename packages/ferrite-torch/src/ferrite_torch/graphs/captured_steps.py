"""Lowering of higher-order ops that have none of their own.

Each becomes an extern call of a place in the captured graph, or the launch of a user's Triton kernel. A user's kernel
writes to its arguments. In a functional graph it does so "as if on copies": what it writes is copied first, unless
nobody reads it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language.graph import overlaps
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.calls.higher_order import (
    USER_KERNELS,
    HigherOrderCall,
    call_of_node,
    is_returned,
    leaves_of,
    nested_like,
    operands_of,
)
from ferrite_torch.calls.user_constants import NotWritten
from ferrite_torch.diagnostics.origins import origins_of, unsupported
from ferrite_torch.graphs.extern_calls import laid_out
from ferrite_torch.graphs.graph_numbers import GraphNumbers, plain_value
from ferrite_torch.graphs.lifetimes import Lifetimes
from ferrite_torch.graphs.unbacked_sizes import RunTimeSizes
from ferrite_torch.graphs.user_launches import UserLaunch, negative_axes, prepare_launch
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of

A_STEP = "a step of its own, run as it is"


@dataclass(frozen=True, slots=True)
class Captured:
    """One captured step of a lowered graph.

    Attributes:
        target: what it calls.
        position: where its node is in the graph.
        op: the higher-order op.
        origin: where that comes from, as people read it.
        reason: why it has no form of its own, empty where nobody has written one for the op.
    """

    target: str
    position: int
    op: str
    origin: str
    reason: str = ""


class CapturedSteps:
    """The captured steps of one graph that is being lowered, in order."""

    def __init__(
        self,
        builder: Builder,
        lifetimes: Lifetimes,
        run_time: RunTimeSizes,
        numbers: GraphNumbers,
        results: Mapping[torch.fx.Node, Any],
    ) -> None:
        self._builder, self._lifetimes, self._results = builder, lifetimes, results
        self._run_time, self._numbers = run_time, numbers
        self.found: list[Captured] = []
        self.launches: dict[str, UserLaunch] = {}

    def lower(self, node: torch.fx.Node, reason: str = "") -> Any:
        """Returns the results of a node, nested as torch nests them; ``reason`` says why it is a step of its own.

        Raises:
            Unsupported: torch has not told what the op returns, or a program has no form for an operand.
        """
        if "val" not in node.meta:
            raise unsupported(node, f"the higher-order op {node.target} does not tell what it returns")
        call = call_of_node(node)
        self._refuse_unlaid(node, call)
        position = self._lifetimes.position[node]
        target = f"captured.{_identifier(call.name)}.{position}"
        self._builder.begin(node, origins_of(node), lambda name: self._lifetimes.may_reuse(name, node))
        result = self._launch(target, call) if call.is_user_kernel else self._step(target, node, call)
        op = f"higher_order.{call.name}"
        self.found.append(Captured(target, position, op, origins_of(node)[0].description, reason))
        return (None, *result) if call.has_token else result

    def launch(self, node: torch.fx.Node) -> Any:
        """Returns what a user's Triton kernel has written, by the names of its parameters; it is launched as ours are.

        Raises:
            NotWritten: a program has no form for the launch.
            LaunchRefused: the user's launch is wrong.
        """
        call = call_of_node(node)
        if call.name != USER_KERNELS[0]:
            raise NotWritten("it writes in place, in a graph where nothing else does")
        self._refuse_unlaid(node, call)
        self._builder.begin(node, origins_of(node), lambda name: self._lifetimes.may_reuse(name, node))
        operands = operands_of(call)
        given, positions = self._given(call, operands)
        values = dict(zip(operands, given, strict=True))
        for size in negative_axes(call, values):
            self._run_time.ask(node, ("ge", size, 0))
        prepared = prepare_launch(node, call, values, self._builder.device, tunes=self._builder.choices.tunes_kernels)
        tensors = [argument for argument in prepared.arguments if isinstance(argument, Tensor)]
        mutated = [tensors.index(given[position]) for position in positions.values()]
        target = prepared.launch.target
        self._builder.extern(target, prepared.arguments, None, None, mutates=mutated, effects=True)
        self.launches[target] = prepared.launch
        return {name: given[positions[call.kwargs["kwargs"][name]]] for name in call.kwargs["tensors_to_clone"]}

    def _step(self, target: str, node: torch.fx.Node, call: HigherOrderCall) -> Any:
        operands = [self._operand(operand) for operand in operands_of(call)]
        count = len(self._builder.definitions)
        leaves = list(leaves_of(call.fakes))
        made = [_as_tensor(fake) for fake in leaves if is_returned(fake)]
        fakes: Any = tuple(made) if len(made) > 1 else made[0] if made else None
        results = self._builder.extern(target, operands, None, fakes, effects=True)
        given = iter(results if len(made) > 1 else (results,))
        found = [next(given) if is_returned(fake) else fake for fake in leaves]
        self._run_time.bind(self._builder, node, _bound(call, found), count)
        pairs = zip(leaves, found, strict=True)
        numbers = (size_of(fake) if isinstance(fake, torch.SymInt) else item for fake, item in pairs)
        return nested_like(call.fakes, numbers)

    def _launch(self, target: str, call: HigherOrderCall) -> Any:
        """Returns what a user's Triton kernel has written that torch launches, by the names of its parameters."""
        named = call.kwargs["kwargs"]
        written = list(call.kwargs.get("tensors_to_clone", ()))
        given, positions = self._given(call, operands_of(call))
        tensors = [position for position, value in enumerate(given) if isinstance(value, Tensor)]
        mutates = [tensors.index(position) for position in positions.values()]
        self._builder.extern(target, given, None, None, mutates=mutates, effects=True)
        return {name: given[positions[named[name]]] for name in written}

    def _given(
        self, call: HigherOrderCall, operands: list[torch.fx.Node]
    ) -> tuple[list[Any], dict[torch.fx.Node, int]]:
        """Returns the operands of a launch, what it writes as a tensor that it may write to, and where those are."""
        named = call.kwargs["kwargs"]
        positions = {named[name]: operands.index(named[name]) for name in call.kwargs.get("tensors_to_clone", ())}
        given = [self._operand(operand) for operand in operands]
        for operand, position in positions.items():
            given[position] = self._writable(operand, given[position], operands)
        return given, positions

    def _writable(self, operand: torch.fx.Node, tensor: Tensor, others: list[torch.fx.Node]) -> Tensor:
        """Returns a tensor to be written in place of an operand: itself if nobody reads it later, else a copy."""
        root = self._lifetimes.root(tensor.value.name)
        beside = (self._results[other] for other in others if other is not operand)
        is_alone = all(self._lifetimes.root(t.value.name) != root for t in beside if isinstance(t, Tensor))
        if is_alone and self._builder.owns(tensor):
            return tensor
        return self._builder.fresh_copy(tensor, steps_of(operand.meta["val"]))

    def _operand(self, node: torch.fx.Node) -> Any:
        """Returns an operand as the step takes it: a tensor lies as its fake does, a float is its present value.

        A data-dependent truth is a bool in memory: the call makes a truth of it (`calls.captured_calls`).
        """
        value, fake = self._results[node], node.meta.get("val")
        if isinstance(value, NeedsNumber):
            return self._numbers.truth(node)
        if isinstance(value, Tensor) and isinstance(fake, torch.Tensor):
            return laid_out(self._builder, value, steps_of(fake))
        if value is None or isinstance(value, (tuple, list, Mapping)):
            raise unsupported(node, f"a step of its own takes {node.name}, which is no tensor and no number")
        return plain_value(node, value) if isinstance(value, Scalar) else value

    def _refuse_unlaid(self, node: torch.fx.Node, call: HigherOrderCall) -> None:
        """Raises `Unsupported` where a result has no strides, or an operand to be written lies on itself."""
        for fake in (each for each in leaves_of(call.fakes) if isinstance(each, torch.Tensor)):
            if fake.layout != torch.strided:
                raise unsupported(node, f"a tensor of layout {fake.layout} is not compiled")
            if call.is_user_kernel and overlaps(sizes_of(fake.shape), steps_of(fake)):
                raise unsupported(node, "a Triton kernel that writes to a tensor whose elements share memory")


def _as_tensor(fake: Any) -> torch.Tensor:
    """Returns the fake of a step's result: a data-dependent integer comes as a tensor of the host's memory."""
    return fake if isinstance(fake, torch.Tensor) else torch.empty((), dtype=torch.int64, device="cpu")


def _bound(call: HigherOrderCall, leaves: list[Any]) -> Any:
    """Returns results as the paths to unbacked symbols count them."""
    nested = nested_like(call.fakes, iter(leaves))
    return (None, *nested) if call.has_token else nested


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
