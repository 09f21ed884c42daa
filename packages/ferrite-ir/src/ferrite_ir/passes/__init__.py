"""Passes over graphs: frozen dataclasses with ``run(graph) -> graph``, and the pipeline that the compiler uses.

In comes a graph, out goes one that computes the same, the same object where nothing changed. ferrite-torch runs
`PIPELINE` on what it has lowered. A new pass is a module here and an entry of `PASSES` in `pipeline`.
"""

from __future__ import annotations

from .align_scans import AlignScans
from .cse import Cse
from .dce import Dce
from .fold_constants import FoldConstants
from .inline import Inline
from .narrow import Narrow
from .outer import Outer
from .pick import Pick
from .pipeline import PASSES, PIPELINE, Pass, Pipeline, parse_pipeline, pass_text
from .round_stored import RoundStored
from .simplify import Simplify
from .store_narrow import StoreNarrow
from .unroll import Unroll

__all__ = [
    "PASSES",
    "PIPELINE",
    "AlignScans",
    "Cse",
    "Dce",
    "FoldConstants",
    "Inline",
    "Narrow",
    "Outer",
    "Pass",
    "Pick",
    "Pipeline",
    "RoundStored",
    "Simplify",
    "StoreNarrow",
    "Unroll",
    "parse_pipeline",
    "pass_text",
]
