"""A stable identity of graphs by content."""

from __future__ import annotations

from hashlib import sha256

from ferrite_ir.language.graph import Graph, Module

from .printer import graph_text, module_text


def fingerprint(program: Graph | Module) -> str:
    """Returns the SHA-256, in hex, of the text form of a graph or module.

    It is the same in every process and on every machine. Origins are not part of it; all names are.
    """
    text = graph_text(program) if isinstance(program, Graph) else module_text(program)
    return sha256(text.encode()).hexdigest()
