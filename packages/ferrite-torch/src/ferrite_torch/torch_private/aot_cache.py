"""AOTAutograd's cache between processes: whether it takes our graphs, and our keys for them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import torch

StoredKey = Callable[[torch.fx.GraphModule, Sequence[Any], list[str]], str]

_stored_key: ContextVar[StoredKey | None] = ContextVar("ferrite_stored_key", default=None)

# What AOTAutograd's cache needs: compiled functions inside its entries, and backwards compiled ahead, because an entry
# is complete only with its backward, and these settings end with the call that compiles.
_STORED = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}


def stores_graphs() -> bool:
    """Returns whether AOTAutograd can keep graphs of other compilers than torch's own, and the user lets it.

    The parts are looked for one by one, as none is published. Compiled autograd traces each backward as a graph, which
    a stored one no longer is; precompilation stores entries elsewhere.
    """
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config
    from torch._functorch._aot_autograd import autograd_cache, schemas

    needed = (
        "OutputCode",
        "BypassAOTAutogradCache",
        "autograd_cache_key",
        "check_cacheable",
        "should_use_local_autograd_cache",
    )
    if not hasattr(schemas, "SerializableAOTDispatchCompiler") or not all(hasattr(autograd_cache, n) for n in needed):
        return False
    if not all(hasattr(config, name) for name in _STORED):
        return False
    if getattr(dynamo_config, "compiled_autograd", False) or getattr(dynamo_config, "caching_precompile", False):
        return False
    return bool(autograd_cache.should_use_local_autograd_cache())


def output_code() -> type:
    """Returns the class that AOTAutograd's cache wants compiled graphs to be of; it is looked up where that does."""
    from torch._functorch._aot_autograd import autograd_cache

    found: type = getattr(autograd_cache, "OutputCode")  # noqa: B009  # not among the names that it exports to checkers
    return found


def refuse_to_store(reason: str) -> NoReturn:
    """Raises what AOTAutograd's cache takes for a graph that is not to be stored; other exceptions it warns about."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    raise BypassAOTAutogradCache(reason)


@contextmanager
def keeping_graphs(stored_key: StoredKey) -> Iterator[None]:
    """Makes AOTAutograd keep the graphs that it compiles, under the keys that a function makes for them."""
    from torch._functorch import config

    _install_key()
    token = _stored_key.set(stored_key)
    try:
        with config.patch(_STORED):
            yield
    finally:
        _stored_key.reset(token)


def _install_key() -> None:
    """Makes AOTAutograd's cache use our keys for our graphs; all others keep theirs.

    Its own key hashes all of torch's and Triton's files and the settings of the default backend, whose code generators
    it imports: about a second in a fresh process, as much as tracing a model takes, and nothing that we depend on.
    There is no hook for it.
    """
    from torch._functorch._aot_autograd import autograd_cache

    theirs: Callable[..., tuple[str, list[str]]] = autograd_cache.autograd_cache_key
    if getattr(theirs, "knows_stored_keys", False):
        return

    @functools.wraps(theirs)
    def autograd_cache_key(module: Any, inputs: Any, config: Any, *rest: Any, **named: Any) -> tuple[str, list[str]]:
        stored_key = _stored_key.get()
        if stored_key is None:
            return theirs(module, inputs, config, *rest, **named)
        autograd_cache.check_cacheable(module)
        return f"aferrite-{stored_key(module, inputs, _described(config))}", []

    autograd_cache_key.knows_stored_keys = True  # type: ignore[attr-defined]
    autograd_cache.autograd_cache_key = autograd_cache_key  # type: ignore[assignment]  # takes any arguments


def _described(config: Any) -> list[str]:
    """Returns what AOTAutograd is asked for, and every setting that it reads, as texts."""
    from torch._functorch import config as settings

    names = (
        "num_params_buffers",
        "keep_inference_input_mutations",
        "is_export",
        "no_tangents",
        "dynamic_shapes",
        "aot_autograd_arg_pos_to_source",
        "static_input_indices",
        "enable_log",
        "pre_dispatch",
    )
    autocast = [
        (device, str(torch.get_autocast_dtype(device)))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    asked = [f"{name}={getattr(config, name, None)!r}" for name in names]
    saved = settings.save_config()
    return [*asked, repr(autocast), repr(torch.is_grad_enabled()), hashlib.sha256(saved).hexdigest()]
