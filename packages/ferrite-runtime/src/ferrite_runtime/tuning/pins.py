"""Pins: choices of configs in a file that people review, keep beside their code, and may edit."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import NotPinned, SpecError, UnknownFormat
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import Divisors, take_divisors
from ferrite_runtime.formats.json_fields import Fields
from ferrite_runtime.formats.measurements import Measurement, Situation, choose_measurement
from ferrite_runtime.process.files import read_file_bytes

FORMAT = "ferrite-pins/1"


@dataclass(frozen=True, slots=True)
class Pin:
    """A config for a kernel; fields that are None fit everything.

    Attributes:
        kernel: id of the kernel.
        config: what it runs with.
        name: of the kernel, for people.
        device: name of the GPU model.
        bucket: sizes rounded up to powers of two.
        divisors: powers of two that divide size params, by position.
        ms: what was measured, for people; None if nothing was.
    """

    kernel: str
    config: Config
    name: str = ""
    device: str | None = None
    bucket: tuple[tuple[str, int], ...] | None = None
    divisors: Divisors | None = None
    ms: float | None = None

    @property
    def scope(self) -> tuple[Any, ...]:
        """What it is for: no two pins of a file have the same."""
        return self.kernel, self.device, self.bucket, self.divisors

    def fitness(self, situation: Situation) -> int | None:
        """Returns how many fields of the pin say that it is for a situation; None if one says that it is not."""
        given = (self.device, situation.device), (self.bucket, situation.bucket), (self.divisors, situation.divisors)
        if self.kernel != situation.kernel or any(own is not None and own != other for own, other in given):
            return None
        return sum(own is not None for own, _ in given)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form, in the order in which people read it."""
        sizes = None if self.bucket is None else dict(self.bucket)
        divisors = None if self.divisors is None else [list(pair) for pair in self.divisors]
        values: dict[str, Any] = {
            "name": self.name or None,
            "kernel": self.kernel,
            "device": self.device,
            "sizes": sizes,
        }
        values |= {"divisors": divisors, "config": self.config.to_mapping(), "ms": self.ms}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_mapping(cls, value: object, path: str) -> Pin:
        """Returns the pin in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        given = fields.names()
        bucket = None
        if "sizes" in given:
            inner = Fields(fields.take("sizes"), fields.at("sizes"))
            bucket = tuple(sorted((name, inner.integer(name)) for name in inner.names()))
        ms = fields.take("ms", None)
        if ms is not None and (not isinstance(ms, (int, float)) or isinstance(ms, bool) or not math.isfinite(ms)):
            raise SpecError(fields.at("ms"), f"milliseconds are needed, not {ms!r}")
        pin = cls(
            fields.string("kernel"),
            Config.from_mapping(fields.take("config"), fields.at("config"), free=True),
            fields.string("name") if "name" in given else "",
            fields.string("device") if "device" in given else None,
            bucket,
            take_divisors(fields) if "divisors" in given else None,
            ms,
        )
        fields.close()
        return pin

    @classmethod
    def of_measurement(cls, record: Measurement) -> Pin:
        """Returns the pin that holds on to the choice in a record, for its device and sizes."""
        where, ms = record.situation, record.ms if math.isfinite(record.ms) else None
        return cls(where.kernel, record.config, where.name, where.device, where.bucket, where.divisors, ms)


class PinFile:
    """The pins of a file; with ``must_pin`` a kernel without one is an error."""

    def __init__(self, pins: Iterable[Pin], path: str = "pins", *, must_pin: bool = False) -> None:
        self.pins = tuple(pins)
        self.path = path
        self.must_pin = must_pin
        self._by_kernel: dict[str, list[Pin]] = {}
        for pin in self.pins:
            self._by_kernel.setdefault(pin.kernel, []).append(pin)

    def choice(self, situation: Situation) -> Config | None:
        """Returns the config of the pin that says the most about a situation, or None.

        Raises:
            NotPinned: there is none, and there has to be one.
        """
        fits = [
            (fitness, -position, pin)
            for position, pin in enumerate(self._by_kernel.get(situation.kernel, ()))
            if (fitness := pin.fitness(situation)) is not None
        ]
        if fits:
            return max(fits, key=lambda row: row[:2])[2].config
        if self.must_pin:
            raise NotPinned(self._explain(situation))
        return None

    def _explain(self, situation: Situation) -> str:
        sizes = ", ".join(f"{name} up to {size}" for name, size in situation.bucket) or "any sizes"
        name = f"{situation.name} ({situation.kernel[:12]})" if situation.name else situation.kernel[:12]
        others = self._by_kernel.get(situation.kernel, ())
        known = f"; it is pinned for {'; '.join(map(_describe, others[:3]))}" if others else ""
        return f"kernel {name} has no pinned choice for {situation.device} and {sizes} in {self.path}{known}"


def _describe(pin: Pin) -> str:
    sizes = "all sizes" if pin.bucket is None else ", ".join(f"{name} up to {size}" for name, size in pin.bucket)
    return f"{pin.device or 'all devices'} and {sizes or 'any sizes'}"


def read_pins(path: Path) -> tuple[Pin, ...]:
    """Returns the pins in a file.

    Raises:
        FileUnreadable: there is no such file, or it may not be read.
        SpecError: it is no JSON, or a field is wrong.
        UnknownFormat: it is of another format.
    """
    try:
        value = json.loads(read_file_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise SpecError(str(path), f"is no JSON: {error}") from error
    fields = Fields(value, str(path))
    form = fields.take("format", None)
    if form != FORMAT:
        raise UnknownFormat(fields.at("format"), f"{str(form)[:40]!r} is unknown; this runtime reads {FORMAT}")
    pins = tuple(Pin.from_mapping(each, f"{path}.pins[{i}]") for i, each in enumerate(fields.array("pins")))
    fields.close()
    scopes: set[object] = set()
    for position, pin in enumerate(pins):
        if pin.scope in scopes:
            raise SpecError(f"{path}.pins[{position}]", "an earlier pin is for the same kernel, device and sizes")
        scopes.add(pin.scope)
    return pins


def write_pins(pins: Iterable[Pin]) -> str:
    """Returns the text of a file of pins: a line each, in a fixed order, so that a change is a line of a diff."""
    lines = [json.dumps(pin.to_mapping()) for pin in sorted(pins, key=_order)]
    listed = ",\n".join(f"    {line}" for line in lines)
    return f'{{\n  "format": "{FORMAT}",\n  "pins": [\n{listed}\n  ]\n}}\n' if lines else _EMPTY


_EMPTY = f'{{\n  "format": "{FORMAT}",\n  "pins": []\n}}\n'


def _order(pin: Pin) -> tuple[str, ...]:
    return pin.name, *map(repr, pin.scope)


def pin_choices(measurements: Iterable[Measurement]) -> tuple[Pin, ...]:
    """Returns a pin for each situation in which a config was chosen: by measurement, or without one by policy."""
    situations: dict[tuple[Any, ...], list[Measurement]] = {}
    for record in measurements:
        if record.is_chosen:
            situations.setdefault(Pin.of_measurement(record).scope, []).append(record)
    chosen = (choose_measurement(records) or max(records, key=_recency) for records in situations.values())
    return tuple(sorted(map(Pin.of_measurement, chosen), key=_order))


def _recency(record: Measurement) -> tuple[int, str]:
    return record.when, record.key


@functools.cache
def load_pins(path: Path | None, *, must_pin: bool) -> PinFile | None:
    """Returns the pins that a process was told to use; read once.

    Raises:
        SpecError: the file does not read: pins are never silently ignored.
    """
    if path is None:
        return PinFile((), "FERRITE_PINS, which names no file", must_pin=True) if must_pin else None
    return PinFile(read_pins(path), str(path), must_pin=must_pin)
