"""What a user may ask of the backend: one frozen record, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ferrite_runtime.process.option_ranges import (
    BOOL,
    LAUNCHES,
    MAYBE_BOOL,
    PROCESSES,
    SECONDS,
    Range,
    did_you_mean,
    find_problem,
)
from ferrite_runtime.process.options import EFFORTS
from ferrite_torch.errors import OptionError


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user. None of them changes what a graph computes, but for which random numbers it draws.

    Attributes:
        fallback: run a graph eagerly, with a warning, where compiling it fails; False raises instead.
        interpret: run kernels in Triton's interpreter; None means only on the CPU.
        tune: how much the runtime measures: ``none``, ``default``, ``quick`` or ``full`` (also ``max``); None leaves it
            to the runtime.
        workers: number of compile processes, 0 for none, None for one per core.
        use_cache: keep compiled kernels and measurements on disk.
        tuning_seconds: limit on the time spent measuring for one graph; None leaves it to the runtime.
        tune_user_kernels: try more warps and stages of the program's own Triton kernels than these state. The configs
            of ``@triton.autotune`` are measured in any case, unless ``tune`` is ``none``.
        cuda_graph: play each graph as CUDA graphs from its third call on: one, where all of it can be captured, else
            one for each row of steps that can; a warning says why the others cannot, and `explain` with their lines.
        cuda_graph_launches: launches and extern calls that such a CUDA graph has at least.
        native_products: have the code that starts kernels call the library's matrix products between them as well;
            False has Python call them, where a profiler or a dispatch mode sees them.
        native_graphs: have that code start many kernels in a row as one graph of the driver; False has it start each by
            itself; None leaves it to the environment (FERRITE_NATIVE_GRAPHS), and that to the runtime, which does.
        pdl: start kernels before those before them have ended, for which they wait themselves, on GPUs that can;
            None leaves it to the environment (FERRITE_PDL), and that to the runtime, which does.
        check_inputs: when the runtime checks its inputs: ``first`` call, ``always`` or ``never``.
        check_indices: stop kernels on a GPU that are given an index out of bounds, or a value that eager refuses as
            well (a probability over 1), with a message that names the op and its line; as in eager mode, the process
            can use the GPU no more then. False compiles kernels without these checks. On the CPU they are always made.
        verify: check the graph after lowering and after the passes: for developers and tests.
        log_graphs: log the text of each graph, before and after the passes.
        align_matmuls: compute large products on tensor cores (half types, and float32 as TF32) with odd extents on
            operands extended with zeros.
        products: who computes products of matrices of half types with more than a few rows: ``small`` has kernels of
            ours for those that take the device no longer than the host takes to call the library (as well as for such
            attention and convolutions), and the library for the others; ``library`` has it do all of them; ``own`` none
            of the products, and computes them with what reads their results; ``measured`` times both on the GPU at
            hand, and what else providers offer (`ferrite_torch.providers`), each with the kernels beside it, takes the
            fastest, and keeps the times.
        layout: ``auto`` puts convolutions channels-last where the library is faster so, with what is between them;
            results, gradients and written inputs lie as in eager mode. ``keep`` leaves everything as it lies.
        chunk_losses: ``auto`` computes the loss of a linear layer (cross entropy and what else is a sum over rows) in
            chunks of rows where its logits are large (`thresholds.LossThresholds`) and no float16, so that they never
            lie in memory whole, nor do their gradients; ``always`` does so whatever they are, ``never`` not at all.
        repeat_blocks: compile modules that are called several times with the same structure once, as regions, whatever
            model they are in; see `ferrite_torch.repeat_blocks`, which asks for it for one model.
        extern: ``error`` refuses extern calls that stand for a missing kernel, naming op and source line; ``allow``
            makes them, and counts them.
        fallback_random: have torch draw all random numbers, by extern calls, so that they are those of eager mode after
            the same ``torch.manual_seed``. Without it kernels draw numbers of their own, which costs no memory traffic.
        activation_memory_budget: the share of what a forward saves for its backward that it may save: with 0 its inputs
            and seeds of random numbers, and all else is computed again; with 1 as without it. Between them torch's
            partitioner chooses what to compute again by the number of operations. None leaves it to
            ``torch._functorch.config.activation_memory_budget``, which is 1.
        policy: scheduler thresholds to change, by the field names of ``ferrite_scheduler.Policy``.
        target: device facts to change, by the field names of ``ferrite_scheduler.Target``.
        background: run each graph op by op until its kernels are compiled, then switch: a ``compile_budget_s`` of 0.
        compile_budget_s: seconds for which calls wait for the compilation of a graph, from when it goes on beside them;
            after that they run op by op until it is ready. None waits as long as it takes.
    """

    fallback: bool = True
    interpret: bool | None = None
    tune: str | None = None
    workers: int | None = None
    use_cache: bool = True
    tuning_seconds: float | None = None
    tune_user_kernels: bool = False
    cuda_graph: bool = False
    cuda_graph_launches: int = 4
    native_products: bool = True
    native_graphs: bool | None = None
    pdl: bool | None = None
    check_inputs: str = "first"
    check_indices: bool = True
    verify: bool = False
    log_graphs: bool = False
    align_matmuls: bool = True
    products: str = "small"
    layout: str = "auto"
    chunk_losses: str = "auto"
    repeat_blocks: bool = False
    extern: str = "allow"
    fallback_random: bool = False
    activation_memory_budget: float | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    background: bool = False
    compile_budget_s: float | None = None

    @property
    def budget_s(self) -> float | None:
        """Seconds for which calls wait for a compilation; None without a limit."""
        return 0.0 if self.background else self.compile_budget_s

    def __post_init__(self) -> None:
        problem = find_problem({name: getattr(self, name) for name in RANGES}, RANGES, repr)
        if problem:
            raise OptionError(f"option {problem}")
        if self.background and self.compile_budget_s is not None:
            raise OptionError(
                f"options background=True and compile_budget_s={self.compile_budget_s!r} are both given: background "
                "is a budget of 0. Give one of them"
            )
        if self.policy or self.target:
            _check_scheduler(self.policy, self.target)


def _check_scheduler(policy: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    """Raises `OptionError` unless the scheduler knows the fields of its policy and target, and takes their values."""
    from ferrite_scheduler import Policy, Target  # noqa: PLC0415  # most users have no wishes about it

    for option, kind, values in (("policy", Policy, policy), ("target", Target, target)):
        try:
            kind.from_mapping(values)
        except ValueError as error:
            raise OptionError(f"option {option!r}: {error}") from None


MAYBE_SECONDS = Range((int, float, type(None)), least=SECONDS.least, most=SECONDS.most, unit=SECONDS.unit)

RANGES: dict[str, Range] = {
    "fallback": BOOL,
    "interpret": MAYBE_BOOL,
    "tune": Range((str, type(None)), (None, *EFFORTS)),
    "workers": PROCESSES,
    "use_cache": BOOL,
    "tuning_seconds": MAYBE_SECONDS,
    "tune_user_kernels": BOOL,
    "cuda_graph": BOOL,
    "cuda_graph_launches": LAUNCHES,
    "native_products": BOOL,
    "native_graphs": MAYBE_BOOL,
    "pdl": MAYBE_BOOL,
    "check_inputs": Range((str,), ("first", "always", "never")),
    "check_indices": BOOL,
    "verify": BOOL,
    "log_graphs": BOOL,
    "align_matmuls": BOOL,
    "products": Range((str,), ("small", "library", "own", "measured")),
    "layout": Range((str,), ("auto", "keep")),
    "chunk_losses": Range((str,), ("auto", "always", "never")),
    "repeat_blocks": BOOL,
    "extern": Range((str,), ("allow", "error")),
    "fallback_random": BOOL,
    "activation_memory_budget": Range((int, float, type(None)), least=0, most=1),
    "policy": Range((Mapping,)),
    "target": Range((Mapping,)),
    "background": BOOL,
    "compile_budget_s": MAYBE_SECONDS,
}
"""What each option takes."""

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
        OptionError: an unknown mode or option, or a value that it cannot have; the message says what is known, and
            what was probably meant.
    """
    if mode is not None and mode not in tuple(MODES):
        like = did_you_mean(mode, MODES)
        raise OptionError(f"unknown mode {mode!r} for backend 'ferrite'{like}; known modes: {', '.join(MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options are {options!r}; they are a mapping of names, such as {{'tune': 'none'}}")
    given = dict(options or {})
    unknown = sorted(str(name) for name in given if name not in _NAMES)
    if unknown:
        named = ", ".join(map(repr, unknown))
        like = did_you_mean(unknown[0], _NAMES)
        raise OptionError(f"unknown option {named} for backend 'ferrite'{like}; known: {', '.join(_NAMES)}")
    return Options(**{**MODES[mode or "default"], **given})
