"""``extern="error"``: which extern calls it refuses, what it says, and that no fallback hides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ferrite_torch import ExternRefused, OptionError, parse_options
from ferrite_torch.diagnostics.refusals import Fallback, is_refused

ASKED = {"extern": "error", "fallback": True}


def run(function: Callable[..., Any], *inputs: Tensor) -> Any:
    return torch.compile(function, backend="ferrite", options=ASKED)(*inputs)


def decomposed(x: Tensor) -> Tensor:
    values = torch.linalg.svdvals(x)  # the line that the message names
    return values.sin() + 1


def test_the_op_and_its_line_are_named_even_where_eager_could_serve() -> None:
    line = decomposed.__code__.co_firstlineno + 1
    with pytest.raises(Exception, match="extern calls where kernels were asked for") as caught:
        run(decomposed, torch.eye(3))
    causes = (caught.value, caught.value.__cause__, getattr(caught.value, "inner_exception", None))
    refused = next(error for error in causes if isinstance(error, ExternRefused))
    assert f"test_refusals.py:{line}" in str(refused)
    assert "aten._linalg_svd.default (no lowering)" in str(refused)
    assert "torch.compiler.disable" in str(refused)


def test_products_convolutions_and_attention_are_library_calls_by_design() -> None:
    x, kernel = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3)

    def model(x: Tensor, kernel: Tensor) -> Tensor:
        image = torch.conv2d(x, kernel).relu()
        return torch.nn.functional.scaled_dot_product_attention(image, image, image) @ image.mT

    torch.testing.assert_close(run(model, x, kernel), model(x, kernel))


def test_the_backward_is_held_to_it_too() -> None:
    x = torch.eye(3).requires_grad_()

    def forward(x: Tensor) -> Tensor:
        return Kept.apply(x)

    with pytest.raises(Exception, match=r"aten\._linalg_det|aten\.linalg_lu|extern calls where kernels"):
        run(forward, x).sum().backward()


class Kept(torch.autograd.Function):
    """Doubles; only its backward needs a library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * torch.linalg.det(x)


@pytest.mark.parametrize(
    ("op", "reason", "refused"),
    [
        ("aten.sort.default", "no lowering", True),
        ("prims.rev.default", "no lowering", True),
        ("aten.mm.default", "no lowering", False),
        ("mylib.sort.default", "no lowering", False),
        ("aten._to_copy.default", "elsewhere", False),
        ("aten._to_copy.default", "kernels do not compute with c64", True),
        ("aten.sin.default", "elsewhere", False),
    ],
)
def test_what_stands_for_a_missing_kernel(op: str, reason: str, *, refused: bool) -> None:
    assert is_refused(Fallback(op, reason, "aten.op"), "elsewhere") is refused


def test_the_option_takes_two_words() -> None:
    with pytest.raises(OptionError, match="'allow', 'error'"):
        parse_options(None, {"extern": "never"})
