"""The providers that there are: those of the scheduler, of installed distributions, and of this process.

The scheduler is imported when it is needed: a process that finds all of its graphs in the store does without it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrite_scheduler.choices.providers import Provider

GROUP = "ferrite.providers"
"""The group of entry points, each of which names a provider: an object, not a class."""

_OF_PROCESS: dict[str, Provider] = {}


def providers() -> tuple[Provider, ...]:
    """Returns all providers, in the order in which they are asked.

    Raises:
        ProviderFailed: an entry point cannot be loaded, or two providers have one name.
    """
    from ferrite_scheduler.choices.products import ProviderFailed  # noqa: PLC0415
    from ferrite_scheduler.choices.providers import SHIPPED  # noqa: PLC0415

    found = (*SHIPPED, *_installed(), *_OF_PROCESS.values())
    names = [provider.name for provider in found]
    for name in names:
        if names.count(name) > 1:
            raise ProviderFailed(f"two providers are called {name!r}: give one of them another name")
    return found


def provider_versions() -> tuple[tuple[str, str], ...]:
    """Returns what choices depend on: names and versions of all providers, as `providers` has them."""
    return tuple((provider.name, provider.version) for provider in providers())


def register_provider(provider: Provider) -> None:
    """Has a provider be asked in this process; one of the same name that was registered before no longer is."""
    _OF_PROCESS[provider.name] = provider


def unregister_provider(name: str) -> None:
    """Has a provider that was registered in this process no longer be asked.

    Raises:
        KeyError: none of this name was.
    """
    del _OF_PROCESS[name]


@cache
def _installed() -> tuple[Provider, ...]:
    """Returns the providers of installed distributions.

    Raises:
        ProviderFailed: an entry point cannot be loaded.
    """
    from ferrite_scheduler.choices.products import ProviderFailed  # noqa: PLC0415

    found: list[Provider] = []
    for point in entry_points(group=GROUP):
        try:
            found.append(point.load())
        except Exception as error:
            owner = point.dist.name if point.dist else "a distribution"
            raise ProviderFailed(
                f"the provider {point.name!r} of {owner} cannot be loaded ({point.value}: {error})"
            ) from error
    return tuple(found)
