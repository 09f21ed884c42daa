"""What eager refuses, and tensors without data let through: checks, types, and what the backend does then."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import zeros
from torch._subclasses.fake_tensor import FakeTensorMode

import ferrite_torch
from ferrite_torch.errors import Refused
from ferrite_torch.torch_private.fake_tensors import fake_mode
from ferrite_torch.validation.dtypes import dtype_problem
from ferrite_torch.validation.observing import check_call
from ferrite_torch.validation.ranges import is_number_of
from ferrite_torch.validation.registry import CHECKS, checks, problem_of
from ferrite_torch.validation.writes import write_problem

aten = torch.ops.aten


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="ferrite", **options)


def error_of(function: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001
        return error
    return None


EMPTY_PLACES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda x, places: x.gather(0, places),
    "scatter a number": lambda x, places: (x * 2).scatter(0, places, 1.0),
    "scatter": lambda x, places: (x * 2).scatter(0, places, zeros(0)),
    "scatter_add": lambda x, places: (x * 2).scatter_add(0, places, zeros(0)),
    "scatter_reduce": lambda x, places: (x * 2).scatter_reduce(0, places, zeros(0), "sum"),
}


class TestTable:
    def test_names_are_ops(self) -> None:
        for name in CHECKS:
            packet, _, overload = name.partition(".")
            names = (packet, f"{packet}_")
            found = [getattr(aten, each) for each in names if hasattr(aten, each)]
            assert found, name
            assert not overload or any(overload in each.overloads() for each in found), name

    def test_a_name_is_entered_once(self) -> None:
        with pytest.raises(ValueError, match=r"index_put has a check already, in ferrite_torch\.validation\.indexing"):
            checks("index_put")(CHECKS["take"])

    def test_ops_that_write_have_the_check_of_those_that_do_not(self) -> None:
        args = (zeros(8), [torch.arange(8)], zeros(2))
        for op in (aten.index_put.default, aten.index_put_.default):
            assert "cannot be broadcast to indexing result of shape [8]" in str(problem_of(op, args, {}))

    def test_masks_are_as_large_as_the_dims_that_they_take_the_place_of(self) -> None:
        x, rows, columns = zeros(3, 4), torch.ones(3, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
        for indices in ([rows], [None, columns], [x > 0], [rows, torch.tensor([0])], [rows, columns]):
            assert problem_of(aten.index_put.default, (x, indices, zeros(1)), {}) is None
            assert problem_of(aten.index.Tensor, (x, indices), {}) is None
        for indices in ([columns], [None, rows], [x[:, :3] > 0], [columns, torch.tensor([0])]):
            assert "The shape of the mask" in str(problem_of(aten.index_put.default, (x, indices, zeros(1)), {}))
            assert "The shape of the mask" in str(problem_of(aten.index.Tensor, (x, indices), {}))

    def test_values_fit_the_dims_that_a_mask_keeps_and_any_number_of_what_it_chooses(self) -> None:
        x, rows = zeros(3, 4), torch.ones(3, dtype=torch.bool)
        for values in (zeros(4), zeros(2, 4), zeros(2, 1), zeros(1, 3, 4)):
            assert problem_of(aten.index_put.default, (x, [rows], values), {}) is None
        for values in (zeros(3), zeros(2, 3), zeros(2, 3, 4)):
            assert "cannot be broadcast to" in str(problem_of(aten.index_put.default, (x, [rows], values), {}))
        assert problem_of(aten.index_put.default, (x, [x > 0], zeros(7)), {}) is None
        assert problem_of(aten.index_put.default, (x, [x > 0], zeros(2, 7)), {}) is not None

    def test_arguments_are_found_by_position_name_and_default(self) -> None:
        assert problem_of(aten.normal_.default, (zeros(2), 0.0), {"std": -1.0}) is not None
        assert problem_of(aten.normal_.default, (zeros(2),), {}) is None

    def test_ops_without_a_check_pass(self) -> None:
        assert problem_of(aten.sin.default, (zeros(2),), {}) is None


class TestTypes:
    def test_the_op_itself_says_which_types_it_takes(self) -> None:
        assert "not implemented for" in str(dtype_problem(aten.ceil.default, (zeros(2).bool(),), {}))
        assert dtype_problem(aten.ceil.default, (torch.arange(2),), {}) is None

    def test_sizes_do_not_matter(self) -> None:
        with fake_mode():
            x = torch.empty(1 << 40, dtype=torch.int64)
        assert "not implemented for" in str(dtype_problem(aten._softmax.default, (x, 0, False), {}))

    @pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
    @pytest.mark.parametrize("op", [aten.add.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.cat.default])
    def test_few_kernels_take_wide_unsigned_integers(self, op: Any, dtype: torch.dtype) -> None:
        x = torch.ones(3, dtype=dtype)
        args: tuple[Any, ...] = ([x, x],) if op is aten.cat.default else (x, x)
        assert (dtype_problem(op, args, {}) is None) is (error_of(op, *args) is None)

    @pytest.mark.parametrize("op", [aten.add.Tensor, aten.mul.Scalar, aten.lt.Tensor, aten.lt.Scalar], ids=str)
    def test_few_kernels_take_floats_of_eight_bits(self, op: Any) -> None:
        x = torch.ones(3, dtype=torch.float8_e5m2)
        args = (x, 2.0 if op in (aten.mul.Scalar, aten.lt.Scalar) else x)
        assert "not implemented for" in str(dtype_problem(op, args, {}))
        assert dtype_problem(aten._to_copy.default, (x,), {"dtype": torch.float32}) is None

    @pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn], ids=str)
    @pytest.mark.parametrize("op", [aten.add.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.remainder.Tensor], ids=str)
    def test_types_that_are_promoted_to_no_other(self, op: Any, dtype: torch.dtype) -> None:
        rare, common = torch.ones(3, dtype=dtype), torch.ones(3, dtype=torch.int32)
        for args in ((rare, common), (common, rare)):
            assert str(dtype_problem(op, args, {})).startswith("Promotion for")

    def test_ops_that_ask_for_three_elements_get_them(self) -> None:
        x = torch.ones(3, dtype=torch.uint16)
        assert "not implemented for" in str(dtype_problem(aten.linalg_cross.default, (x, x), {}))

    def test_what_is_written_in_place_takes_the_type_of_the_result(self) -> None:
        real, turned = zeros(2), torch.full((2,), 1j)
        for op, args in (
            (aten.add_.Tensor, (real, turned)),
            (aten.mul_.Tensor, (real, 1j)),
            (aten._foreach_add_.List, ([real], [turned])),
            (aten._foreach_mul_.Scalar, ([torch.arange(2)], 1.5)),
        ):
            assert "can't be cast to the desired output type" in str(dtype_problem(op, args, {}))
        assert dtype_problem(aten.mul_.Tensor, (turned, 1j), {}) is None
        assert dtype_problem(aten.mul.Tensor, (real, 1j), {}) is None
        assert dtype_problem(aten._foreach_mul_.Scalar, ([real], 1.5), {}) is None

    def test_numbers_of_another_kind_than_the_operands(self) -> None:
        assert "Boolean alpha" in str(dtype_problem(aten.add.Tensor, (zeros(2), zeros(2)), {"alpha": True}))
        assert "floating point number" in str(
            dtype_problem(aten.add.Tensor, (zeros(2) > 0, zeros(2) > 0), {"alpha": 1.5})
        )
        assert "bool tensor" in str(dtype_problem(aten.sub.Tensor, (zeros(2), True), {}))
        assert dtype_problem(aten.mul.Tensor, (torch.arange(2), 1.5), {}) is None
        assert dtype_problem(aten.mul.Tensor, (zeros(2), True), {}) is None

    def test_complex_numbers_that_kernels_of_cpus_lack_are_for_gpus(self) -> None:
        turned = torch.full((2,), 1j)
        assert "does not support complex" in str(dtype_problem(aten.nansum.default, (turned,), {}))
        with FakeTensorMode():
            elsewhere = torch.empty(2, dtype=torch.complex64, device="cuda")
        if not torch.cuda.is_available():  # one that is there is asked
            assert dtype_problem(aten.nansum.default, (elsewhere,), {}) is None

    def test_integers_that_kernels_of_cpus_lack_are_for_gpus(self) -> None:
        assert "not implemented for" in str(dtype_problem(aten.histc.default, (torch.arange(4), 4, 0, 3), {}))
        with FakeTensorMode():
            elsewhere = torch.empty(4, dtype=torch.int32, device="cuda")
        assert dtype_problem(aten.histc.default, (elsewhere, 4, 0, 3), {}) is None

    def test_only_numbers_of_elements_are_made_small(self) -> None:
        assert dtype_problem(aten.unfold.default, (torch.arange(4), 0, 2, 1), {}) is None
        chebyshev = aten.special_chebyshev_polynomial_t.default
        assert dtype_problem(chebyshev, (zeros(3), torch.arange(3)), {}) is None
        assert dtype_problem(aten.polygamma.default, (3, torch.arange(1, 3)), {}) is None

    def test_what_is_no_matter_of_types_is_not_its_business(self) -> None:
        assert dtype_problem(aten.view.default, (torch.arange(4), [3]), {}) is None
        assert dtype_problem(aten.glu.default, (zeros(3),), {}) is None

    def test_random_ops_are_asked_and_the_generator_stays_as_it_was(self) -> None:
        state = torch.get_rng_state()
        assert "not implemented for" in str(dtype_problem(aten.rand.default, ([1 << 40],), {"dtype": torch.int64}))
        assert dtype_problem(aten.bernoulli.default, (torch.arange(4).double(),), {}) is None
        assert "not implemented for" in str(dtype_problem(aten.uniform_.default, (torch.arange(4),), {}))
        bounds = (300, [1 << 40]), {"dtype": torch.uint8}
        assert dtype_problem(aten.randint.default, *bounds) == "to - 1 is out of bounds for unsigned char"
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize(
        ("op", "args", "kwargs"),
        [
            (aten.full.default, ([1 << 40], 300), {"dtype": torch.uint8}),
            (aten.full.default, ([2], 1e39), {}),
            (aten.fill_.Scalar, (torch.zeros(2, dtype=torch.int8), -129), {}),
            (aten.masked_fill.Scalar, (zeros(2).half(), zeros(2).bool(), -1e9), {}),
            (aten.add.Tensor, (torch.zeros(2, dtype=torch.int8), torch.zeros(2, dtype=torch.int8)), {"alpha": 300}),
            (aten.full_like.default, (torch.arange(2), float("nan")), {}),
        ],
    )
    def test_numbers_that_a_type_does_not_have(self, op: Any, args: Any, kwargs: Any) -> None:
        assert str(dtype_problem(op, args, kwargs)).endswith("without overflow")

    def test_numbers_that_it_has_and_those_that_a_wider_type_computes_with(self) -> None:
        half, small = zeros(2).half(), torch.zeros(2, dtype=torch.int8)
        assert dtype_problem(aten.masked_fill.Scalar, (half, zeros(2).bool(), -float("inf")), {}) is None
        assert dtype_problem(aten.masked_fill.Scalar, (half, zeros(2).bool(), torch.finfo(half.dtype).min), {}) is None
        assert dtype_problem(aten.add.Tensor, (half, 1e9), {}) is None
        assert dtype_problem(aten.add.Tensor, (small, 300), {}) is None
        assert dtype_problem(aten.fill_.Scalar, (small.to(torch.uint8), -1), {}) is None

    @pytest.mark.parametrize(("dtype", "value"), [("uint8", -255), ("int8", 127), ("half", 65504.0), ("bool", 9)])
    def test_the_ranges_are_those_of_the_types(self, dtype: str, value: float) -> None:
        kind = getattr(torch, dtype)
        assert is_number_of(kind, value)
        assert kind is torch.bool or not is_number_of(kind, value + (1 if value > 0 else -1) * max(1, abs(value) // 9))

    @pytest.mark.parametrize(
        ("op", "args", "out"),
        [
            (aten.sort.values, (zeros(3),), {"values": zeros(3), "indices": zeros(3)}),
            (aten.bucketize.Tensor_out, (zeros(3), zeros(2)), {"out": zeros(3)}),
            (aten.rand.out, ([3],), {"out": torch.arange(3)}),
            (aten.multinomial.out, (zeros(3), 1), {"out": zeros(1)}),
            (aten.bmm.out, (zeros(1, 2, 2), zeros(1, 2, 2)), {"out": zeros(1, 2, 2).double()}),
        ],
    )
    def test_results_are_written_to_tensors_of_their_type(self, op: Any, args: Any, out: Any) -> None:
        assert dtype_problem(op, args, out) is not None


class TestBackend:
    def test_eager_s_own_error_is_raised_at_the_call(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return x.index_select(0, torch.zeros(0, 3, dtype=torch.int64))

        ferrite_torch.reset_statistics()
        error, expected = error_of(compiled(f), zeros(0)), error_of(f, zeros(0))
        assert type(error) is type(expected) is IndexError
        assert str(error) == str(expected)
        assert not ferrite_torch.statistics()["graphs"]

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32, torch.int32], ids=str)
    @pytest.mark.parametrize("name", EMPTY_PLACES)
    def test_no_places_may_be_of_any_type(self, name: str, dtype: torch.dtype) -> None:
        call, places = compiled(EMPTY_PLACES[name], options={"fallback": False}), zeros(0, dtype=dtype)
        x = torch.rand(5, requires_grad=True)
        found, expected = call(x, places), EMPTY_PLACES[name](x, places)
        torch.testing.assert_close(found, expected)
        (gradient,), (wanted,) = (torch.autograd.grad(result.sum(), x) for result in (found, expected))
        torch.testing.assert_close(gradient, wanted)

    def test_what_eager_takes_after_all_runs_eagerly_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(CHECKS, "sin", lambda **_: iter([(False, "sines are refused here")]))
        ferrite_torch.reset_statistics()
        x = torch.randn(3)
        call = compiled(torch.sin)
        assert torch.equal(call(x), x.sin())
        assert torch.equal(call(x), x.sin())
        (fallback,) = ferrite_torch.statistics()["fallbacks"]
        assert "sines are refused here" in str(fallback)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="sines are refused here"):
            compiled(torch.sin, options={"fallback": False})(x)

    def test_sizes_that_change_are_conditions(self) -> None:
        def f(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.slice_scatter(x * 2, v + 1, 0, 0, 4)

        call = compiled(f, dynamic=True)
        for columns in (3, 5):
            x, v = torch.randn(8, columns), torch.randn(4, columns)
            torch.testing.assert_close(call(x, v), f(x, v))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert isinstance(error_of(call, zeros(8, 5), zeros(4, 4)), RuntimeError)

    def test_nothing_is_refused_of_gradients(self) -> None:
        x = torch.rand(4, 5, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(F.cross_entropy)(x, torch.tensor([0, 4, 1, 1])), x)
        (expected,) = torch.autograd.grad(F.cross_entropy(x, torch.tensor([0, 4, 1, 1])), x)
        torch.testing.assert_close(gradient, expected)

    def test_exporting_refuses_at_once(self) -> None:
        with pytest.raises(Refused, match="smooth_l1_loss does not support negative values for beta"):
            ferrite_torch.export(lambda x, y: F.smooth_l1_loss(x, y, beta=-1.0), (zeros(2), zeros(2)), targets=["cpu"])


class TestWrites:
    @pytest.mark.parametrize("op", [aten.atan2_.default, aten.pow_.Tensor, aten.eq_.Tensor, aten.clamp_.Tensor])
    def test_results_are_as_large_as_what_they_are_written_to(self, op: Any) -> None:
        assert "doesn't match the broadcast shape" in str(write_problem(op, (zeros(2), zeros(3, 2)), {}))
        assert "doesn't match the broadcast shape" in str(write_problem(op, (zeros(2), zeros(1, 2)), {}))
        assert write_problem(op, (zeros(3, 2), zeros(2)), {}) is None
        assert write_problem(op, (zeros(3, 2), zeros(3, 1)), {}) is None

    def test_ops_that_make_a_tensor_are_not_asked(self) -> None:
        assert write_problem(aten.atan2.default, (zeros(2), zeros(3, 2)), {}) is None

    @pytest.mark.parametrize("op", [aten.add_.Tensor, aten.copy_.default, aten.mul_.Tensor])
    def test_what_is_written_is_not_still_to_be_read(self, op: Any) -> None:
        x = zeros(6)
        for one, other in ((x[1:], x[:-1]), (x[:4], x[2:]), (x.view(2, 3), x.view(3, 2).t())):
            assert (write_problem(op, (one, other), {}) is None) is (error_of(op, one, other) is None)
        for one, other in ((x, x), (x[:3], x[3:]), (x[::2], x[1::2]), (x, zeros(6)), (x[:0], x[:0])):
            assert error_of(op, one, other) is None
            assert write_problem(op, (one, other), {}) is None

    def test_graphs_that_do_are_refused_at_the_call(self) -> None:
        def shifted(x: torch.Tensor) -> torch.Tensor:
            x[1:].add_(x[:-1])
            return x

        for dynamic in (None, True):
            torch._dynamo.reset()
            assert isinstance(error_of(compiled(shifted, dynamic=dynamic), zeros(5)), RuntimeError)


def test_a_call_is_refused_with_the_op_that_refuses_it() -> None:
    with pytest.raises(Refused, match=r"aten.put.default: put_\(\): Expected source and index"):
        check_call(aten.put.default, (zeros(3), torch.arange(3), zeros(2)), {})


def test_types_are_asked_of_operands_that_repeat_elements_as_the_given_ones_do() -> None:
    x, flip = torch.zeros(1, dtype=torch.uint32), torch.ops.aten.flip.default
    for given in (x.expand(2), torch.zeros(2, dtype=torch.uint32)):
        try:
            flip(given, [0])
            said = None
        except (NotImplementedError, RuntimeError) as error:
            said = str(error)
        assert dtype_problem(flip, (given, [0]), {}) == said


@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile])
def test_quantiles_look_at_their_places(function: Callable[..., torch.Tensor]) -> None:
    x = torch.rand(3, 4, requires_grad=True)
    call = compiled(lambda x, places: function(x, places, 1), options={"fallback": False})
    for places in (torch.tensor([0.0, 0.3, 1.0]), torch.tensor([0.2, 0.2, 0.9], requires_grad=True)):
        found, expected = call(x, places), function(x, places, 1)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients)
    for wrong in (-1e-6, 1.0001, float("nan")):
        places = torch.tensor([0.5, wrong, 0.0])
        assert isinstance(error_of(function, x, places, 1), RuntimeError)
        assert isinstance(error_of(call, x, places), RuntimeError)
