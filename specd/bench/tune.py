"""Which settings decode fastest on this machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specd.bench.replay import Replay
from specd.decoding.acceptance import Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.costs import PassCosts
from specd.decoding.pricing import MAX_DRAFT, Prices

WORTH = 1.02  # by which a setting must be faster to replace another
ROUNDS = 5  # in which two settings are measured one after the other
DRAFT_LIMITS = (3, 7, 15, 31)
SAME = 1.01  # of two limits that differ by less, the smaller one is taken

Settings = Mapping[str, Any]
Measure = Callable[[Settings], float]
"""Seconds that a piece of work takes with some settings."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A value of a setting against the best one so far. speed: how many times as fast; None when it cannot be used."""

    name: str
    value: Any
    against: Any
    speed: float | None
    reason: str = ""

    @property
    def wins(self) -> bool:
        """Whether it takes the place of the best one so far."""
        return self.speed is not None and self.speed >= WORTH


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting, the values worth trying, and what tells which of them is best."""

    name: str
    values: Sequence[Any]
    measure: Measure


def descend(
    start: Settings, knobs: Sequence[Knob], clock: Callable[[], float], seconds: float, failure: type[Exception]
) -> Iterator[Comparison]:
    """Coordinate descent: one setting after the other, each with the best values of those before.

    Two values are compared in turns, round by round, so that a machine that does other things too slows both. What is
    not reached in time stays as it is.

    failure:  what a measurement raises when settings cannot be used
    """
    end = clock() + seconds
    best = dict(start)
    for knob in knobs:
        for value in knob.values:
            if value == best[knob.name] or clock() > end:
                continue
            try:
                ratios = []
                for _ in range(ROUNDS):
                    ratios.append(knob.measure(best) / knob.measure({**best, knob.name: value}))
                    if len(ratios) >= 2 and max(ratios) < 1 / WORTH:
                        break  # clearly slower
                comparison = Comparison(knob.name, value, best[knob.name], median(ratios))
            except failure as error:
                comparison = Comparison(knob.name, value, best[knob.name], None, str(error))
            yield comparison
            if comparison.wins:
                best[knob.name] = value


def best_limit(replays: Sequence[Replay]) -> tuple[int, dict[int, float]]:
    """The shortest limit of drafts with which recorded answers take about the least time; and the speed with each.

    On simulated time, at the costs in the traces: the same for every limit, whatever the machine does meanwhile.
    """
    speeds = {}
    for limit in DRAFT_LIMITS:
        seconds = plain = 0.0
        for replay in replays:
            trace = replay.trace

            def build(drafters: Any, clock: Any, trace: Any = trace, limit: int = limit) -> Adaptive:
                paid = {"draft": PassCosts(trace.draft_seconds)}
                prices = Prices(PassCosts(trace.target_seconds), paid, MAX_DRAFT)
                return Adaptive(drafters, prices, Acceptance.from_json({}), clock, max_draft=limit)

            names = ("lookup", "draft") if any(step.draft for step in trace.steps) else ("lookup",)
            seconds += replay.run(build, names).seconds
            plain += replay.plain_seconds
        speeds[limit] = plain / seconds
    enough = max(speeds.values()) / SAME
    return min(limit for limit, speed in speeds.items() if speed >= enough), speeds
