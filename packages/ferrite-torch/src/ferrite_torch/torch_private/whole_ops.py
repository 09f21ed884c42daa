"""Ops that autograd sees whole, so that the gradients of resampling, losses and scans are ops too.

And one of ours: the loss of a linear layer, whose gradients are computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ferrite_torch.formulas.chunked_losses import Order, chunked_loss
from ferrite_torch.formulas.dropout import dropout
from ferrite_torch.formulas.one_hot import one_hot
from ferrite_torch.formulas.quantiles import within_the_line
from ferrite_torch.formulas.scan_gradients import cumprod_gradient
from ferrite_torch.torch_private.attention import attention_in_graph
from ferrite_torch.torch_private.operators import HigherOrderOp, Overload

_WHOLE = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa multilabel_margin_loss_forward softshrink
    hardshrink
"""


@contextmanager
def keeping_ops_whole() -> Iterator[None]:
    """Makes autograd see some ops as what they are, so that their gradients are ops too.

    torch decomposes these in Python before autograd looks at them; no table of decompositions changes that, only the
    functions that it entered for these dispatch keys, which exporting a model sets aside in the same way. The gradients
    of the pieces of a resampling are scatters, the pieces of the multilabel loss count targets that are none, and those
    of ``softshrink`` have no gradient at NaN. The forms that take a size or scales for all axes (``vec``) become the
    others: what torch's library has in the place takes no symbolic size.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    packets = (getattr(torch.ops.aten, name, None) for name in _WHOLE.split())
    ops = [getattr(packet, o) for packet in packets if packet is not None for o in ("default", "vec")
           if o in packet.overloads()]  # fmt: skip
    taken = [(op, key, op.py_kernels.pop(key)) for op in ops for key in keys if key in op.py_kernels]
    meta = torch._C.DispatchKey.Meta
    fakes = {op: fake for op, fake in _gradients_of(ops) if meta not in op.py_kernels}
    pieces = {op: function for op, key, function in taken if key == torch._C.DispatchKey.Autograd}
    for op, key, _ in taken:
        if op._overloadname == "vec" and key == torch._C.DispatchKey.CompositeImplicitAutograd:
            whole = op.overloadpacket.default
            op.py_kernels[key] = _resampled_by(whole, pieces.get(whole, whole))
        op._dispatch_cache.clear()
    for op, fake in fakes.items():
        op.py_kernels[meta] = fake
        op._dispatch_cache.clear()
    try:
        with taking_apart_as_ours():
            yield
    finally:
        for op, key, function in taken:
            op.py_kernels[key] = function
            op._dispatch_cache.clear()
        for op in fakes:
            del op.py_kernels[meta]
            op._dispatch_cache.clear()


@contextmanager
def taking_apart_as_ours() -> Iterator[None]:
    """Makes some ops that torch's library decomposes itself, before anything sees them, decompose in our way.

    The library's gradient of a cumulative product has several pieces for every element of a line, and its ``one_hot``
    does not look at what it is given (before torch 2.13), or asserts in calls of their own. Torch's ``dropout`` copies
    where it drops nothing. Its quantiles look at their places in eager mode only.
    """
    composite, autograd = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd
    ours: dict[tuple[Overload, Any], Callable[..., Any]] = {
        (torch.ops.aten.cumprod_backward.default, composite): cumprod_gradient,
        (torch.ops.aten.one_hot.default, composite): one_hot,
        (torch.ops.aten.dropout.default, composite): dropout,
        (torch.ops.aten.dropout.default, autograd): dropout,
    }
    for op in (torch.ops.aten.quantile.default, torch.ops.aten.nanquantile.default):
        ours |= dict.fromkeys(((op, composite), (op, autograd)), within_the_line(partial(op._op_dk, composite)))
    with _in_place_of_torchs(ours):
        yield


@contextmanager
def keeping_attention_whole() -> Iterator[None]:
    """Makes attention one op of a graph that is traced without gradients, whoever calls it.

    The library would choose one of its kernels for the device that is traced on. Modes of functions are off inside of
    the functions that they see first, such as ``multi_head_attention_forward``.
    """
    op, keys = torch.ops.aten.scaled_dot_product_attention.default, torch._C.DispatchKey
    with _in_place_of_torchs(
        {(op, key): attention_in_graph for key in (keys.CompositeImplicitAutograd, keys.Autograd)}
    ):
        yield


@contextmanager
def recurrence_by_library() -> Iterator[None]:
    """Has torch's library take LSTMs apart: the states that its Python returns have a dim too many in torch 2.11."""
    with _in_place_of_torchs(
        {
            (torch.ops.aten.lstm.input, key): None
            for key in (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
        }
    ):
        yield


@contextmanager
def _in_place_of_torchs(ours: Mapping[tuple[Overload, Any], Callable[..., Any] | None]) -> Iterator[None]:
    """Makes ops run our functions for these dispatch keys, or, for None, what the library has there."""
    theirs = {(op, key): op.py_kernels.get(key) for op, key in ours}
    try:
        for (op, key), pieces in ours.items():
            _enter(op, key, pieces)
        yield
    finally:
        for (op, key), kernel in theirs.items():
            _enter(op, key, kernel)


def _enter(op: Overload, key: Any, kernel: Callable[..., Any] | None) -> None:
    """Makes an op run a function for a dispatch key, or what its library has there."""
    if kernel is None:
        op.py_kernels.pop(key, None)
    else:
        op.py_kernels[key] = kernel
    op._dispatch_cache.clear()


def _gradients_of(ops: Iterable[Overload]) -> Iterator[tuple[Overload, Callable[..., torch.Tensor]]]:
    """Yields the ops that compute the gradients of others, each with a function of what its result looks like."""
    for op in ops:
        name = op._schema.name.removeprefix("aten::").removesuffix("_forward")
        packet = getattr(torch.ops.aten, f"{name}_backward", None)
        if packet is not None and op._overloadname == "default":
            yield packet.default, _resampling_gradient if "upsample" in name else _gradient_of_loss


def _resampling_gradient(grad: torch.Tensor, output_size: Any, input_size: Any, *options: Any) -> torch.Tensor:
    """Returns what the gradient of a resampling looks like: the library's own such function takes no symbolic size."""
    format_ = torch.channels_last if grad.dim() == 4 and _lies_by_channels(grad) else torch.contiguous_format
    return grad.new_empty(input_size).to(memory_format=format_)


def _gradient_of_loss(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Returns what the gradient of a loss looks like, for one that the library runs on zeros to see it."""
    return x.new_empty(x.shape)


def _lies_by_channels(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _resampled_by(op: Overload, pieces: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a resampling to a size, or by scales, for all axes; ``op`` takes the size, and a scale for each axis.

    Of a batch without images the ``pieces`` of the op do it: its own check of an empty image asks a symbolic number for
    its truth.
    """

    def resampled(x: torch.Tensor, size: Any, *options: Any) -> Any:
        *corners, scales = options
        rank = x.dim() - 2
        if size is None:
            size = [
                torch.sym_int(extent * scale)  # type: ignore[no-untyped-call]
                for extent, scale in zip(x.shape[2:], scales, strict=True)
            ]
        resample = pieces if type(x.shape[0]) is int and x.shape[0] == 0 else op
        return resample(x, size, *corners, *(scales or [None] * rank))

    return resampled


class _LinearLoss(HigherOrderOp):
    """``ferrite_linear_loss(rows, hidden, weight, bias, by_row, shared, (chunk, padded))``: see `chunked_loss`.

    An op that takes a function, so that a captured graph that calls it has a key; what traces that graph sees the
    chunks, and their gradients.
    """

    def __init__(self) -> None:
        super().__init__(LINEAR_LOSS)  # type: ignore[no-untyped-call]

    def __call__(self, *operands: Any) -> Any:
        """Returns the loss, a tensor of one number."""
        ops = getattr(torch.ops, LOSSES)
        return chunked_loss(*operands, order=Order(ops.beside.default, ops.after.default))


LINEAR_LOSS = "ferrite_linear_loss"
LOSSES = "ferrite_losses"
BESIDE = f"{LOSSES}.beside.default"
"""The op that is its first operand, and needs the others: what a forward computes for its backward stays there."""
AFTER = f"{LOSSES}.after.default"
"""The op that is its first operand once the others are made."""

_library: Any = torch.library.Library(LOSSES, "DEF")  # type: ignore[no-untyped-call]
_library.define("beside(Tensor loss, Tensor[] gradients) -> Tensor")
_library.define("after(Tensor x, Tensor[] earlier) -> Tensor")
_library.impl("after", lambda x, earlier: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake(f"{LOSSES}::after", lambda x, earlier: torch.empty_like(x), lib=_library)
_library.impl("beside", lambda loss, gradients: loss.clone(), "CompositeExplicitAutograd")
torch.library.register_fake(f"{LOSSES}::beside", lambda loss, gradients: torch.empty_like(loss), lib=_library)

linear_loss = _LinearLoss()
