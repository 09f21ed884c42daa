"""The torch.compile backend of Ferrite: ``torch.compile(model, backend="ferrite")``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from ferrite_runtime.process.option_ranges import BOOL, FUNCTION, MAYBE_BOOL
from ferrite_torch.backend import ferrite
from ferrite_torch.capture.chosen_models import RepeatedBlocks, repeat_blocks
from ferrite_torch.diagnostics.call_checks import check_arguments
from ferrite_torch.diagnostics.statistics import compiled_programs, reset_statistics, statistics
from ferrite_torch.errors import (
    CompileError,
    EnvironmentProblem,
    ExternRefused,
    FerriteError,
    LaunchRefused,
    OptionError,
    RunError,
    Unsupported,
)
from ferrite_torch.options import Options, parse_options

if TYPE_CHECKING:
    from ferrite_torch.cache.cache_file import CacheFile, load_caches, save_caches
    from ferrite_torch.exporting.export import export
    from ferrite_torch.inspection.explanation import Explanation, explain

__version__ = "0.1.0"

_LATE = {
    "CacheFile": "cache.cache_file",
    "Explanation": "inspection.explanation",
    "explain": "inspection.explanation",
    "export": "exporting.export",
    "load_caches": "cache.cache_file",
    "save_caches": "cache.cache_file",
}
"""Names by the module that defines them, which is imported when they are first used: most import all layers."""

__all__ = [
    "CacheFile",
    "CompileError",
    "EnvironmentProblem",
    "Explanation",
    "ExternRefused",
    "FerriteError",
    "LaunchRefused",
    "OptionError",
    "Options",
    "RepeatedBlocks",
    "RunError",
    "Unsupported",
    "compile",
    "compiled_programs",
    "explain",
    "export",
    "ferrite",
    "load_caches",
    "repeat_blocks",
    "reset_statistics",
    "save_caches",
    "statistics",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def compile(  # noqa: A001  # the name that torch gives it
    model: Callable[..., Any],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Returns ``torch.compile(model, backend="ferrite")`` with the fields of `Options` as keyword arguments.

    Raises:
        OptionError: an unknown mode or option, or a value that it does not take.
    """
    given = {"model": model, "fullgraph": fullgraph, "dynamic": dynamic}
    check_arguments("compile", {"model": FUNCTION, "fullgraph": BOOL, "dynamic": MAYBE_BOOL}, **given)
    parse_options(mode, options)
    # torch.compile takes a mode or options, not both; the backend merges them.
    return torch.compile(model, backend=_Configured(mode, options), fullgraph=fullgraph, dynamic=dynamic)


class _Configured:
    """The backend with a mode and options already chosen."""

    def __init__(self, mode: str | None, options: dict[str, Any]) -> None:
        self.mode, self.options = mode, options

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return ferrite(module, inputs, mode=self.mode, options=self.options)
