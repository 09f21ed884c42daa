"""Memory of CUDA graphs that is lent: results that lie where a graph left them, until nobody holds them any more.

What a forward saves for its backward is not copied out of the memory of its graphs. Each call gives tensors of its own
over that memory. They hold it as any tensor does, so it outlives the graphs if need be; how many hold it tells when it
may be written to again. Where it lies is known to all programs: those that read it there do not hold it.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_lent: dict[int, int] = {}
"""Where lent tensors and their storages begin: how many say so."""


def is_lent(address: int) -> bool:
    """Tells whether a tensor that is lent, or its storage, begins at an address."""
    return address in _lent


def lent_among(addresses: Iterable[int]) -> tuple[int, ...]:
    """Returns those of some addresses at which a tensor begins that is lent."""
    return tuple(filter(_lent.__contains__, addresses)) if _lent else ()


def is_strided(value: Any) -> bool:
    """Tells whether a value is a tensor that has a storage."""
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def memory_of(tensor: Any) -> int:
    """Returns the address at which the storage of a tensor begins."""
    return int(tensor.untyped_storage().data_ptr())


lent_view: Callable[[Any], Any] = operator.attrgetter("data")
"""Returns a tensor over a value's storage: no copy, but with its own version."""


def is_gone(tensor: Any) -> Callable[[], bool]:
    """Returns what tells whether the storage of a tensor has been given back, without holding it."""
    from torch.multiprocessing.reductions import StorageWeakRef

    reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return lambda: bool(reference.expired())  # type: ignore[no-untyped-call]


class GraphMemory:
    """The storages that the results of some graphs lie in, and which of them others hold as well.

    Who holds one is a tensor that was lent, a view of it, or autograd; the graphs themselves count once.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Any, int]] = {}
        self._held: set[int] = set()
        self._told: list[int] = []
        weakref.finalize(self, _withdraw, self._told)

    def find(self, value: object) -> int | None:
        """Returns where the storage of a value begins if it is of this memory, else None."""
        address = memory_of(value) if is_strided(value) else None
        return address if address in self._storages else None

    def add(self, results: Iterable[Any]) -> None:
        """Notes the memory of a graph's results, which nobody but the graph holds yet, unless others lend it."""
        for value in results:
            if is_strided(value):
                storage = value.untyped_storage()
                address = int(storage.data_ptr())
                self._storages[address] = (None, 0) if is_lent(address) else (storage, _counter()(storage._cdata))

    def lend(self, addresses: Iterable[int]) -> None:
        """Counts the storages that begin at these addresses among those that others may hold."""
        self._held.update(addresses)

    def tell(self, tensors: Iterable[Any]) -> None:
        """Lets all programs know, once, where tensors that are lent lie."""
        if self._told:
            return
        for tensor in tensors:
            if self.find(tensor) is not None:
                self._told += {int(tensor.data_ptr()), memory_of(tensor)}
        for address in self._told:
            _lent[address] = _lent.get(address, 0) + 1

    def is_held(self) -> bool:
        """Tells whether somebody holds what was lent since this was last denied."""
        count = _counter()
        for address in self._held:
            storage, alone = self._storages[address]
            if storage is not None and count(storage._cdata) > alone:
                return True
        self._held = set()
        return False


@functools.cache
def _counter() -> Callable[[int], int]:
    """Returns what counts the tensors and others that hold a storage, given torch's handle of it.

    Private, because torch offers it nowhere else; its own graphs ask the same.
    """
    import torch

    count: Callable[[int], int] = torch._C._storage_Use_Count
    return count


def _withdraw(addresses: list[int]) -> None:
    for address in addresses:
        _lent[address] -= 1
        if not _lent[address]:
            del _lent[address]
