"""The checks of operators notice what is wrong, and only that."""

from __future__ import annotations

import pytest
import torch

from op_calls import Call
from op_checks import judge
from op_programs import Dispatched
from op_references import PRECISE, wrong_choice
from op_samples import prepare_sample

TIES = torch.tensor([[3, 1, 3, 2], [5, 5, 5, 5]])


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([[0, 2], [1, 3]], None),
        ([[2, 0], [3, 1]], None),
        ([[0, 0], [1, 3]], "a place twice"),
        ([[0, 1], [1, 3]], "a place that holds another value"),
        ([[0, 2], [1, 4]], "a place outside of 0 to 3"),
        ([[0, 2], [1, -1]], "a place outside of 0 to 3"),
    ],
)
def test_places_of_equal_values_are_open(places: list[list[int]], problem: str | None) -> None:
    call = Call.of(torch.topk, (TIES, 2), {"dim": 1})
    values, _ = call.run(TIES)
    assert wrong_choice("topk", call, values, torch.tensor(places)) == problem


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_place_of_one_value_is_open(*, keepdim: bool) -> None:
    call = Call.of(torch.kthvalue, (TIES, 2, 0), {"keepdim": keepdim})
    values, places = call.run(TIES)
    assert wrong_choice("kthvalue", call, values, places) is None
    assert wrong_choice("kthvalue", call, values, 1 - places) == "a place that holds another value"


def test_a_number_alone_stands_at_zero() -> None:
    x = torch.tensor(7)
    call = Call.of(torch.topk, (x, 1), {})
    values, place = call.run(x)
    assert wrong_choice("topk", call, values, place) is None
    assert wrong_choice("topk", call, values, place + 1) is not None


def test_precise_functions_have_digits_that_torch_lacks() -> None:
    # Abramowitz and Stegun, table 9.1: J0(2) = 0.22389 07791 41235 668.
    x = torch.tensor([2.0], dtype=torch.float64)
    assert PRECISE["special.bessel_j0"](x).item() == pytest.approx(0.223890779141235668, rel=1e-15)
    assert PRECISE["special.bessel_y1"](-x).isnan().all()
    assert PRECISE["polygamma"](torch.ones(1), 1).item() == pytest.approx(torch.pi**2 / 6, rel=1e-15)


def test_torch_itself_would_not_pass_where_its_float64_is_coarse() -> None:
    x = torch.linspace(0.1, 9.0, 40, dtype=torch.float64)
    call = Call.of(torch.special.bessel_j0, (x,), {})
    sample = prepare_sample(call, "forward", Dispatched(), "special.bessel_j0")
    assert sample is not None
    assert judge(sample, [[PRECISE["special.bessel_j0"](x), x]], is_undefined=False) is None
    problem = judge(sample, [[torch.special.bessel_j0(x), x]], is_undefined=False)
    assert problem is not None
    assert "error" in problem
