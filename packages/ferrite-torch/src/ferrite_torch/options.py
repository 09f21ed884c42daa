"""What a user may ask of the backend: one frozen record, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ferrite_torch.errors import OptionError


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user. None of them changes what a graph computes.

    Attributes:
        fallback: run a graph eagerly, with a warning, where compiling it fails; False raises instead.
        interpret: run kernels in Triton's interpreter; None means only on the CPU.
        tune: how much the runtime measures: ``none``, ``default``, ``quick`` or ``full`` (also ``max``); None leaves it
            to the runtime.
        workers: number of compile processes, 0 for none, None for one per core.
        use_cache: keep compiled kernels and measurements on disk.
        tuning_seconds: limit on the time spent measuring for one graph; None leaves it to the runtime.
        cuda_graph: play each graph as one CUDA graph from its third call on; a warning says why, where that cannot be.
        native_products: have the code that starts kernels call the library's matrix products between them as well;
            False has Python call them, where a profiler or a dispatch mode sees them.
        native_graphs: have that code start many kernels in a row as one graph of the driver; False has it start each by
            itself; None leaves it to the environment (FERRITE_NATIVE_GRAPHS), and that to the runtime, which does.
        follow: start kernels before those before them have ended, for which they wait themselves, on GPUs that can;
            None leaves it to the environment (FERRITE_FOLLOW), and that to the runtime, which does.
        check_inputs: when the runtime checks its inputs: ``first`` call, ``always`` or ``never``.
        check_indices: stop kernels on a GPU that are given an index out of bounds, or a value that eager refuses as
            well (a probability over 1), with a message that names the op and its line; as in eager mode, the process
            can use the GPU no more then. False compiles kernels without these checks. On the CPU they are always made.
        verify: check the graph after lowering and after the passes: for developers and tests.
        log_graphs: log the text of each graph, before and after the passes.
        align_matmuls: compute large half-precision matrix products with odd extents on operands extended with zeros.
        extern: ``error`` refuses library calls that stand for a missing kernel, naming op and source line; ``allow``
            makes them, and counts them.
        policy: scheduler thresholds to change, by the field names of ``ferrite_scheduler.Policy``.
        target: device facts to change, by the field names of ``ferrite_scheduler.Target``.
    """

    fallback: bool = True
    interpret: bool | None = None
    tune: str | None = None
    workers: int | None = None
    use_cache: bool = True
    tuning_seconds: float | None = None
    cuda_graph: bool = False
    native_products: bool = True
    native_graphs: bool | None = None
    follow: bool | None = None
    check_inputs: str = "first"
    check_indices: bool = True
    verify: bool = False
    log_graphs: bool = False
    align_matmuls: bool = True
    extern: str = "allow"
    policy: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)


MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graph": True},
    "max-autotune": {"tune": "max"},
    "max-autotune-no-cudagraphs": {"tune": "max"},
}
"""What each ``mode`` of torch.compile changes."""

_NAMES = tuple(item.name for item in fields(Options))


def parse_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Returns the options that ``torch.compile(…, mode=mode, options=options)`` asks for.

    ``options`` win over the mode.

    Raises:
        OptionError: an unknown mode or option, or a value of the wrong type; the message lists what is known.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(f"unknown mode {mode!r} for backend 'ferrite'; known modes: {', '.join(MODES)}")
    given = dict(options or {})
    unknown = sorted(str(name) for name in given if name not in _NAMES)
    if unknown:
        named = ", ".join(map(repr, unknown))
        raise OptionError(f"unknown option {named} for backend 'ferrite'; known: {', '.join(_NAMES)}")
    for name, value in given.items():
        _check_type(name, value)
    return replace(Options(**MODES[mode or "default"]), **given)


_TYPES: dict[str, tuple[type, ...]] = {
    "fallback": (bool,),
    "interpret": (bool, type(None)),
    "tune": (str, type(None)),
    "workers": (int, type(None)),
    "use_cache": (bool,),
    "tuning_seconds": (int, float, type(None)),
    "cuda_graph": (bool,),
    "native_products": (bool,),
    "native_graphs": (bool, type(None)),
    "follow": (bool, type(None)),
    "check_inputs": (str,),
    "check_indices": (bool,),
    "verify": (bool,),
    "log_graphs": (bool,),
    "align_matmuls": (bool,),
    "extern": (str,),
    "policy": (Mapping,),
    "target": (Mapping,),
}
_CHOICES = {
    "tune": (None, "none", "default", "quick", "full", "max"),
    "check_inputs": ("first", "always", "never"),
    "extern": ("allow", "error"),
}


def _check_type(name: str, value: Any) -> None:
    allowed = _TYPES[name]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        raise OptionError(f"option {name!r} is {value!r}; it takes {wanted}")
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise OptionError(f"option {name!r} is {value!r}; it can be {', '.join(map(repr, choices))}")
