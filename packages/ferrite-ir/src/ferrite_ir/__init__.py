"""Ferrite's loop-level language: graphs of definitions over named dims.

It has a text form, a verifier, passes and a reference evaluator.
"""

from __future__ import annotations

from .language.attend import BlockList, BlockSparsity, ScoreProduct
from .language.dtypes import DTYPES, DType, dtype_named
from .language.graph import (
    Attend,
    Call,
    Computed,
    Contract,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Module,
    Origin,
    Reduction,
    Scan,
    Segments,
    Sort,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    While,
    whole,
)
from .language.index import Dim, Index, indirect
from .language.scalar import Scalar, ScalarTypeError, apply, bitcast, cast, const, index_value, load
from .passes import PIPELINE, Pass, Pipeline, parse_pipeline
from .reference.evaluator import EvaluationError, Evaluator, Tensor, evaluate
from .text.fingerprint import fingerprint
from .text.parser import ParseError, parse_graph, parse_index, parse_module, parse_scalar
from .text.printer import definition_text, graph_text, module_text, scalar_text
from .verification.verifier import RULES, Problem, VerificationError, require_valid, verify

__version__ = "0.1.0"

__all__ = [
    "DTYPES",
    "PIPELINE",
    "RULES",
    "Attend",
    "BlockList",
    "BlockSparsity",
    "Call",
    "Computed",
    "Contract",
    "DType",
    "Definition",
    "Dim",
    "EvaluationError",
    "Evaluator",
    "Extern",
    "For",
    "Graph",
    "If",
    "Index",
    "Loop",
    "Module",
    "Origin",
    "ParseError",
    "Pass",
    "Pipeline",
    "Problem",
    "Reduction",
    "Scalar",
    "ScalarTypeError",
    "Scan",
    "ScoreProduct",
    "Segments",
    "Sort",
    "Tag",
    "Tensor",
    "TensorType",
    "Update",
    "Value",
    "VerificationError",
    "View",
    "While",
    "apply",
    "bitcast",
    "cast",
    "const",
    "definition_text",
    "dtype_named",
    "evaluate",
    "fingerprint",
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
    "require_valid",
    "scalar_text",
    "verify",
    "whole",
]
