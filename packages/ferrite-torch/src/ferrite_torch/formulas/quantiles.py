"""Quantiles at places that a tensor has: a place that is none is an element of a table that there is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def within_the_line(pieces: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns ``quantile`` or ``nanquantile`` made of torch's pieces, which looks at the places on the CPU, as eager.

    The pieces look at them where they have data, which a graph that is being captured has not.
    """

    def quantiles(x: Tensor, places: Tensor, *options: Any, **named: Any) -> Tensor:
        if places.device.type == "cpu":
            is_none = ~((places >= 0) & (places <= 1))
            nothing = places.new_zeros(1).index_select(0, is_none.long().reshape(-1))
            places = places + nothing.view(places.shape)
        return pieces(x, places, *options, **named)

    return quantiles
