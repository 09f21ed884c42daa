"""What models compute in: the type of weights and inputs, TF32, autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """What a model computes in.

    Attributes:
        weights: the type of weights, and of inputs that are no whole numbers.
        tf32: whether products and convolutions of float32 may round their operands to TF32.
        autocast: the type that torch's autocast computes products and convolutions in; none without it.
    """

    weights: torch.dtype
    tf32: bool = False
    autocast: torch.dtype | None = None

    @property
    def is_single(self) -> bool:
        """Whether all is computed in float32, so that eager's own error cannot be told in float32."""
        return self.weights == torch.float32 and not self.tf32 and self.autocast is None

    def allow_tf32(self) -> None:
        """Tells torch whether it may use TF32, for all that this process does from now on."""
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32

    def around(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """Returns the call, under autocast where this asks for it."""
        if self.autocast is None:
            return call

        @functools.wraps(call)
        def under_autocast(*inputs: Any) -> Any:
            with torch.autocast(device, self.autocast):
                return call(*inputs)

        return under_autocast


PRECISIONS = {
    "float32": Precision(torch.float32),
    "tf32": Precision(torch.float32, tf32=True),
    "bfloat16": Precision(torch.bfloat16),
    "float16": Precision(torch.float16),
    "autocast": Precision(torch.float32, autocast=torch.bfloat16),
}
"""By the name that ``--dtype`` has for it; ``autocast`` is that to bfloat16."""
