"""Fake tensors: tensors without data, from which graphs know shapes, strides and storages."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# The tensors in node.meta["val"]: torch publishes no name for the class.
from torch._subclasses.fake_tensor import FakeTensor

# What AOTAutograd wraps them in while it takes writes out of a graph.
from torch._subclasses.functional_tensor import FunctionalTensor


def is_fake(value: Any) -> bool:
    """Returns whether a value is a tensor without data."""
    return isinstance(value, FakeTensor)


def is_functional(value: Any) -> bool:
    """Returns whether a tensor stands for values that writes replace, as AOTAutograd runs a graph.

    Once it has been written to, what it is a view of lies elsewhere than it says: new values begin at 0, and views of
    these count from there. Only the class, which has no public name, tells such tensors apart.
    """
    return isinstance(value, FunctionalTensor)


def storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that two fake tensors share exactly if they share storage.

    Fake tensors have no data pointer; the storage's C++ address is the one thing that tells them apart. What transforms
    of ``torch.func`` wrap has the storage of what is wrapped.
    """
    return int(taken_out(tensor).untyped_storage()._cdata)


def taken_out(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that lies in memory of one that transforms of ``torch.func`` wrap: all slices, in axes before.

    The values inside ``vmap`` and ``hessian`` are such in a captured graph. One that stands for the slices of a batch
    tells no axis for these, and no op takes it after the transform has ended. Torch publishes no way to what it wraps.
    """
    wrappers = torch._C._functorch
    if not wrappers.is_functorch_wrapped_tensor(tensor):
        return tensor
    axis, inner = wrappers.maybe_get_bdim(tensor), wrappers.get_unwrapped(tensor)
    whole = taken_out(inner)
    before = whole.dim() - inner.dim()
    return whole if axis < 0 else whole.movedim(before + axis, 0)


def share_storage(one: object, other: object) -> bool:
    """Returns whether two values are tensors in one storage; sparse tensors have none."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    are_strided = one.layout is torch.strided and other.layout is torch.strided
    return are_strided and storage_key(one) == storage_key(other)


def move_fake(fake: Any, device: torch.device) -> None:
    """Moves a tensor without data to another device, in place, so that what shares its storage still does.

    A fake is on the device that this attribute says; nothing public changes it.
    """
    fake.fake_device = device


def fake_mode() -> Any:
    """Returns a mode in which tensors have no data; real ones that a model holds besides its state may meet them.

    Loops count in symbols; nothing else makes symbols here, as sizes are numbers and data decide nothing. Both classes
    live in private modules, or are not exported.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    symbols = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=symbols)


def forgetting_symbols() -> AbstractContextManager[Any]:
    """Returns a context in which nobody waits for the data-dependent (unbacked) symbols that ops make.

    What records a graph notes them with its nodes, and fake tensors ask that all of them are; here nothing is recorded.
    """
    from torch._guards import active_fake_mode

    mode: Any = active_fake_mode()
    return nullcontext() if mode is None or mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols()


def without_modes() -> AbstractContextManager[Any]:
    """Returns a context in which tensors are real again.

    Compilers are called under AOTAutograd's fake-tensor mode, which has no public way out.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def mode_of(graph: torch.fx.Graph) -> AbstractContextManager[Any]:
    """Returns the mode in which ops make fake tensors that belong with those of a graph."""
    fakes = (node.meta.get("example_value", node.meta.get("val")) for node in graph.nodes)
    return next((fake.fake_mode for fake in fakes if is_fake(fake)), nullcontext())


def fake_of(tensor: torch.Tensor, mode: Any) -> Any:
    """Returns the fake of a tensor in a mode; its sizes are numbers. The tensor itself where there is no mode."""
    return tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)


def number_in(tensor: torch.Tensor) -> bool | int | float:
    """Returns the number that a real tensor of one element holds, even under a fake mode, which forbids to read it.

    Graphs that torch traces hold such tensors as constants.
    """
    with without_modes():
        return tensor.item()
