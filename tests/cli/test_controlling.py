"""What is told of the machine after an answer."""

from pathlib import Path

import pytest

from specd.bench.calibration import Calibration
from specd.cli.controlling import Control
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.protocol import Draft, Prefilled, Round
from specd.decoding.statistics import Statistics
from tests.fakes import FakeClock


def statistics_of(seconds: float, number: int) -> Statistics:
    clock = FakeClock()
    statistics = Statistics(clock)
    statistics.add(Prefilled(5, 0, 1.0, 0.0))
    for _ in range(number):
        clock.now += seconds
        statistics.add(Round(as_tokens([1]), Draft.of([]), 0, 0, 0, 0.0, seconds, seconds))
    return statistics


@pytest.mark.parametrize(
    ("seconds", "number", "usual", "complains"),
    [(0.9, 10, 0.1, True), (0.7, 10, 0.1, False), (0.9, 5, 0.1, False), (9.0, 10, None, False)],
)
def test_a_busy_machine_is_told(
    seconds: float, number: int, usual: float | None, complains: bool, tmp_path: Path
) -> None:
    controller = FixedLength([], 0, FakeClock())
    control = Control(controller, Calibration(tmp_path), "pair", 0, Acceptance(PRIORS), {}, usual)
    complaint = control.complaint(statistics_of(seconds, number))
    assert (complaint is not None) == complains
    if complaint is not None:
        assert "A step took 9 times as long as on this machine before" in complaint
