"""Kernels that check indices and values on a GPU: the same text, compiled with its assertions.

These then say which op they are from, and which line: the kernel's constant ``ORIGIN`` (`kernel_source.jitted`).

A checked kernel is a kernel of its own, with an identity of its own: nothing else of the runtime knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrite_runtime.formats.canonical_json import digest, kernel_id


def checked_program(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a program, as a mapping, whose kernels are compiled with their assertions, if they have any."""
    renamed: dict[str, str] = {}
    kernels = []
    for kernel in mapping["kernels"]:
        checked = _checked_kernel(kernel) if kernel["facts"].get("asserts") else kernel
        renamed[kernel["id"]] = checked["id"]
        kernels.append(checked)
    made = {**mapping, "kernels": kernels, "steps": _renamed(mapping["steps"], renamed)}
    graphs = [{**graph, "steps": _renamed(graph["steps"], renamed)} for graph in mapping.get("graphs", ())]
    return made | ({"graphs": graphs} if graphs else {})


def _renamed(steps: Sequence[Mapping[str, Any]], renamed: Mapping[str, str]) -> list[Any]:
    return [_renamed_launch(step, renamed) if step["do"] == "launch" else step for step in steps]


def _renamed_launch(step: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    made = {**step, "kernel": renamed[step["kernel"]]}
    if "alternatives" in step:
        made["alternatives"] = [{**other, "kernel": renamed.get(other["kernel"])} for other in step["alternatives"]]
    return made


def _checked_kernel(kernel: Mapping[str, Any]) -> dict[str, Any]:
    place = f"origin_{digest(list(kernel['origin']))[:16]}"
    made = {**kernel, "facts": {**kernel["facts"], "checked": True, "place": place}}
    return {**made, "id": kernel_id(made)}
