"""Tuning one kernel: which configs are compiled, which are measured, which one wins, and what is remembered of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ferrite_runtime.compilation.triton_adapter import triton_version
from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import Divisors
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement, Situation, size_bucket
from ferrite_runtime.policies.coordinate_descent import descend, neighbours
from ferrite_runtime.policies.resources import Usage, foresee_problem, without_spills
from ferrite_runtime.tuning.racing import Rules, Score, Timer, confirm, finalists, pick, pick_early, race
from ferrite_runtime.tuning.samples import Spread
from ferrite_runtime.tuning.timing import Clock

_LOG = logging.getLogger("ferrite_runtime")


@dataclass(frozen=True, slots=True)
class Effort:
    """How far tuning goes.

    Attributes:
        measures: whether anything is measured at all.
        everything: whether kernels of any size are measured, with all candidates of their policy.
        descends: whether the wider tables, and the configs beside the best one, are tried as well.
        rules: how long to measure.
    """

    measures: bool
    everything: bool
    descends: bool
    rules: Rules


_SHORT = Rules(batches=4, recheck=6, device_ms=3.0)
EFFORTS = {
    "none": Effort(measures=False, everything=False, descends=False, rules=_SHORT),
    "default": Effort(measures=True, everything=False, descends=False, rules=_SHORT),
    "quick": Effort(measures=True, everything=True, descends=False, rules=Rules()),
    "full": Effort(measures=True, everything=True, descends=True, rules=Rules()),
}
EFFORTS["max"] = EFFORTS["full"]


class Workbench(Timer, Protocol):
    """What compiles configs of one kernel, and times them with one set of arguments: a GPU, or a simulation of one."""

    def begin(self, configs: Sequence[Config]) -> None:
        """Starts compiling configs, side by side."""

    def examine(self, config: Config) -> Usage:
        """Returns what a compiled config uses, waiting for it.

        Raises:
            CompileFailed: if it does not compile.
            OutOfResources: if the device cannot run it.
        """


@dataclass(slots=True)
class Budget:
    """The time that may still be spent measuring."""

    clock: Clock
    deadline: float

    @classmethod
    def start(cls, clock: Clock, seconds: float) -> Budget:
        """Returns a budget that ends so many seconds from now."""
        return cls(clock, clock.now() + seconds)

    def is_spent(self) -> bool:
        """Tells whether the time is up."""
        return self.clock.now() >= self.deadline


Listener = Callable[[Mapping[str, Any]], None]
"""What is told how tuning goes: one JSON object at a time, whose field ``event`` says what happened."""


def ignore_event(event: Mapping[str, Any]) -> None:
    """Does nothing with an event."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to tune.

    Attributes:
        spec: the kernel.
        device: facts about the device.
        sizes: the size of every axis, by name.
        waves: configs to try; a wave is tried only where the ones before it left something to gain. The first config of
            all is the reference: what runs without tuning.
        effort: how far to go.
        bound_ms: the time that the kernel's traffic takes at the device's bandwidth, None where it is unknown.
    """

    spec: KernelSpec
    device: DeviceFacts
    sizes: Mapping[str, int]
    waves: tuple[tuple[Config, ...], ...]
    effort: Effort
    bound_ms: float | None = None

    @property
    def reference(self) -> Config:
        """The config that runs without tuning."""
        return self.waves[0][0]


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one config: its times in milliseconds, or why it has none."""

    config: Config
    spread: Spread | None = None
    problem: str | None = None
    usage: Usage | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        times = None if self.spread is None else asdict(self.spread)
        uses = None if self.usage is None else asdict(self.usage)
        return {"config": str(self.config), "ms": times, "problem": self.problem, "uses": uses}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tuning one kernel gave.

    Attributes:
        config: the choice.
        reference: the config that runs without tuning.
        trials: all configs that were considered.
        ended: why it ended: ``done``, ``at the bandwidth bound``, ``launch-bound``, ``time is up`` or ``one config``.
        seconds: how long it took.
    """

    config: Config
    reference: Config
    trials: tuple[Trial, ...]
    ended: str
    seconds: float = 0.0

    def time_of(self, config: Config) -> float | None:
        """Returns a config's median time in milliseconds, None where it was not measured."""
        spreads = [trial.spread for trial in self.trials if trial.config == config and trial.spread is not None]
        return spreads[0].median if spreads else None

    @property
    def measured(self) -> int:
        """Number of configs that were measured."""
        return sum(trial.spread is not None for trial in self.trials)

    @property
    def speedup(self) -> float | None:
        """How many times faster the choice is than the reference, None where that was not measured."""
        mine, other = self.time_of(self.config), self.time_of(self.reference)
        return other / mine if mine and other else None


def is_exact(spec: KernelSpec) -> bool:
    """Tells whether a choice depends on the very values of some sizes."""
    return any(param.bucket == "value" for param in spec.params)


def situation_of(
    spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None, divisors: Divisors = ()
) -> Situation:
    """Returns what a kernel's choice on a device depends on.

    Sizes count to a power of two; those that a person's kernel names as what its choice depends on, exactly.
    """
    bucket = tuple(sorted((sizes or {}).items())) if is_exact(spec) else size_bucket(sizes or spec.hint_sizes())
    position = (device.name, str(device.target), triton_version(), bucket)
    return Situation(spec.id, *position, divisors=divisors, name=spec.name)


def measurements_of(situation: Situation, outcome: Outcome, when: int) -> tuple[Measurement, ...]:
    """Returns what an outcome rests on as records, failures included; a choice that rests on no measurement is none.

    Args:
        situation: what was tuned.
        outcome: what tuning gave.
        when: seconds since 1970.
    """
    if outcome.measured == 0:
        return ()
    found = []
    for trial in outcome.trials:
        spread, chosen = trial.spread, trial.config == outcome.config
        if spread is not None and trial.problem is None:
            times = (spread.median, spread.low, spread.high, spread.count)
            found.append(Measurement(situation, trial.config, *times, is_chosen=chosen, when=when))
        elif trial.problem is not None:
            none = (math.inf, math.inf, math.inf, 0)
            found.append(Measurement(situation, trial.config, *none, when=when, failure=trial.problem[:200]))
    return tuple(found)


def tune_kernel(task: Task, bench: Workbench, budget: Budget, listen: Listener = ignore_event) -> Outcome:
    """Returns the fastest config of a kernel; the reference, unless another is faster by more than noise.

    It can be stopped by its budget at any moment, and then returns the best that is known. What fails, at compiling or
    at running, is out, and only that; where nothing runs, the reference is returned.
    """
    session = _Session(task, bench, budget, listen, started=budget.clock.now())
    best, ended = task.reference, "one config"
    for wave in task.waves:
        best = session.contest(best, wave)
        reason = session.reason_to_stop(best)
        ended = reason or "done"
        if reason:
            break
    if ended == "done" and task.effort.descends:
        best = descend(
            best, lambda config: neighbours(task.spec, task.device, config, task.sizes), session.contest_of(task)
        )
        ended = session.reason_to_stop(best) or "done"
    outcome = Outcome(best, task.reference, tuple(session.trials.values()), ended, budget.clock.now() - session.started)
    if outcome.measured == 0:
        outcome = Outcome(best, task.reference, outcome.trials, "one config", outcome.seconds)
    listen(
        {
            "event": "chosen",
            "kernel": task.spec.name,
            "config": str(best),
            "ms": outcome.time_of(best),
            "reference_ms": outcome.time_of(task.reference),
            "measured": outcome.measured,
            "failed": sum(trial.problem is not None for trial in outcome.trials),
            "ended": outcome.ended,
            "seconds": round(outcome.seconds, 4),
        }
    )
    return outcome


@dataclass(slots=True)
class _Session:
    """What is known while one kernel is tuned."""

    task: Task
    bench: Workbench
    budget: Budget
    listen: Listener
    started: float
    trials: dict[Config, Trial] = field(default_factory=dict)

    def contest_of(self, task: Task) -> Callable[[Config, tuple[Config, ...]], Config]:
        """Returns `contest` for a descent: nothing is compiled once the time is up."""
        rules = replace(task.effort.rules, gain=task.effort.rules.step_gain)
        return lambda best, near: best if self.reason_to_stop(best) else self.contest(best, near, rules)

    def contest(self, best: Config, fresh: Sequence[Config], rules: Rules | None = None) -> Config:
        """Returns the fastest among the best so far, the reference and some more configs."""
        rules = rules or self.task.effort.rules
        usable = self._usable(fresh)
        if not usable:
            return best  # those that are left have been compared
        order = list(dict.fromkeys((self.task.reference, best, *usable)))
        while len(order := [config for config in order if not self._is_out(config)]) > 1:
            winner = self._round(order, rules)
            if winner is not None:
                return winner
        return order[0] if order else best

    def _is_out(self, config: Config) -> bool:
        return config in self.trials and self.trials[config].problem is not None

    def _round(self, order: Sequence[Config], rules: Rules) -> Config | None:
        """Returns the fastest of some configs, the first of them if none is faster; None if a likely one failed."""
        is_over = self.budget.is_spent
        scores = race(self.bench, order, rules, is_over)
        self._note(scores)
        likely = finalists(scores, rules)
        last = [config for config in order if (config in likely or config == order[0]) and not self._is_out(config)]
        if is_over() or len(last) < 2:
            return pick_early(scores, order, rules)
        again = confirm(self.bench, last, rules, is_over)
        self._note(again)
        if any(self._is_out(config) for config in last):
            return None if not is_over() else order[0]
        if any(score.spread is None for score in again.values()):
            return pick_early(scores, order, rules)
        return pick(again, last, rules)

    def _usable(self, fresh: Sequence[Config]) -> list[Config]:
        """Returns those of some configs that are worth measuring; notes why the others are not."""
        task, usages = self.task, dict[Config, Usage]()
        wanted = [config for config in fresh if config not in self.trials]
        for config in list(wanted):
            problem = foresee_problem(task.spec, config, task.device, task.sizes)
            if problem is not None and config != task.reference:
                self._refuse(config, f"not compiled: {problem}")
                wanted.remove(config)
        self.bench.begin(wanted)
        for config in wanted:
            if usages and self.budget.is_spent():
                break
            try:
                usages[config] = self.bench.examine(config)
            except FerriteRuntimeError as error:
                self._refuse(config, str(error))
        is_written = task.spec.form == "user"  # whoever wrote it may know better than what a spill says
        kept = list(usages) if is_written else without_spills(usages, [task.reference])
        for config, usage in usages.items():
            self.trials[config] = Trial(config, usage=usage)
            if config not in kept:
                self._refuse(config, f"not measured: {usage.local_bytes} bytes per thread are on the stack", usage)
        self.listen({"event": "compiled", "kernel": task.spec.name, "configs": len(usages), "kept": len(kept)})
        return kept

    def _refuse(self, config: Config, problem: str, usage: Usage | None = None) -> None:
        self.trials[config] = Trial(config, None, problem, usage)
        _LOG.info("kernel %s: config (%s) is out: %s", self.task.spec.name, config, problem)
        self.listen({"event": "refused", "kernel": self.task.spec.name, "config": str(config), "problem": problem})

    def _note(self, scores: Mapping[Config, Score]) -> None:
        for config, score in scores.items():
            usage = self.trials[config].usage if config in self.trials else None
            if score.problem is not None:
                self._refuse(config, score.problem, usage)
            elif score.spread is not None:
                self.trials[config] = Trial(config, score.spread, None, usage)
                event = {"event": "measured", "kernel": self.task.spec.name, "config": str(config)}
                self.listen({**event, "ms": score.spread.median, "samples": score.spread.count})

    def reason_to_stop(self, best: Config) -> str | None:
        """Returns why there is nothing more to try, None if there may be something to gain."""
        if self.budget.is_spent():
            return "time is up"
        trial = self.trials.get(best)
        if trial is None or trial.spread is None:
            return None
        rules, bound, median = self.task.effort.rules, self.task.bound_ms, trial.spread.median
        if median <= rules.launch_bound_ms:
            return "launch-bound"
        return "at the bandwidth bound" if bound is not None and median * rules.good_share <= bound else None
