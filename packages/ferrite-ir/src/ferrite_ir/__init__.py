"""Ferrite's loop-level language: graphs of definitions over named dims, with a text form, a verifier, passes and a reference evaluator."""

from __future__ import annotations

from .dtypes import DTYPES, DType, dtype_named
from .graph import (
    Call,
    Computed,
    Contract,
    Definition,
    Extern,
    Fold,
    Graph,
    If,
    Loop,
    Module,
    Origin,
    Scan,
    Sort,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    While,
    whole,
)
from .index import Dim, Index, indirect
from .parse import ParseError, parse_graph, parse_index, parse_module, parse_scalar
from .passes import PIPELINE, Pass, Pipeline, parse_pipeline
from .scalar import Scalar, ScalarTypeError, apply, bitcast, cast, const, index_value, load
from .text import definition_text, graph_text, module_text, scalar_text

__version__ = "0.1.0"

__all__ = [
    "DTYPES",
    "PIPELINE",
    "Call",
    "Computed",
    "Contract",
    "DType",
    "Definition",
    "Dim",
    "Extern",
    "Fold",
    "Graph",
    "If",
    "Index",
    "Loop",
    "Module",
    "Origin",
    "ParseError",
    "Pass",
    "Pipeline",
    "Scalar",
    "ScalarTypeError",
    "Scan",
    "Sort",
    "Tag",
    "TensorType",
    "Update",
    "Value",
    "View",
    "While",
    "apply",
    "bitcast",
    "cast",
    "const",
    "definition_text",
    "dtype_named",
    "graph_text",
    "index_value",
    "indirect",
    "load",
    "module_text",
    "parse_graph",
    "parse_index",
    "parse_module",
    "parse_pipeline",
    "parse_scalar",
    "scalar_text",
    "whole",
]
