"""Racing: configs are timed in turns, and one is out as soon as another is surely faster; near ties are timed again.

Source: Maron and Moore, "Hoeffding races: accelerating model selection search for classification and function
approximation" (1994); the intervals here are those of medians (`samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.tuning.samples import Spread, spread_of


class Timer(Protocol):
    """What runs configs of one kernel with one set of arguments, and times them."""

    def sample(self, config: Config, count: int) -> Sequence[float]:
        """Returns the times of ``count`` launches in milliseconds.

        Raises:
            FerriteRuntimeError: if the config cannot be run; it is then out, and only it.
        """


@dataclass(frozen=True, slots=True)
class Rules:
    """How long to measure, and what counts as faster.

    Attributes:
        gain: part of its time by which a config has to be faster than one that stands before it in the list; below
            that, it is noise, and the one that stands first is the steadier choice.
        step_gain: the same for a step of a descent: it leads to other configs, so noise in one is a choice of its own.
        resolution_ms: what it has to be faster by besides: events tell times apart that differ by half a microsecond
            (CUDA Runtime API, cudaEventElapsedTime), which is a good part of the time of a small kernel.
        batch: samples of a config before it is the next one's turn.
        batches: turns at most.
        hopeless: a config is out after its first turn if its fastest sample takes so many times the slowest of another.
        recheck: fresh samples for each config of a near tie.
        device_ms: time that one config may take in all its turns, except that each gets two samples in any case.
        good_share: a kernel whose traffic takes this share of its time at the device's bandwidth has nothing to gain.
        launch_bound_ms: below this a kernel's time is that of its launch, whatever its config.
    """

    gain: float = 0.03
    step_gain: float = 0.06
    resolution_ms: float = 0.0005
    batch: int = 3
    batches: int = 8
    hopeless: float = 1.25
    recheck: int = 12
    device_ms: float = 25.0
    good_share: float = 0.92
    launch_bound_ms: float = 0.003

    def reach(self, best: float) -> float:
        """Returns the longest time that counts as no slower than ``best``, both in milliseconds."""
        return best / (1 - self.gain) + self.resolution_ms


@dataclass(slots=True)
class Score:
    """What was measured of a config; ``problem`` says why it cannot be run."""

    config: Config
    samples: list[float] = field(default_factory=list)
    problem: str | None = None

    @property
    def spread(self) -> Spread | None:
        """The spread of the samples, None without any."""
        return spread_of(self.samples) if self.samples and self.problem is None else None


Over = Callable[[], bool]


def take(timer: Timer, score: Score, count: int) -> None:
    """Adds samples to a score, or the reason why there are none."""
    try:
        score.samples += timer.sample(score.config, count)
    except FerriteRuntimeError as error:
        score.problem = str(error)


def race(timer: Timer, configs: Sequence[Config], rules: Rules, is_over: Over) -> dict[Config, Score]:
    """Returns the scores of some configs, all measured, those that may be the fastest more often than the others.

    They take turns, each turn in another order, so that drift and whatever the one before leaves in the caches hits all
    alike. One is out as soon as it is slower than another with confidence, and the race ends when one is left, when the
    differences that may be there no longer matter, or when ``is_over`` says so.
    """
    scores = {config: Score(config) for config in configs}
    for score in scores.values():
        take(timer, score, 1)  # the first launch loads code and fills caches: it tells little
        if score.problem is None:
            first = score.samples.pop()
            take(timer, score, 2 if first * (rules.batch + 1) > rules.device_ms else rules.batch)
        if is_over():
            break
    alive = _running(scores.values(), rules.hopeless)
    for turn in range(1, rules.batches):
        if len(alive) < 2 or is_over() or all(_is_settled(score, rules) for score in alive):
            break
        for score in (*alive[turn % len(alive) :], *alive[: turn % len(alive)]):
            if not _is_settled(score, rules):
                take(timer, score, rules.batch)
        alive = _running(alive, 1.0)
    return scores


def _is_settled(score: Score, rules: Rules) -> bool:
    """Tells whether more samples of a config would say nothing new, or cost too much."""
    spread = score.spread
    if spread is None or (spread.count >= 2 and spread.count * spread.median > rules.device_ms):
        return True
    return spread.count >= 2 * rules.batch and spread.width < rules.gain / 2


def _running(scores: Iterable[Score], factor: float) -> list[Score]:
    """Returns the scores that may still be the best: of the others, even the fastest sample is slower, by a factor."""
    known = [(score, spread) for score in scores if (spread := score.spread) is not None]
    if not known:
        return []
    best = min((spread for _, spread in known), key=lambda spread: spread.median)
    return [score for score, spread in known if spread.low <= factor * best.high]


def finalists(scores: Mapping[Config, Score], rules: Rules) -> list[Config]:
    """Returns the configs that a second look may still find to be the fastest, the fastest first."""
    known = [(spread, config) for config, score in scores.items() if (spread := score.spread) is not None]
    if not known:
        return []
    known.sort(key=lambda row: row[0].median)
    reach = rules.reach(known[0][0].median)
    return [config for spread, config in known if spread.median <= reach or spread.low <= known[0][0].high]


def confirm(timer: Timer, configs: Sequence[Config], rules: Rules, is_over: Over) -> dict[Config, Score]:
    """Returns fresh scores of a few configs, to `pick` from in this order.

    The fastest of many is in part the luckiest: what decides is measured anew, in short turns. It goes on for up to
    four times as long where what `pick` would take is still open.
    """
    scores = {config: Score(config) for config in configs}
    taken = 0
    while taken < 4 * rules.recheck and not is_over():
        waiting = [score for score in scores.values() if score.problem is None and not _is_too_long(score, rules)]
        if not waiting or (taken >= rules.recheck and _is_clear(scores, configs, rules)):
            break
        for score in waiting:
            take(timer, score, rules.batch)
        taken += rules.batch
    return scores


def _is_clear(scores: Mapping[Config, Score], order: Sequence[Config], rules: Rules) -> bool:
    """Tells whether it is known of each config, up to the one that is picked, if it is within reach of the fastest."""
    spreads = {config: spread for config, score in scores.items() if (spread := score.spread) is not None}
    if not spreads:
        return True
    reach = rules.reach(min(spread.median for spread in spreads.values()))
    for config in order:
        if config in spreads and spreads[config].high <= reach:
            return True
        if config in spreads and spreads[config].low <= reach:
            return False
    return True


def _is_too_long(score: Score, rules: Rules) -> bool:
    spread = score.spread
    return spread is not None and spread.count >= 2 and spread.count * spread.median > rules.device_ms


def pick(scores: Mapping[Config, Score], order: Sequence[Config], rules: Rules) -> Config | None:
    """Returns the first config of ``order`` that is as fast as the fastest; None where nothing was measured."""
    medians = {config: spread.median for config, score in scores.items() if (spread := score.spread) is not None}
    if not medians:
        return None
    reach = rules.reach(min(medians.values()))
    return next((config for config in order if medians.get(config, reach * 2) <= reach), None)


def pick_early(scores: Mapping[Config, Score], order: Sequence[Config], rules: Rules) -> Config | None:
    """Returns the config to take where the time was up before a second look.

    That is the fastest of those that are faster than ``order[0]``, and with confidence; where there are none,
    ``order[0]``.
    """
    spreads = {config: spread for config, score in scores.items() if (spread := score.spread) is not None}
    if order[0] not in spreads:
        return min(spreads, key=lambda config: spreads[config].median) if spreads else None
    first = spreads[order[0]]
    surely = {
        config: spread.median
        for config, spread in spreads.items()
        if spread.count >= 2 and spread.high < first.low and rules.reach(spread.median) < first.median
    }
    return min(surely, key=lambda config: surely[config]) if surely else order[0]
