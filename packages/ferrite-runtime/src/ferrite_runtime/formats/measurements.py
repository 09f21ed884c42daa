"""Measurements of kernels as data: what a store keeps, a bundle carries, and a pin file states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.canonical_json import digest, dump_canonical
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import Divisors, take_divisors
from ferrite_runtime.formats.json_fields import Fields

RECORDS = "records"
"""The kind of measurements in a store."""
POLICY = 1
"""Raised whenever the runtime's way of measuring changes so much that older figures do not compare."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a choice among configs depends on.

    Attributes:
        kernel: id of the kernel.
        device: name of the GPU model.
        target: its architecture.
        compiler: version of Triton that made the binaries.
        bucket: sizes rounded up to powers of two, by name.
        policy: `POLICY` at the time.
        divisors: powers of two that were promised to divide size params, by position.
        name: of the kernel, for people; two situations that differ in it alone are the same.
    """

    kernel: str
    device: str
    target: str
    compiler: str
    bucket: tuple[tuple[str, int], ...] = ()
    policy: int = POLICY
    divisors: Divisors = ()
    name: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """The digest under which a store keeps what was measured in this situation."""
        return digest(self.facts())

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {**self.facts(), **({"name": self.name} if self.name else {})}

    def facts(self) -> dict[str, Any]:
        """Returns what makes this situation itself; ``divisors`` is absent where nothing is promised."""
        promised = {"divisors": [list(pair) for pair in self.divisors]} if self.divisors else {}
        return {
            "kernel": self.kernel,
            "device": self.device,
            "target": self.target,
            "compiler": self.compiler,
            "bucket": dict(self.bucket),
            "policy": self.policy,
            **promised,
        }

    @classmethod
    def take_from(cls, fields: Fields) -> Situation:
        """Returns the situation in some fields of an object, taking them."""
        bucket = Fields(fields.take("bucket"), fields.at("bucket"))
        sizes = {name: bucket.integer(name) for name in bucket.names()}
        return cls(
            fields.line("kernel"),
            fields.line("device"),
            fields.line("target"),
            fields.line("compiler"),
            tuple(sorted(sizes.items())),
            fields.integer("policy"),
            take_divisors(fields) if "divisors" in fields.names() else (),
            fields.string("name") if "name" in fields.names() else "",
        )

    def differences(self, other: Situation) -> tuple[str, ...]:
        """Returns one line for each field in which two situations differ."""
        mine, theirs = ({"divisors": [], **each.facts()} for each in (self, other))
        return tuple(
            f"{name}: {theirs[name]!r} there, {mine[name]!r} here"
            for name in sorted(mine)
            if mine[name] != theirs[name]
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one config took in one situation.

    Attributes:
        situation: where.
        config: the config.
        ms: median time in milliseconds, infinity for one that failed.
        low: lower end of the interval that holds the median with 95 % confidence.
        high: upper end of it.
        runs: number of timed samples; 0 for a config that was taken without measuring.
        is_chosen: whether this config won.
        when: seconds since 1970 at which it was measured, 0 if nobody noted them; where two records disagree, the later
            one counts.
        failure: why it has no time; empty if it has one.
    """

    situation: Situation
    config: Config
    ms: float
    low: float
    high: float
    runs: int
    is_chosen: bool = False
    when: int = 0
    failure: str = ""

    @property
    def key(self) -> str:
        """The key under which a store keeps it: one for each config in each situation."""
        return f"{self.situation.key}-{digest(self.config.to_mapping())}"

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; a failed config has null for its times, and what nobody noted is absent."""
        noted = {name: getattr(self, name) for name in ("when", "failure") if getattr(self, name)}
        times = {name: getattr(self, name) if math.isfinite(self.ms) else None for name in ("ms", "low", "high")}
        return {
            **self.situation.to_mapping(),
            "config": self.config.to_mapping(),
            **times,
            "runs": self.runs,
            "chosen": self.is_chosen,
            **noted,
        }

    @classmethod
    def from_mapping(cls, value: object, path: str = "record") -> Measurement:
        """Returns the measurement in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        situation = Situation.take_from(fields)
        config = Config.from_mapping(fields.take("config"), fields.at("config"), free=True)
        ms, low, high = (_time(fields, name) for name in ("ms", "low", "high"))
        runs, chosen = fields.integer("runs"), fields.take("chosen")
        if not isinstance(chosen, bool):
            raise SpecError(fields.at("chosen"), f"true or false is needed, not {chosen!r}")
        when = fields.integer("when") if "when" in fields.names() else 0
        failure = fields.string("failure") if "failure" in fields.names() else ""
        fields.close()
        return cls(situation, config, ms, low, high, runs, chosen, when, failure)


def _time(fields: Fields, name: str) -> float:
    value = fields.take(name)
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise SpecError(fields.at(name), f"milliseconds are needed, not {value!r}")
    return float(value)


def merge(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Returns one measurement for each config in each situation, in a fixed order.

    Where several are of one config, the latest with a time counts. Neither the order nor repetitions matter, so that
    two stores that took each other's measurements hold the same ones.
    """
    kept: dict[str, Measurement] = {}
    for record in measurements:
        other = kept.get(record.key)
        if other is None or _age(record) > _age(other):
            kept[record.key] = record
    return tuple(kept[key] for key in sorted(kept))


def choose_measurement(measurements: Iterable[Measurement]) -> Measurement | None:
    """Returns the measurement that won; the latest, where several did: two machines measured, one of them later.

    What was taken without measuring won nothing.
    """
    won = [record for record in measurements if record.is_chosen and record.runs > 0]
    return max(won, key=lambda record: (record.when, -record.ms, record.key), default=None)


def _age(record: Measurement) -> tuple[bool, int, str]:
    return record.runs > 0, record.when, dump_canonical(record.to_mapping())


def size_bucket(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Returns sizes rounded up to powers of two: within one bucket one choice is taken to hold."""
    return tuple(sorted((name, 1 << (size - 1).bit_length() if size > 1 else 1) for name, size in sizes.items()))
