"""Users' Triton kernels in graphs: what torch keeps of them outside of the graph, and how they are launched."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_runtime.compilation.absent_gpu import knowing_a_target
from ferrite_runtime.kernel_source.user_names import jitted_function
from ferrite_runtime.kernel_source.user_text import location_of
from ferrite_torch.errors import Unsupported

Grids = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class UserKernel:
    """A kernel without the decorators that the user has put around it.

    Attributes:
        function: the jitted function.
        configs: what ``@triton.autotune`` chooses from, empty without it.
        keys: the arguments whose values its choice depends on.
        heuristics: functions of all arguments that ``@triton.heuristics`` computes constants with, the outermost first.
    """

    function: Any
    configs: tuple[Any, ...]
    keys: tuple[str, ...]
    heuristics: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...]


def unwrap_kernel(kernel: Any) -> UserKernel:
    """Returns a kernel without what is wrapped around its function.

    Raises:
        TypeError: something else than Triton's decorators is.
    """
    configs: list[Any] = []
    keys: list[str] = []
    heuristics: list[tuple[str, Callable[[Mapping[str, Any]], Any]]] = []
    while jitted_function(kernel) is None:
        if getattr(kernel, "configs", None):
            configs, keys = list(kernel.configs), list(kernel.keys)
        elif hasattr(kernel, "values") and hasattr(kernel, "fn"):
            heuristics += kernel.values.items()
        else:
            raise TypeError(f"a kernel within a {type(kernel).__name__}")
        kernel = kernel.fn
    return UserKernel(kernel, tuple(configs), tuple(keys), tuple(heuristics))


@contextmanager
def tracing_launches() -> Iterator[None]:
    """Makes launches of Triton kernels nodes of what is being traced, as ``torch.library.wrap_triton`` does.

    Outside of a graph that dynamo has captured a launch would read the memory of tensors that have none. Values of
    ``@triton.heuristics`` are computed as in every launch, and what these are around is launched.

    Raises:
        Unsupported: by a launch with a tensor descriptor that the host has made. torch would take it for a constant,
            and leave the launch out of the graph, as no tensor is seen to be written.
    """
    jit, autotuner = sys.modules.get("triton.runtime.jit"), sys.modules.get("triton.runtime.autotuner")
    if jit is None or autotuner is None:
        yield  # nobody has a kernel
        return

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if any(type(value).__name__ == "TensorDescriptor" for value in (*args, *kwargs.values())):
            function = unwrap_kernel(self).function
            raise Unsupported(
                f"a launch of {function.__name__} ({location_of(function)}) with a tensor descriptor of the host: "
                "where models are exported kernels have to make them (tl.make_tensor_descriptor)"
            )
        return torch.library.wrap_triton(self)[grid](*args, **kwargs)

    theirs = {each: each.run for each in (jit.JITFunction, autotuner.Autotuner)}
    try:
        for each in theirs:
            each.run = run
        with knowing_a_target():
            yield
    finally:
        for each, original in theirs.items():
            each.run = original


def find_kernel(number: int) -> Any:
    """Returns the jitted function, with its configs and heuristics, behind the number in a node; a private table."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(number)


def find_constants(number: int) -> dict[str, Any]:
    """Returns the arguments of a launch that are part of no graph, by name."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return dict(kernel_side_table.get_constant_args(number))


def launch(
    kernel: Any, grids: Grids, descriptors: Mapping[str, Any], given: Mapping[str, Any], mutated: Sequence[str] = ()
) -> None:
    """Launches a kernel, on the CPU in Triton's interpreter.

    Args:
        kernel: a jitted function, with or without configs and heuristics around it.
        grids: the number of programs, for each config.
        descriptors: what is to become a tensor descriptor, by the name of its argument: how torch writes it down.
        given: all arguments by name.
        mutated: the names of those that the kernel may write to.

    torch's own way writes the choice of the grid as text, with functions of its default backend.
    """
    values = {name: _described(value, descriptors[name]) for name, value in given.items() if name in descriptors}
    values = {**given, **values}
    if all(not isinstance(value, torch.Tensor) or value.device.type == "cpu" for value in given.values()):
        from ferrite_runtime.interpreter.user_launches import interpret_launch

        interpret_launch(kernel, grid_of(kernel, grids), values)
        return
    names = list(kernel.arg_names)
    first = next((position for position, name in enumerate(names) if name not in values), len(names))
    # Hooks of configs read arguments by position.
    positional = [values.pop(name) for name in names[:first]]
    timed = restoring(kernel, [given[name] for name in mutated if isinstance(given[name], torch.Tensor)])
    timed[grid_of(kernel, grids)](*positional, **values)


def restoring(kernel: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Returns a kernel that finds tensors as they are in each launch by which Triton times its configs.

    torch makes another autotuner of a kernel whose configs it prunes, completes by heuristics or gives warps to, and
    drops its ``reset_to_zero`` and ``restore_value``: sums would have what was added while configs were timed.
    The two share what has been chosen.
    """
    if len(getattr(kernel, "configs", ())) < 2:
        return kernel
    saved: list[torch.Tensor] = []

    def save(values: Mapping[str, Any], reset_only: bool = False) -> None:  # noqa: FBT001, FBT002  # Triton calls it
        saved[:] = [] if reset_only else [tensor.clone() for tensor in tensors]

    def restore(values: Mapping[str, Any], exception: Exception | None = None) -> None:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)

    timed = copy.copy(kernel)
    timed.pre_hook, timed.post_hook = save, restore
    return timed


def grid_of(kernel: Any, grids: Grids) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Returns the function that tells the grid of a launch, given the values of its constants."""
    if len(grids) == 1:
        return lambda values: tuple(grids[0])
    configs = _configs(kernel)

    def chosen(values: Mapping[str, Any]) -> tuple[Any, ...]:
        fitting = (
            grid
            for config, grid in zip(configs, grids, strict=True)
            if all(values.get(name) == value for name, value in config.kwargs.items())
        )
        return tuple(next(fitting))

    return chosen


def _configs(kernel: Any) -> Sequence[Any]:
    while not hasattr(kernel, "configs"):
        kernel = kernel.fn
    return kernel.configs  # type: ignore[no-any-return]


def described_block(description: Any) -> tuple[int, ...]:
    """Returns the blocks that are copied by a descriptor, from how torch writes it down."""
    from torch._higher_order_ops.triton_kernel_wrap import maybe_unpack_tma_stable_metadata

    # The other kind that torch knows is one of Tritons before those that are supported.
    (block,) = maybe_unpack_tma_stable_metadata(description)  # type: ignore[misc]
    return tuple(map(int, block))


def _described(tensor: torch.Tensor, description: Any) -> Any:
    """Returns the descriptor of a tensor that a kernel copies blocks of."""
    from ferrite_runtime.interpreter.user_launches import describe_blocks

    return describe_blocks(tensor, described_block(description))
