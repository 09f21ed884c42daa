"""Results that torch conjugates or negates when they are read: ``v.conj()``, and the ``imag`` of that.

    v = x * 2                   a storage
    return v, v.conj()          both lie in it; the second is a view with a mark, the conjugate bit

Kernels read memory and know no marks: programs return a plain view of the storage, and the mark is put on it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ferrite_torch.torch_private.operators import negated_view


@dataclass(frozen=True, slots=True)
class LazyResult:
    """A result whose elements are what its storage holds only up to a conjugation or a sign.

    Attributes:
        position: which of the results it is.
        is_conjugated, is_negated: what is done to an element when it is read.
    """

    position: int
    is_conjugated: bool
    is_negated: bool

    def marked(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a view of a tensor that says so."""
        tensor = tensor.conj() if self.is_conjugated else tensor
        return negated_view(tensor) if self.is_negated else tensor

    def to_record(self) -> list[int]:
        """Returns the JSON form."""
        return [self.position, int(self.is_conjugated), int(self.is_negated)]

    @classmethod
    def from_record(cls, record: Sequence[int]) -> LazyResult:
        """Returns the mark in its JSON form.

        Raises:
            TypeError, ValueError: it is none.
        """
        position, is_conjugated, is_negated = map(int, record)
        return cls(position, bool(is_conjugated), bool(is_negated))
