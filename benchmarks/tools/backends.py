"""The backends under comparison: how to compile with each and what each says about its own work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.tools.tree import add_packages_to_path

UNCOMPILED = "eager"
_OPTIONS: dict[str, dict[str, Any]] = {
    "ferrite": {},
    "ferrite-none": {"tune": "none"},
    "ferrite-max": {"tune": "full"},
    "ferrite-apart": {"pdl": False},
    "ferrite-library": {"products": "library"},
    "ferrite-own": {"products": "own", "tune": "full"},
    "ferrite-own-whole": {"products": "own", "tune": "full", "policy": {"product_parts": 1}},
    "ferrite-own-first": {"products": "own", "tune": "none"},
    "ferrite-unchecked": {"check_indices": False},
    "ferrite-reduce": {"cuda_graph": True},
    "ferrite-library-reduce": {"products": "library", "cuda_graph": True},
    "ferrite-logits": {"chunk_losses": "never"},
}


def compile_with(
    backend: str, function: Callable[..., Any], *, policy: Mapping[str, Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Returns `function` compiled by `backend`; "eager" means as it is, without any capture.

    ``inductor-max`` and ``ferrite-max`` choose configs by measuring all they can think of, ``ferrite-none`` without
    measuring anything; ``ferrite-own`` computes products of matrices itself, in the fastest of its configs,
    ``ferrite-own-first`` in the first one, and ``ferrite-own-whole`` without cutting their sums; no kernel of
    ``ferrite-apart`` starts before those before it have ended; those of ``ferrite-unchecked`` look at no index;
    ``ferrite-logits`` writes the logits of losses; ``inductor-reduce`` and ``ferrite-reduce`` are the mode
    ``reduce-overhead``, which plays CUDA graphs, and ``ferrite-library-reduce`` is that with the library. ``policy``
    changes thresholds of ferrite's scheduler.
    """
    if backend == UNCOMPILED:
        return function
    if backend == "inductor-max":
        return torch.compile(function, mode="max-autotune-no-cudagraphs", **options)
    if backend == "inductor-reduce":
        return torch.compile(function, mode="reduce-overhead", **options)
    if backend in _OPTIONS:
        add_packages_to_path()
        import ferrite_torch  # noqa: F401 - registers the backend where the package is not installed

        # A graph that quietly ran in eager would be timed as ferrite's.
        options["options"] = {"fallback": False, "policy": dict(policy or {})} | _OPTIONS[backend]
    return torch.compile(function, backend=backend.partition("-")[0], **options)


def ferrite_statistics() -> dict[str, Any]:
    """Returns what ferrite counts about itself in this process; empty where it does not count."""
    import ferrite_torch

    read = getattr(ferrite_torch, "statistics", None)
    return dict(read()) if callable(read) else {}


def inductor_statistics() -> dict[str, Any]:
    """Returns the opponent's own counts in this process."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    return {
        "kernels": metrics.generated_kernel_count,
        "extern_calls": counters["inductor"]["extern_calls"],
    }


def count_work(backend: str) -> dict[str, Any]:
    """Returns captured graphs, graph breaks, kernels and extern calls of everything compiled in this process."""
    if backend == UNCOMPILED:
        return {}
    from torch._dynamo.utils import counters

    counts: dict[str, Any] = {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "break_reasons": dict(counters["graph_break"]),
    }
    if backend.startswith("inductor"):
        counts.update(inductor_statistics())
    if backend.startswith("ferrite"):
        own = ferrite_statistics()
        counts["statistics"] = own
        counts.update({name: own[name] for name in ("kernels", "extern_calls") if name in own})
    return counts
