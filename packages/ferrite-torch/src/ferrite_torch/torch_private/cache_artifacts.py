"""Torch's list of what its caches hold (`torch.compiler.save_cache_artifacts`), which can take more along.

Our entries of AOTAutograd's cache are on that list, as torch puts them there. What our own store has goes beside them,
as one more entry of AOTAutograd's cache, under a key that nobody looks up: for a kind of entries that only we know,
torch would refuse the whole list in a process that has not imported us.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from ferrite_torch.torch_private.aot_cache import Keeper, take_entry

_KIND = "aot_autograd"
_STORE = "aferrite-store"
_OURS = re.compile(r"aferrite-[0-9a-zA-Z]+")


def list_artifacts(entries: bytes) -> bytes | None:
    """Returns what this process has put into torch's caches, and entries of ours; None where torch cannot write it."""
    from torch._functorch._aot_autograd import autograd_cache  # noqa: F401  # it registers the kind
    from torch.compiler._cache import CacheArtifactManager

    CacheArtifactManager.record_artifact(_KIND, _STORE, entries)
    saved = torch.compiler.save_cache_artifacts()
    return None if saved is None else saved[0]


def take_artifacts(content: bytes, keeper: Keeper, take: Callable[[bytes], None]) -> int | None:
    """Puts what such a list holds into torch's caches, and has ``take`` called with the entries of ours.

    Args:
        content: what `list_artifacts` returned somewhere.
        keeper: vouches for our entries of AOTAutograd's cache from now on.
        take: takes entries of our store.

    Returns:
        How many artifacts there were, None if it is no such list.
    """
    from torch.compiler._cache import CacheArtifactManager

    artifacts = CacheArtifactManager.deserialize(content)
    if artifacts is None:
        return None
    count = sum(map(len, artifacts.values()))
    listed = artifacts.get(_KIND, [])
    for artifact in listed:
        if artifact.key == _STORE:
            take(artifact.content)
        elif _OURS.fullmatch(artifact.key):
            take_entry(keeper, artifact.key, artifact.content)
    artifacts[_KIND] = [artifact for artifact in listed if not artifact.key.startswith("aferrite-")]
    CacheArtifactManager.populate_caches(artifacts)
    return count
