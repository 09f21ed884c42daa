"""Who offers candidates for products beside the library and our own kernels, and a form in which a kernel does.

How to write one is in docs/how-to/add-a-provider.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ferrite_torch.providers.registry import providers, register_provider, unregister_provider

if TYPE_CHECKING:
    from ferrite_scheduler.choices.products import ProviderFailed
    from ferrite_scheduler.choices.providers import Emitted, Part, Provider
    from ferrite_torch.providers.triton_products import TritonProducts

__all__ = [
    "Emitted",
    "Part",
    "Provider",
    "ProviderFailed",
    "TritonProducts",
    "providers",
    "register_provider",
    "unregister_provider",
]


_HOMES = {
    **dict.fromkeys(("Emitted", "Part", "Provider"), "ferrite_scheduler.choices.providers"),
    "ProviderFailed": "ferrite_scheduler.choices.products",
    "TritonProducts": "ferrite_torch.providers.triton_products",
}
"""Where names are that are imported when they are first asked for: who finds all graphs in the store needs none."""


def __getattr__(name: str) -> Any:
    """Returns what is imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
