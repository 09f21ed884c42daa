"""Which config a kernel runs with, as far as somebody knows: pinned, agreed between ranks, or measured before."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import RECORDS, Measurement, Situation, choose_measurement, merge
from ferrite_runtime.store.interface import Store, save_record
from ferrite_runtime.store.measurement_entries import read_measurement, scan_measurements

_LOG = logging.getLogger("ferrite_runtime")


class Pins(Protocol):
    """Choices that people made."""

    def choice(self, situation: Situation) -> Config | None:
        """Returns the pinned config; raises `NotPinned` if there is none and there has to be one."""


class Agreement(Protocol):
    """How several processes come to the same choice."""

    def settle(self, situation: Situation, decide: Callable[[], Config | None]) -> Config | None:
        """Returns the choice that all of them take; one of them decides."""


def no_measurements(kernel: str) -> Sequence[Measurement]:
    """Returns what came with a kernel where nothing came."""
    return ()


@dataclass(frozen=True, slots=True)
class Choices:
    """What is known of the configs of kernels.

    Attributes:
        store: where measurements are kept.
        seeds: returns measurements that came with a kernel, by its id.
        pins: choices that go before any measurement.
        agreement: with the other ranks of a distributed program.
    """

    store: Store
    seeds: Callable[[str], Sequence[Measurement]] = no_measurements
    pins: Pins | None = None
    agreement: Agreement | None = None

    def prefetch(self, situations: Iterable[Situation]) -> None:
        """Brings near what was measured in situations that will be asked for, where a part of the store is far."""
        self.store.prefetch(RECORDS, prefixes=(situation.key for situation in situations))

    def pinned(self, situation: Situation) -> Config | None:
        """Returns the config that people chose, or None.

        Raises:
            NotPinned: every kernel has to be pinned, this one is not.
        """
        return self.pins.choice(situation) if self.pins else None

    def recall(self, situation: Situation) -> Config | None:
        """Returns the config that is known to be the choice, or None; where ranks have to agree only a pin is known.

        Raises:
            NotPinned: every kernel has to be pinned, this one is not.
        """
        pinned = self.pinned(situation)
        if pinned is not None or self.agreement is not None:
            return pinned
        return self._remembered(situation)

    def settle(self, situation: Situation, decide: Callable[[], Config | None]) -> Config | None:
        """Returns the config to run with: the known one, or what ``decide`` measures; the same one on all ranks.

        ``decide`` adds what it measured by itself; it returns None to put the decision off. What is taken is recorded
        even if nothing was measured, so that it can be pinned; such a record is no choice to recall.
        """
        known = self.recall(situation)
        if known is not None:
            return known
        if self.agreement is None:
            taken = decide()
        else:
            taken = self.agreement.settle(situation, lambda: self._remembered(situation) or decide())
        if taken is not None:
            self._note(situation, taken)
        return taken

    def measured(self, situation: Situation) -> tuple[Measurement, ...]:
        """Returns what was measured in a situation, one measurement for each config, in a fixed order."""
        found = [record for record in self.seeds(situation.kernel) if record.situation == situation]
        found += [record for record in scan_measurements(self.store, situation.key) if record.situation == situation]
        return merge(found)

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Keeps measurements; those of other configs, and of other situations, stay."""
        for record in measurements:
            save_record(self.store, RECORDS, record.key, record.to_mapping())

    def _note(self, situation: Situation, taken: Config) -> None:
        """Records a choice that no measurement here says: policy's own, or another rank's. It can be pinned then."""
        measured = {record.config: record for record in self.measured(situation)}
        if any(record.is_chosen and record.config == taken for record in measured.values()):
            return
        unmeasured = Measurement(situation, taken, math.inf, math.inf, math.inf, 0)
        when = max([int(time.time()), *(record.when + 1 for record in measured.values())])
        self.add([replace(measured.get(taken, unmeasured), is_chosen=True, when=when)])

    def _remembered(self, situation: Situation) -> Config | None:
        if self.seeds(situation.kernel):
            best = choose_measurement(self.measured(situation))
        else:
            # One of ten records says what was chosen; a program asks for hundreds of kernels before it runs.
            entries = self.store.scan(RECORDS, situation.key)
            chosen = [read_measurement(self.store, key, data) for key, data in entries if _may_be_chosen(data)]
            best = choose_measurement(record for record in chosen if record and record.situation == situation)
        return None if best is None else best.config


def _may_be_chosen(data: bytes) -> bool:
    """Tells, without reading a measurement, whether it may be of a config that was chosen."""
    return b'"chosen":true' in data.replace(b" ", b"")
