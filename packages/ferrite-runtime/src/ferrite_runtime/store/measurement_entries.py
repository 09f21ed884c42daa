"""Measurements among the entries of a store: read, listed, and removed where they do not read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.formats.measurements import RECORDS, Measurement
from ferrite_runtime.store.interface import Store, unseal_record

_LOG = logging.getLogger("ferrite_runtime")


def load_measurement(store: Store, key: str) -> Measurement | None:
    """Returns the measurement with a key; one that does not read is logged, removed, and counts as absent."""
    data = store.load(RECORDS, key)
    return None if data is None else read_measurement(store, key, data)


def scan_measurements(store: Store, prefix: str = "") -> Iterator[Measurement]:
    """Yields the measurements whose keys begin so, as those of one situation do; all, without a prefix."""
    for key, data in store.scan(RECORDS, prefix):
        record = read_measurement(store, key, data)
        if record is not None:
            yield record


def read_measurement(store: Store, key: str, data: bytes) -> Measurement | None:
    """Returns the measurement in an entry; one that does not read is logged, removed, and counts as absent."""
    try:
        return Measurement.from_mapping(unseal_record(data))
    except (CorruptEntry, SpecError, ValueError, RecursionError) as error:
        _LOG.warning("measurement %s does not read and was removed: %s", key[:12], error)
        store.remove(RECORDS, key)
        return None
