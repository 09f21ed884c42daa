"""What compiled graphs depend on besides the graphs: the packages' own text, versions, the device, torch's settings."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import ferrite_runtime
from ferrite_runtime import triton_version
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.tuning.pins import load_pins
from ferrite_torch.devices.facts import convolution_precision, device_facts, fills_memory, product_precision
from ferrite_torch.diagnostics.log_choice import shows_compilation
from ferrite_torch.errors import OptionError
from ferrite_torch.options import Options
from ferrite_torch.providers.registry import provider_versions

PACKAGES = ("ferrite_ir", "ferrite_scheduler", "ferrite_triton", "ferrite_runtime", "ferrite_torch")


@functools.cache
def source_digest() -> str:
    """Returns a digest of the text of all five packages: whatever changes in them, no older result is used."""
    seen = hashlib.sha256()
    for package in PACKAGES:
        for path in _source_files(package):
            content = path.read_bytes()
            position = path.as_posix().rpartition(f"/{package}/")[2]
            seen.update(f"{package}/{position} {len(content)}\n".encode())
            seen.update(content)
    return seen.hexdigest()


def _source_files(package: str) -> list[Path]:
    spec = find_spec(package)
    roots = [] if spec is None else [Path(position) for position in spec.submodule_search_locations or ()]
    return sorted(path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".json"))


def options_mapping(options: Options) -> dict[str, Any]:
    """Returns options as plain data, from which ``Options(**mapping)`` makes them again."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def without_budget(options: Options) -> Options:
    """Returns options without those that say who waits for a compilation: what is compiled is the same."""
    return replace(options, background=False, compile_budget_s=None)


def check_environment(options: Options) -> None:
    """Checks the environment variables of the runtime, and the file of pins that one of them names.

    Raises:
        OptionError: one has a value that it cannot have, or that does not go with the options.
    """
    try:
        settings = read_settings()
    except ferrite_runtime.OptionError as error:
        raise OptionError(str(error)) from error
    try:
        load_pins(settings.pins, must_pin=settings.must_pin)
    except ferrite_runtime.FerriteRuntimeError as error:
        raise OptionError(f"the environment variable FERRITE_PINS is {str(settings.pins)!r}: {error}") from error
    if options.budget_s is not None and settings.ranks != "alone":
        raise OptionError(
            f"the environment variable FERRITE_RANKS is {settings.ranks!r}, and background=True or compile_budget_s is "
            "given: ranks that agree on configs must make the first compiled call together, and would switch at "
            "different ones. Leave one of the two out"
        )


def stores_graphs(options: Options) -> bool:
    """Returns whether compiled graphs are kept on disk: not where the user wants to see them compiled."""
    return options.use_cache and not options.verify and not options.log_graphs and not shows_compilation()


def compile_facts(device: str, options: Options) -> list[Any]:
    """Returns everything but the graph that decides what it is compiled to, as a list that prints the same if equal.

    ``device`` is the device type of the kernels.
    """
    return [
        source_digest(),
        torch.__version__,
        triton_version(),
        sorted(options_mapping(without_budget(options)).items()),
        sorted(device_facts(device).items()),
        str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(),
        fills_memory(),
        torch.backends.cudnn.enabled,  # these two decide on layouts
        convolution_precision(),
        product_precision(),
        provider_versions() if options.products == "measured" else (),
    ]
