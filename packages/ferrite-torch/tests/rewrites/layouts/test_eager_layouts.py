"""Strides of traced results are those of eager mode, for pointwise and other ops on operands of unlike layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.rewrites.decompositions import decomposition_table

Function = Callable[..., Any]
SHAPE = (2, 4, 3, 5)


def rising(*shape: int) -> torch.Tensor:
    return torch.linspace(1.25, 2.25, torch.Size(shape).numel()).view(shape)


LAYOUTS: Mapping[str, torch.Tensor] = {
    "contiguous": rising(*SHAPE),
    "transposed": rising(5, 3, 4, 2).permute(3, 2, 1, 0),
    "swapped": rising(2, 4, 5, 3).transpose(2, 3),
    "channels last": rising(*SHAPE).contiguous(memory_format=torch.channels_last),
    "expanded": rising(1, 4, 1, 5).expand(SHAPE),
    "sliced": rising(2, 4, 6, 5)[:, :, ::2],
    "sliced and transposed": rising(5, 6, 4, 2).permute(3, 2, 1, 0)[:, :, ::2],
    "channels last, of more channels": rising(2, 7, 3, 5).contiguous(memory_format=torch.channels_last)[:, 2:6],
    "a number": torch.tensor(1.5),
    "a row": rising(5),
    "a column": rising(4, 1, 1),
    "broadcast and transposed": rising(5, 3, 4, 1).permute(3, 2, 1, 0),
}
BROADCAST = ("a number", "a row", "a column")
PAIRS = [(one, other) for one in LAYOUTS for other in LAYOUTS if not (one in BROADCAST and other in BROADCAST)][::3]

_OF_TWO = """
    add atan2 complex copysign div eq float_power floor_divide fmax fmin fmod ge gt heaviside hypot isclose ldexp le
    logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul ne nextafter polar pow remainder
    rsub sub true_divide xlogy
"""
OF_TWO: dict[str, Function] = {name: getattr(torch, name) for name in _OF_TWO.split()}
OF_TWO |= {
    "xlog1py": torch.special.xlog1py,
    "zeta": torch.special.zeta,
    "floor of a quotient": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "whole part of a quotient": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "where": lambda a, b: torch.where(a > 1.5, a, b),
    "where, a number": lambda a, b: torch.where(a > 1.5, b, 2.0),
    "addcmul": lambda a, b: torch.addcmul(a, b, a),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, a),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp by a tensor": lambda a, b: torch.lerp(a, a, b),
    "clamp": lambda a, b: torch.clamp(a, b, b + 1),
    "clamp above": lambda a, b: torch.clamp(a, max=b),
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "l1": lambda a, b: F.l1_loss(a, b, reduction="none"),
    "smooth l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "cross entropy of probabilities": lambda a, b: F.binary_cross_entropy(a / 4, b / 4, reduction="none"),
    "cross entropy of logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
    "divergence": lambda a, b: F.kl_div(a, b, reduction="none"),
    "soft margin": lambda a, b: F.soft_margin_loss(a, b, reduction="none"),
    "masked_fill": lambda a, b: torch.masked_fill(a, b > 1.5, 2.0),
    "masked_fill by a tensor": lambda a, b: torch.masked_fill(a, b > 1.5, torch.tensor(2.0)),
    "gcd": lambda a, b: torch.gcd(a.int(), b.int()),
    "bits in common": lambda a, b: a.int() & b.int(),
    "shifted": lambda a, b: a.int() << b.int(),
    "whole floor_divide": lambda a, b: a.int() // b.int(),
    "whole and fraction": lambda a, b: a.int() + b,
    "gradient of tanh": torch.ops.aten.tanh_backward,
    "gradient of gelu": torch.ops.aten.gelu_backward,
    "gradient of silu": torch.ops.aten.silu_backward,
    "gradient of logit": torch.ops.aten.logit_backward,
    "gradient of a threshold": lambda a, b: torch.ops.aten.threshold_backward(a, b, 1.5),
    "gradient of dropout": lambda a, b: torch.ops.aten.native_dropout_backward(a, b > 1.5, 2.0),
    "igamma": torch.igamma,
    "copied": lambda a, b: a.clone().copy_(b),
    "masked": lambda a, b: (a > b) * a,
}

_OF_ONE = """
    abs angle bernoulli ceil celu clone conj_physical deg2rad digamma empty_like erf exp frac isfinite isnan lgamma log
    log1p logical_not nan_to_num neg ones_like positive rand_like reciprocal relu round rsqrt selu sgn sigmoid sign
    signbit sin sinc sqrt square tanh trunc zeros_like
"""
OF_ONE: dict[str, Function] = {name: getattr(torch, name) for name in _OF_ONE.split()}
OF_ONE |= {
    name: getattr(F, name)
    for name in (
        "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
        "relu6", "silu", "softplus", "softshrink", "softsign", "tanhshrink",
    )
}  # fmt: skip
OF_ONE |= {
    "argmax": lambda x: x.argmax(-1, keepdim=True),
    "average pool": lambda x: F.avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "cummax": lambda x: x.cummax(0),
    "cumsum": lambda x: x.cumsum(0),
    "flip": lambda x: x.flip(0),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "half": lambda x: x.half(),
    "index": lambda x: x[torch.tensor([0, 1])],
    "index_add": lambda x: x.index_add(0, torch.tensor([0]), x[:1]),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([0]), x[:1]),
    "index_fill": lambda x: x.index_fill(-1, torch.tensor([0]), 2.0),
    "index_fill by a tensor": lambda x: x.index_fill(-1, torch.tensor([0]), torch.tensor(2.0)),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), torch.tensor(1.0)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 1])),
    "isin": lambda x: torch.isin(x, torch.tensor([1.5])),
    "joined": lambda x: torch.cat((x, x), 0),
    "largest": lambda x: x.topk(2, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "max": lambda x: x.max(0, keepdim=True),
    "max pool": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "mean": lambda x: x.mean((1, -1), keepdim=True),
    "power of a number": lambda x: 2**x,
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "roll": lambda x: x.roll(1, -1),
    "scatter": lambda x: x.scatter(0, torch.zeros_like(x, dtype=torch.int64), x),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, 1),
    "slice_scatter": lambda x: x.slice_scatter(x[:1], 0, 1, 2),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1),
    "stack": lambda x: torch.stack((x, x), -1),
    "sum": lambda x: x.sum(0, keepdim=True),
    "to channels last": lambda x: x.to(memory_format=torch.channels_last),
    "var": lambda x: x.var(1, keepdim=True),
}


def check_strides(functions: Mapping[str, Function], operands: tuple[torch.Tensor, ...], mode: str) -> None:
    """Fails unless the functions that these operands have, traced for the compiler, give results as eager mode does."""
    expected: dict[str, Any] = {}
    for name, function in functions.items():
        try:
            expected[name] = function(*operands)
        except (IndexError, RuntimeError, ValueError, UserWarning):  # no such function of these shapes
            continue

    def together(*values: torch.Tensor) -> list[Any]:
        return [value for name in expected for value in several(functions[name](*values))]

    table = decomposition_table(stays_whole)
    traced = make_fx(together, table, tracing_mode=mode, _allow_non_fake_inputs=True)(*operands)
    results = iter([node.meta["val"] for node in traced.graph.output_node().args[0]])
    for name, values in expected.items():
        for value in several(values):
            assert strides(next(results)) == strides(value), name


def several(results: Any) -> tuple[torch.Tensor, ...]:
    """Returns the results of a function that has one or more."""
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def strides(x: torch.Tensor) -> list[int]:
    """Returns the strides of dims longer than 1; of symbolic ones, what they are for the operands traced with."""
    numbers = zip(x.shape, x.stride(), strict=True)
    return [int(step) for size, step in numbers if int(size) != 1 and x.numel() != 0]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_strides_of_functions_of_two(one: str, other: str) -> None:
    check_strides(OF_TWO, (LAYOUTS[one], LAYOUTS[other]), "fake")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_of_functions_of_one(layout: str) -> None:
    check_strides(OF_ONE, (LAYOUTS[layout],), "fake")


@pytest.mark.parametrize(("one", "other"), PAIRS[::8])
def test_strides_of_functions_of_two_with_symbolic_sizes(one: str, other: str) -> None:
    check_strides(OF_TWO, (LAYOUTS[one], LAYOUTS[other]), "symbolic")


def test_strides_of_functions_of_two_where_one_has_dims_of_extent_1_far_apart() -> None:
    """A stride of an extent of 1 counts, unless the other operand makes the extent longer."""
    one = torch.tensor([1.25, 1.5]).as_strided((2, 1, 1, 1), (1, 6, 8, 4))
    check_strides(OF_TWO, (one, rising(2, 1, 1)), "fake")
    check_strides(OF_TWO, (rising(2, 1, 1), one), "fake")


INDICES: Mapping[str, torch.Tensor] = {
    "a row": torch.arange(3) % 2,
    "transposed": (torch.arange(6) % 2).view(3, 2).t(),
    "packed": (torch.arange(6) % 2).view(2, 3),
    "expanded": (torch.arange(3) % 2).expand(2, 3),
    "a column": (torch.arange(2) % 2).view(2, 1),
    "of axes in another order": (torch.arange(24) % 2).view(4, 3, 2).permute(2, 0, 1),
    "of axes far apart": (torch.arange(24) % 2).as_strided((2, 1, 3), (1, 7, 4)),
}
INDEXING: dict[str, Function] = {
    "first": lambda x, i, j: x[i],
    "last": lambda x, i, j: x[..., i],
    "in the middle": lambda x, i, j: x[:, i],
    "two": lambda x, i, j: x[:, i, j],
    "two, the second decides": lambda x, i, j: x[:, j, i],
    "two apart": lambda x, i, j: x[:, i, :, j],
    "first and last": lambda x, i, j: x[i, :, :, j],
    "all": lambda x, i, j: x[i, j, i, j],
    "of a line": lambda x, i, j: x.reshape(-1)[i],
    "unsafe": lambda x, i, j: torch.ops.aten._unsafe_index(x, [None, i, j]),
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels last", "expanded", "sliced and transposed"])
@pytest.mark.parametrize("index", INDICES)
def test_strides_of_what_tensors_index(index: str, layout: str, mode: str) -> None:
    for other in INDICES.values() if mode == "fake" else [INDICES["transposed"]]:
        check_strides(INDEXING, (LAYOUTS[layout], INDICES[index], other), mode)


def of_32_bits(places: torch.Tensor) -> torch.Tensor:
    """Returns the same places in 32 bits, which lie as they did."""
    elements = places.untyped_storage().nbytes() // places.element_size()
    return places.as_strided((elements,), (1,)).int().as_strided(places.shape, places.stride())


@pytest.mark.parametrize("index", INDICES)
def test_strides_of_what_indices_of_fewer_bits_take(index: str) -> None:
    """They are expanded before they are converted, and are dense then."""
    narrow = of_32_bits(INDICES[index])
    for other in INDICES.values():
        check_strides(INDEXING, (LAYOUTS["contiguous"], narrow, of_32_bits(other)), "fake")
        check_strides(INDEXING, (LAYOUTS["transposed"], narrow, other), "fake")


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("shape", [(3, 2, 1), (3, 1, 2), (2, 1, 3, 1, 1)], ids=str)
def test_strides_where_axes_beside_those_that_tensors_index_have_one_element(
    shape: tuple[int, ...], index: str, mode: str
) -> None:
    """Eager views the indices with such axes, and their strides there count."""
    places, functions = INDICES[index], {"first": lambda x, i: x[i], "second": lambda x, i: x[:, i % x.shape[1]]}
    check_strides(functions, (rising(*shape), places), mode)
    check_strides(functions, (rising(*shape).transpose(0, -1).contiguous().transpose(0, -1), places), mode)


def test_strides_of_shifts_where_operands_have_dims_of_extent_1_far_apart() -> None:
    shifts = {"left": lambda a, b: a << b, "right": lambda a, b: a >> b}
    one, other = torch.ones(9, dtype=torch.int32).as_strided((5, 1, 1), (1, 5, 5)), torch.ones(2, 1, dtype=torch.int32)
    check_strides(shifts, (one, other.as_strided((2, 1), (1, 2))), "fake")
    check_strides(shifts, (other.as_strided((2, 1), (1, 2)), one), "fake")


@pytest.mark.parametrize("dynamic", [False, True])
def test_operands_that_are_expanded_are_dense_once_they_are_converted(*, dynamic: bool) -> None:
    whole = torch.arange(5, dtype=torch.int32).as_strided((2, 3, 1), (4, 0, 11))
    column = torch.randn(3).as_strided((3, 1), (1, 3))

    def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y - x

    torch._dynamo.reset()
    compiled = torch.compile(difference, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    found, expected = compiled(whole, column), difference(whole, column)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
