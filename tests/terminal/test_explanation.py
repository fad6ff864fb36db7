from typing import Any

import pytest

from specd.decoding.statistics import Statistics
from specd.terminal.explanation import explanation
from tests.fakes import FakeClock, draft_of, round_of


def report(**changes: Any) -> dict[str, Any]:
    return {
        "plain_seconds": 0.05,
        "pass_seconds": {"target": {1: 0.05, 2: 0.08, 4: 0.1, 7: 0.2}, "draft": {1: 0.025}},
        "draft_token_seconds": {"lookup": 0.0, "draft": 0.025},
        "max_speedup": {"lookup": 2.0, "draft": 1.05},
        "break_even_acceptance": {"lookup": 0.625, "draft": None},
        "rounds": {"plain": 15, "lookup": 5},
        "gained_seconds": 0.42,
        "explored_seconds": 0.0,
        **changes,
    }


@pytest.fixture
def statistics() -> Statistics:
    statistics = Statistics(FakeClock())
    statistics.add(round_of([1, 2], draft_of([1, 5], "lookup"), 1))
    return statistics


def test_everything_is_told_in_plain_words(statistics: Statistics) -> None:
    assert explanation(statistics, report(), {"draft": "cannot pay"}).splitlines() == [
        "A plain step takes 50 ms here (20.0 tokens/s).",
        "A pass over 2 tokens costs 1.6, 4 tokens costs 2.0 of it.",
        "lookup costs nothing; perfect drafts would give 2.00× here, and it pays from 62% accepted. "
        "It had 50% of 2 tokens accepted.",
        "draft costs 0.50 of a plain step per token; perfect drafts would give 1.05× here, so it cannot pay. "
        "It was not used.",
        "Of 20 rounds: no draft in 75%, lookup in 25%.",
        "Drafting saved 0.42 s against plain decoding (an estimate).",
    ]


def test_losses_and_trials_are_told_too(statistics: Statistics) -> None:
    text = explanation(statistics, report(gained_seconds=-0.1, explored_seconds=0.25), {})
    assert "Drafting lost 0.10 s" in text
    assert "Trying whether a drafter pays cost 0.25 s." in text


def test_a_drafter_that_is_missing_is_named(statistics: Statistics) -> None:
    assert "other: not there." in explanation(statistics, report(), {"other": "not there"})


def test_nothing_drafted_nothing_gained(statistics: Statistics) -> None:
    text = explanation(statistics, report(rounds={"plain": 4}, gained_seconds=0.0), {})
    assert "no draft in 100%" in text
    assert "against plain decoding" not in text


def test_without_a_controller_the_reason_is_what_is_left(statistics: Statistics) -> None:
    assert explanation(statistics, {}, {"lookup": "turned off (--method off)"}) == "lookup: turned off (--method off)."
    assert "same number of tokens" in explanation(statistics, {}, {})
