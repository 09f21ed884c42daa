"""Who offers candidates for products beside the library and our own kernels, and a form in which a kernel does.

How to write one is in docs/how-to/add-a-provider.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrite_scheduler.choices.products import ProviderFailed
from ferrite_scheduler.choices.providers import Emitted, Part, Provider
from ferrite_torch.providers.registry import providers, register_provider, unregister_provider

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Returns what is imported when it is first asked for."""
    if name == "TritonProducts":
        from ferrite_torch.providers.triton_products import TritonProducts  # noqa: PLC0415  # few write kernels

        return TritonProducts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
