"""Tensors that kernels cannot read as they lie: complex ones, pending conjugations and negations, sparse ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
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


@pytest.mark.parametrize("function", [lambda x: x * 2j, lambda x: x / 2j, lambda x: (x * x.sum()) * (1 - 1j)])
def test_gradients_of_products_with_complex_numbers(function: Function) -> None:
    given, expected = (numbers(4).requires_grad_() for _ in range(2))
    given.data.copy_(expected.data)
    compiled(function, fullgraph=True)(given).abs().sum().backward()
    function(expected).abs().sum().backward()
    torch.testing.assert_close(given.grad, expected.grad)
    assert "lowering failed" not in str(ferrite_torch.statistics()["externs"])


def scaled_in_place(x: Tensor, y: Tensor) -> Any:
    before = x.clone()
    x.mul_(y)
    return before + x, x[0] * 2


def written_as_real_pairs(x: Tensor, y: Tensor) -> Any:
    torch.view_as_real(x).mul_(2).add_(torch.view_as_real(y))
    return x


def written_by_parts(x: Tensor, y: Tensor) -> Any:
    x.real.add_(1)
    x.imag.mul_(y.real)
    return x.abs()


def written_through_a_view(x: Tensor, y: Tensor) -> Any:
    x.T[1:].add_(y.T[1:])
    return x.T + 1, x.sum()


def read_by_a_view_before(x: Tensor, y: Tensor) -> Any:
    view = x.T
    x.mul_(2)
    return view + 1, view


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scaled": scaled_in_place,
    "as real pairs": written_as_real_pairs,
    "by parts": written_by_parts,
    "through a view": written_through_a_view,
    "read by a view": read_by_a_view_before,
    "conjugate": lambda x, y: (x.copy_(y.conj()), x * 2),
    "one row for all": lambda x, y: x.copy_(y[0]),
    "from itself": lambda x, y: (x.copy_(x.flip(0)), y * x),
}


@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
@pytest.mark.parametrize("name", WRITES)
def test_complex_inputs_are_written(name: str, layout: str) -> None:
    def laid_out(x: Tensor) -> Tensor:
        if layout == "rows":
            return x.clone()
        return x.T.clone().T if layout == "columns" else x.new_zeros(8, 8)[::2, ::2].copy_(x)

    start, y = numbers(4, 4), laid_out(numbers(4, 4))
    written, wanted = laid_out(start), laid_out(start)
    eager = WRITES[name](wanted, y)
    torch.testing.assert_close(compiled(WRITES[name])(written, y), eager)
    torch.testing.assert_close(written, wanted)


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
