"""Memory of CUDA graphs that is lent: results that lie where a graph left them, until nobody holds them any more.

What a forward saves for its backward, gradients and results of inference are not copied out of the memory of their
graphs. Each call gives tensors of its own over that memory. They hold it as any tensor does, so it outlives the graphs
if need be; how many hold it tells when it may be written to again. Where it lies is known to all programs: those that
read it there do not hold it.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_lent: dict[int, int] = {}
"""Where lent tensors and their storages begin: how many say so."""


_readers: dict[int, list[Any]] = {}
"""Streams that read lent memory, by where its storage begins, as `Tensor.record_stream` was told."""


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


def readers_of(memories: Iterable[GraphMemory]) -> list[Any]:
    """Returns the streams that were said to read what some graphs lend since this was last asked, each once."""
    return list(dict.fromkeys(stream for memory in memories for stream in memory.readers())) if _readers else []


@functools.cache
def _hear_readers() -> None:
    """Has `Tensor.record_stream` note which streams read what is lent.

    torch's allocator takes the memory of a tensor back when these have come so far, but the memory of a graph is never
    given back to it: who plays the graph has to wait.
    """
    import torch

    theirs = torch.Tensor.record_stream

    @functools.wraps(theirs)
    def record_stream(self: Any, stream: Any) -> Any:
        if _lent and is_strided(self) and memory_of(self) in _lent:
            _readers.setdefault(memory_of(self), []).append(stream)
        return theirs(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign,assignment]


@dataclass(frozen=True, slots=True)
class Lending:
    """What a program lends, and what of others it counts on.

    Attributes:
        results: positions of the results that may be lent.
        calls: how many of its calls may be lent theirs at a time; those beyond get copies.
        static: positions of the inputs that stay where they are as long as they are the same tensors: parameters,
            buffers and constants.
        borrows: whether inputs are what another program lends once it is captured. Until then they are not, and may lie
            where they did by chance: a capture that reads them there would hold them, and with them what that program
            counts as lent.
    """

    results: tuple[int, ...] = ()
    calls: int = 0
    static: tuple[int, ...] = ()
    borrows: bool = False

    @property
    def is_nested(self) -> bool:
        """Whether calls are expected while earlier ones still hold what they were lent."""
        return self.calls > 1

    @property
    def depths(self) -> int:
        """Returns the depth from which on calls are lent nothing.

        Where one call at a time is lent its results, two take turns if each reads what the one before was lent, as
        layers in a row do.
        """
        return self.calls if self.is_nested else 2 * self.calls


NO_LENDING = Lending()


@dataclass(slots=True)
class _Storage:
    """A storage of a graph's own.

    torch counts Python's object of a storage once, whoever has it: so how many do is asked of Python.

    Attributes:
        object: Python's object of it.
        alone: how many hold the storage, by torch's count, as long as nobody has borrowed it.
        references: the same of the object, by Python's count.
    """

    object: Any
    alone: int
    references: int = 0

    def has_its_object_held(self) -> bool:
        """Tells whether somebody has Python's object of it."""
        return sys.getrefcount(self.object) > self.references


@dataclass(frozen=True, slots=True)
class Loan:
    """What a call lends.

    Attributes:
        places: where the storages begin.
        handles: of each storage of the memory's own, torch's handle.
        alone: how many hold it as long as nobody has borrowed it.
        shown: the storages whose objects a user may have, beside tensors.
    """

    places: frozenset[int] = frozenset()
    handles: tuple[Any, ...] = ()
    alone: tuple[int, ...] = ()
    shown: tuple[_Storage, ...] = ()


_NOTHING = Loan()


class GraphMemory:
    """The storages that the results of some graphs lie in, and which of them others hold as well.

    Who holds one is a tensor that was lent, a view of it, or autograd; the graphs themselves count once. Where
    ``is_shown`` says that users get what is lent, it may also be who has only the storage of a tensor.
    """

    def __init__(self, *, is_shown: bool = False) -> None:
        self.is_shown = is_shown
        self._storages: dict[int, _Storage | None] = {}
        self._loan = _NOTHING
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
                address = memory_of(value)
                self._storages.pop(address, None)  # it would be counted, too
                self._storages[address] = None if is_lent(address) else _storage_of(value)

    def owns(self, address: int) -> bool:
        """Tells whether the memory that begins at an address is not lent by others."""
        return self._storages[address] is not None

    def keep(self, tensors: Iterable[Any]) -> None:
        """Counts tensors over storages of its own among those that hold them as long as nobody has borrowed them."""
        for tensor in tensors:
            storage = self._storages[memory_of(tensor)]
            assert storage is not None, "it is of its own"
            storage.alone += 1

    def loan(self, addresses: Iterable[int]) -> Loan:
        """Returns the loan of the storages that begin at these addresses."""
        places = frozenset(addresses)
        found = [storage for storage in map(self._storages.__getitem__, places) if storage is not None]
        handles, alone = tuple(each.object._cdata for each in found), tuple(each.alone for each in found)
        return Loan(places, handles, alone, tuple(found) if self.is_shown else ())

    def lend(self, loan: Loan) -> None:
        """Counts what a call lends among the storages that others may hold."""
        before = self._loan.places
        self._loan = loan if before <= loan.places else self.loan(before | loan.places)

    def tell(self, tensors: Iterable[Any]) -> None:
        """Lets all programs know, once, where tensors that are lent lie."""
        if self._told:
            return
        _hear_readers()
        for tensor in tensors:
            if self.find(tensor) is not None:
                self._told += {int(tensor.data_ptr()), memory_of(tensor)}
        for address in self._told:
            _lent[address] = _lent.get(address, 0) + 1

    def lends_at(self, addresses: Iterable[int]) -> bool:
        """Tells whether something that it lends begins at one of some addresses."""
        return not set(self._told).isdisjoint(addresses)

    def readers(self) -> list[Any]:
        """Returns the streams that were said to read what is lent since this was last asked."""
        places = [address for address in _readers if address in self._storages]
        return [stream for address in places for stream in _readers.pop(address)]

    def is_held(self) -> bool:
        """Tells whether somebody holds what was lent since this was last denied."""
        loan = self._loan
        if any(map(operator.gt, map(_counter(), loan.handles), loan.alone)):
            return True
        if any(map(_Storage.has_its_object_held, loan.shown)):
            return True
        self._loan = _NOTHING
        return False


def _storage_of(value: Any) -> _Storage:
    """Returns what is counted of the storage of a tensor that nobody has borrowed."""
    found = _Storage(value.untyped_storage(), 0)
    found.alone, found.references = _counter()(found.object._cdata), sys.getrefcount(found.object)
    return found


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
            _readers.pop(address, None)
