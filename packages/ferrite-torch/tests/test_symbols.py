"""Torch's symbolic integers as sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ferrite_ir.language import sizes
from ferrite_torch.sizes.size_names import input_name, named
from ferrite_torch.sizes.symbol_tables import note_inputs
from ferrite_torch.sizes.symbolic_sizes import scaled_size, size_of


@pytest.mark.parametrize(
    "function",
    [lambda n: math.ceil(n / 32) * 32, lambda n: math.floor(n / 7), lambda n: n // 3 + n % 3, lambda n: (n + 1) * n],
)
def test_size_is_what_torch_computes(function: Callable[[Any], Any]) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC])
    length = mode.from_tensor(torch.empty(17), symbolic_context=context).shape[0]
    found, symbol = size_of(function(length)), size_of(length)
    for number in (2, 6, 7, 31, 32, 33, 64, 1000):
        assert sizes.evaluate(found, {str(symbol): number}) == function(number)


SHORT = (0.1, 0.2, 0.3, 0.5, 0.6, 1.25, 1.7, 2.5, 1 / 3, 4 / 7)
OTHERS = (0.7, 1.4, 0.123456789, math.pi)


@pytest.mark.parametrize("scale", [*SHORT, *OTHERS])
def test_a_scaled_size_is_what_floats_give(scale: float) -> None:
    """A scale that rounds otherwise than the fraction it is short for, as 0.7 does at 90, is left to torch."""
    symbol = sizes.symbol("s0", 2, None, 17)
    found = scaled_size(symbol, scale)
    numbers = [*range(2, 3000), *(2**power + part for power in range(12, 40) for part in range(-70, 71))]
    if found is None:  # the walk over a graph fixes the size
        assert scale in OTHERS
    else:
        for number in numbers:
            assert sizes.evaluate(found, {"s0": number}) == int(number * scale), number


def test_equal_products_are_written_in_symbols_that_the_inputs_of_a_graph_tell() -> None:
    """As of tokens and labels: one graph gets the tokens, another the labels, a third both, a fourth only rows."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    tokens, labels = (mode.from_tensor(torch.empty(size), symbolic_context=context) for size in ((3, 8), (4, 6)))
    products = [size.shape[0] * size.shape[1] for size in (tokens, labels)]
    assert size_of(products[0]) is not size_of(products[1])
    assert products[0] == products[1], "torch guards it"
    for inputs, wanted in (([tokens], 0), ([labels], 1), ([*labels.shape], 1), ([tokens], 0)):
        note_inputs(inputs)
        found = [size_of(product) for product in products]
        assert found[0] is found[1]
        assert sizes.symbols_of(found[0]) == {str(size_of(size)) for size in (tokens, labels)[wanted].shape}
    note_inputs([tokens, labels])
    assert size_of(products[0]) is size_of(products[1])
    with mode:
        note_inputs([torch.empty(products[0])])
    assert size_of(products[0]) is not size_of(products[1]), "its inputs tell neither"


def test_names_of_inputs() -> None:
    assert input_name("L['x'].size()[0]") == "x.shape[0]"
    assert input_name("L['args'][0].stride()[1]") == "args[0].stride(1)"
    assert input_name("L['self']._modules['norm']._buffers['mean'].size()[2]") == "self.norm.mean.shape[2]"
    assert named("s7*4 + s70", {"s7": "x.shape[0]"}) == "x.shape[0]*4 + s70"
