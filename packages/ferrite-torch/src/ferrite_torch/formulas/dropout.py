"""Dropout that drops nothing: what it is given, as in eager mode, and no copy of it."""

from __future__ import annotations

import torch
from torch import Tensor


def dropout(x: Tensor, p: float, train: bool | None) -> Tensor:  # noqa: FBT001  # the signature of the op
    """Returns ``x`` itself where nothing is dropped, in inference or with a probability of 0.

    Torch's own pieces copy it, which a result that is returned, or written, tells from eager mode's.
    """
    if not train or p == 0:
        return x
    kept: Tensor = torch.ops.aten.native_dropout(x, p, train)[0]
    return kept
