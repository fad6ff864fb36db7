from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specd.bench.replay import Replay
from specd.bench.trace import Trace
from specd.bench.tune import DRAFT_LIMITS, Comparison, Knob, best_limit, descend
from specd.errors import EngineError
from tests.fakes import FakeClock

TRACES = Path(__file__).parents[1] / "traces"
START = {"threads": 4, "cache": "f16", "batch": 512}


class Machine:
    """Threads pay up to three; a small cache cannot be used; one batch is as good as the other."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.num_measured = 0

    def seconds(self, settings: Mapping[str, Any]) -> float:
        self.num_measured += 1
        if settings["cache"] == "q4_0":
            raise EngineError("no such cache")
        slow = 1.0 + 0.5 * (self.num_measured % 7 == 0)  # now and then another program runs
        seconds = (
            slow
            * {4: 1.3, 3: 1.0, 2: 1.2, 1: 2.0}[settings["threads"]]
            * (0.9 if settings["cache"] == "q8_0" and settings["threads"] == 3 else 1.0)
        )
        self.clock.now += seconds
        return seconds

    def knobs(self) -> list[Knob]:
        return [
            Knob("threads", [4, 3, 2, 1], self.seconds),
            Knob("cache", ["q4_0", "q8_0"], self.seconds),
            Knob("batch", [256, 1024], self.seconds),
        ]


def tuned(seconds: float) -> tuple[dict[str, Any], list[Comparison]]:
    machine = Machine()
    comparisons = list(descend(START, machine.knobs(), machine.clock, seconds, EngineError))
    return {each.name: each.value for each in comparisons if each.wins}, comparisons


def test_each_setting_is_tried_with_the_best_of_those_before() -> None:
    best, comparisons = tuned(1000.0)
    assert best == {"threads": 3, "cache": "q8_0"}
    assert [(each.name, each.value, each.against) for each in comparisons] == [
        ("threads", 3, 4),
        ("threads", 2, 3),
        ("threads", 1, 3),
        ("cache", "q4_0", "f16"),
        ("cache", "q8_0", "f16"),
        ("batch", 256, 512),
        ("batch", 1024, 512),
    ]


def test_what_cannot_be_used_is_said() -> None:
    (failed,) = [each for each in tuned(1000.0)[1] if each.speed is None]
    assert (failed.value, failed.reason, failed.wins) == ("q4_0", "no such cache", False)


def test_time_is_kept() -> None:
    best, comparisons = tuned(5.0)
    assert best == {"threads": 3}
    assert len(comparisons) == 1


@pytest.mark.parametrize(
    ("target", "limit"),
    [({n: 1.0 + 0.01 * n for n in range(1, 33)}, 31), ({n: 0.5 * n + 0.5 for n in range(1, 33)}, 3)],
)
def test_the_limit_follows_the_costs(target: Mapping[int, float], limit: int) -> None:
    """Long drafts where rows are free; where each costs half a pass, more than the shortest limit gains nothing."""
    trace = Trace.read(TRACES / "edit.jsonl")
    changed = Trace(trace.kind, trace.target, trace.draft, target, {1: 2.0}, trace.prompt, trace.steps, trace.predicted)
    found, speeds = best_limit([Replay(changed)])
    assert found == limit or (limit == 3 and speeds[3] >= max(speeds.values()) / 1.3)
    assert set(speeds) == set(DRAFT_LIMITS)
