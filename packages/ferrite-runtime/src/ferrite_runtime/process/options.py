"""What the user asks of the runtime: one frozen record, passed along, never ambient."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ferrite_runtime.errors import OptionError
from ferrite_runtime.process.environment_variables import RANKS
from ferrite_runtime.process.option_ranges import (
    BOOL,
    FINITE_SECONDS,
    LAUNCHES,
    MAYBE_BOOL,
    PROCESSES,
    SECONDS,
    Range,
    find_problem,
)

EFFORTS = ("none", "default", "quick", "full", "max")
"""How much is measured (`Options.tune`), from nothing on; ``max`` is another name of ``full``."""


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that change how a program runs, never what it computes.

    Attributes:
        tune: ``"none"`` takes the config policy's first choice, ``"default"`` measures the configs that the writer of a
            kernel has stated, ``"quick"`` every candidate of every kernel, ``"full"`` (also ``"max"``) those of wider
            tables and the configs beside the best one as well.
        launcher: ``"driver"`` calls the CUDA driver directly, ``"triton"`` goes through Triton's own launcher,
            ``"auto"`` takes the first that works for the device.
        native: start whole sequences of launches by one call of native code: ``"auto"`` where that code is at hand, or
            can be built because kernels are compiled here anyway; ``"build"`` starts a C compiler for it in any case;
            ``"never"`` launches one by one.
        native_products: have the native code that starts launches call the library's matrix products between them too,
            where this torch offers them to C; without it they are called from Python.
        native_graphs: have that code start kernels in a row, four or more, as one graph of the driver once they have
            been started a few times; None means True unless FERRITE_NATIVE_GRAPHS is 0 or CUDA_LAUNCH_BLOCKING is 1.
        pdl: start kernels before those before them have ended, for which they wait themselves, where that pays (on
            GPUs of compute capability 9.0 and later); None means True unless FERRITE_PDL is 0.
        cuda_graph: play what a call does as CUDA graphs from the third call on: one, where all of it can be captured,
            else one for each row of steps that can; a warning says why the others cannot. Inputs that move between
            calls are copied in, results copied out, but for what only a backward sees (decision 0061).
        cuda_graph_launches: launches and extern calls that such a graph has at least; shorter rows run from the host.
        interpret: run kernels in Triton's interpreter, on CPU tensors, even those of a program compiled for a GPU;
            None means only programs for the CPU.
        check_inputs: ``"first"`` call only, ``"always"`` or ``"never"``.
        check_indices: stop a kernel on the GPU that is given an index out of bounds, or a value that its op refuses,
            with a message that names the op and its line; the interpreter always does. What is loaded without such
            kernels has them compiled here; `ferrite_torch.export` writes bundles with them unless told otherwise.
        workers: number of compile processes; None means one per core, 16 at most; 0 compiles in this process.
        use_cache: keep compiled kernels and tuning choices on disk.
        tuning_seconds: limit on the time that one program spends measuring.
        pins: file of pinned configs, which go before everything measured; None means the one that the environment
            variable FERRITE_PINS names, if it does.
        assert_pinned: raise `NotPinned` for a kernel without a pinned config; None means FERRITE_ASSERT_PINNED.
        ranks: how ranks of a distributed program choose configs: ``"alone"``, or all as ``"rank0"`` or the ``"first"``
            to come decides; None means FERRITE_RANKS.
        compile_seconds: limit on the compilation of one kernel, after which its worker counts as hung.
    """

    tune: str = "default"
    launcher: str = "auto"
    native: str = "auto"
    native_products: bool = True
    native_graphs: bool | None = None
    pdl: bool | None = None
    cuda_graph: bool = False
    cuda_graph_launches: int = 4
    interpret: bool | None = None
    check_inputs: str = "first"
    check_indices: bool = False
    workers: int | None = None
    use_cache: bool = True
    tuning_seconds: float = 30.0
    pins: str | None = None
    assert_pinned: bool | None = None
    ranks: str | None = None
    compile_seconds: float = 300.0

    def __post_init__(self) -> None:
        problem = find_problem({name: getattr(self, name) for name in RANGES}, RANGES)
        if problem:
            raise OptionError(f"Options.{problem}")


def check_arguments(function: str, ranges: Mapping[str, Range], **given: object) -> None:
    """Checks what somebody calls a function with, before anything is done.

    Raises:
        OptionError: naming the argument, if it is none that the function takes.
    """
    problem = find_problem(given, ranges)
    if problem:
        raise OptionError(f"{function}: {problem}")


RANGES: dict[str, Range] = {
    "tune": Range((str,), EFFORTS),
    "launcher": Range((str,), ("auto", "driver", "triton")),
    "native": Range((str,), ("auto", "build", "never")),
    "native_products": BOOL,
    "native_graphs": MAYBE_BOOL,
    "pdl": MAYBE_BOOL,
    "cuda_graph": BOOL,
    "cuda_graph_launches": LAUNCHES,
    "interpret": MAYBE_BOOL,
    "check_inputs": Range((str,), ("first", "always", "never")),
    "check_indices": BOOL,
    "workers": PROCESSES,
    "use_cache": BOOL,
    "tuning_seconds": SECONDS,
    "pins": Range((str, os.PathLike, type(None))),
    "assert_pinned": MAYBE_BOOL,
    "ranks": Range((str, type(None)), (None, *RANKS)),
    "compile_seconds": FINITE_SECONDS,
}
"""What each option takes."""
