"""Tensors that kernels cannot read as they lie: complex ones, pending conjugations and negations, sparse ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled, compiled_or_eager, own_only

Function = Callable[[Tensor], Any]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def spread_of_conjugate(x: Tensor) -> Tensor:
    row = x[:, 0].conj()
    return torch.view_as_real(row.unsqueeze(-2) - row.unsqueeze(-1))


CASES: dict[str, Function] = {
    "views of a conjugate": spread_of_conjugate,
    "imaginary part of a conjugate": lambda x: x.conj().imag * 2,
    "adjoint product": lambda x: torch.view_as_real(x.mH @ x),
    "conjugate of a result": lambda x: ((x * 2).conj(), x * 2),
    "conjugate of the input": lambda x: x.conj(),
    "no elements": lambda x: torch.view_as_real(x[:0].conj().clone()),
    "slice written into zeros": lambda x: torch.view_as_real(x.new_zeros(3, 5, 5).slice_scatter(x, 1, 1, 4)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("start", [torch.resolve_conj, torch.conj])
def test_complex_values_are_those_of_eager(name: str, start: Function) -> None:
    x = start(numbers(3, 3, 5))
    eager, actual = CASES[name](x), compiled(CASES[name], fullgraph=True)(x)
    torch.testing.assert_close(actual, eager)


def test_an_input_to_be_negated_on_reading_is_read_negated() -> None:
    x = numbers(3, 4).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(compiled_or_eager(lambda x: x * 2 + 1)(x), x * 2 + 1)


def test_gradient_of_a_padded_fourier_transform() -> None:
    x = torch.randn(5, 6, requires_grad=True)

    def spectrum(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.fft.rfft(x, n=10))

    weights = torch.randn(5, 6, 2)
    wanted = torch.autograd.grad((spectrum(x) * weights).sum(), x)
    found = torch.autograd.grad((compiled(spectrum)(x) * weights).sum(), x)
    torch.testing.assert_close(found, wanted)


@own_only("the message is ours")
def test_sparse_input_is_refused_by_name() -> None:
    from ferrite_torch import Unsupported, ferrite

    module = torch.fx.symbolic_trace(lambda x: x.to_dense() + 1)
    with pytest.raises(Unsupported, match=r"layout torch\.sparse_coo"):
        ferrite(module, [torch.eye(4).to_sparse()], options={"fallback": False})


@pytest.mark.parametrize("function", [lambda x: x.to_sparse().values() * 2, lambda x: (x + 1).to_sparse()])
def test_sparse_results_run_eagerly(function: Function) -> None:
    x = torch.eye(4)
    eager, actual = function(x), compiled_or_eager(function)(x)
    assert actual.layout == eager.layout
    torch.testing.assert_close(actual, eager)


def test_memory_that_overlaps_itself_can_be_allocated() -> None:
    def allocate(x: Tensor) -> Tensor:
        return x.new_empty_strided((3, 2, 2), (1, 2, 3))

    eager, actual = allocate(torch.ones(2)), compiled(allocate, fullgraph=True)(torch.ones(2))
    assert actual.shape == eager.shape
    assert actual.stride() == eager.stride()


def test_coins_until_the_first_head_vary_for_integers() -> None:
    def flip(x: Tensor) -> Tensor:
        return x.clone().geometric_(0.5)

    torch.manual_seed(0)
    counts = compiled(flip, fullgraph=True)(torch.zeros(4096, dtype=torch.int64))
    assert counts.min() == 1
    assert abs(counts.double().mean() - 2) < 5 * 2**0.5 / 64  # five standard errors
    assert abs((counts == 1).double().mean() - 0.5) < 5 * 0.5 / 64


@pytest.mark.parametrize("base", [2.0, 3.0, 10.0])
def test_whole_powers_stay_whole(base: float) -> None:
    def powers() -> Tensor:
        return torch.logspace(0, 8, 9, base, dtype=torch.int64)

    assert compiled(powers, fullgraph=True)().tolist() == [int(base) ** k for k in range(9)]
