"""Params of kernels: which tensors a kernel reads and writes, and how it accesses each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Computed, Graph, Update
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.model.schedule import Param


def params_of(
    body: Sequence[Computed], reads: tuple[str, ...], stored: tuple[str, ...], graph: Graph, dependences: Dependences
) -> tuple[Param, ...]:
    """Returns the params of a kernel: those that it only reads, then those that it stores.

    Args:
        body: its definitions.
        reads: names of values that it reads from memory.
        stored: names of values that it writes.
        graph: has their types.
        dependences: has their storages.
    """
    updates = {definition.result.name: definition for definition in body if isinstance(definition, Update)}
    read_storages = {dependences.storage[name] for name in reads} if updates else set()
    workspaces = {definition.workspace for definition in body if isinstance(definition, LookBackScan)}
    params = [
        replace(p, access="atomic") if p.name in workspaces else p for p in (_read_param(n, graph) for n in reads)
    ]
    for name in stored:
        access = "write"
        if name in updates:
            access = _update_access(name, updates[name], read_storages, dependences)
        params.append(Param(name, graph.values[name].type, access))
    return tuple(params)


def _read_param(name: str, graph: Graph) -> Param:
    tensor = graph.values[name].type
    on_host = tensor.device == "cpu" and tensor.device != graph.device and tensor.shape == ()
    return Param(name, tensor, "read", on_host)


def _update_access(name: str, update: Update, read_storages: set[str], dependences: Dependences) -> str:
    if update.mode != "set":
        return "atomic"
    return "readwrite" if dependences.storage[name] in read_storages else "write"
