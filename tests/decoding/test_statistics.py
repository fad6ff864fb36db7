from dataclasses import replace

import pytest

from specd.decoding.protocol import Finished, Prefilled, Round
from specd.decoding.statistics import Statistics
from tests.fakes import FakeClock, draft_of, round_of


def a_round(tokens: int, source: str, drafted: int, accepted: int, discarded: int = 0, seconds: float = 1.0) -> Round:
    draft = replace(draft_of([1] * drafted, source), seconds={source: 0.25})
    rejected = drafted - accepted - discarded
    return round_of([1] * tokens, draft, accepted, rejected=rejected, draft_seconds=0.25, seconds=seconds)


@pytest.fixture
def statistics() -> Statistics:
    clock = FakeClock()
    statistics = Statistics(clock)
    clock.now = 2.0
    statistics.add(Prefilled(10, 4, 1.5, 0.5))
    for event in (
        a_round(4, "draft", 3, 3, seconds=2.0),
        a_round(1, "none", 0, 0),
        a_round(2, "lookup", 3, 1, seconds=2.0),
        a_round(1, "none", 0, 0, seconds=1.5),
        a_round(2, "draft", 3, 2, discarded=1, seconds=2.0),
    ):
        clock.now += event.seconds + 0.1  # whoever consumes the events takes time too
        statistics.add(event)
    statistics.add(Finished("stop"))
    return statistics


def test_totals_are_sums_over_rounds(statistics: Statistics) -> None:
    stats = statistics.as_dict({})
    assert statistics.num_completion_tokens == 10
    assert statistics.finish_reason == "stop"
    assert (stats["num_rounds"], stats["num_drafts"], stats["longest_draft"]) == (5, 3, 3)
    assert stats["num_draft_tokens"] == 9
    assert stats["num_accepted_tokens"] + stats["num_rejected_tokens"] + stats["num_discarded_tokens"] == 9
    assert stats["acceptance_rate"] == pytest.approx(6 / 9)
    assert stats["mean_acceptance_length"] == pytest.approx(2.0)
    assert stats["draft_per_position"] == [3, 3, 3]
    assert stats["accepted_per_position"] == [3, 2, 1]


def test_totals_are_sums_over_drafters(statistics: Statistics) -> None:
    stats = statistics.as_dict({})
    for key in ("num_draft_tokens", "num_accepted_tokens", "num_rejected_tokens", "num_discarded_tokens"):
        assert stats[key] == sum(drafter[key] for drafter in stats["drafters"].values())
    assert stats["drafters"]["draft"]["accepted_per_position"] == [2, 2, 1]


def test_times(statistics: Statistics) -> None:
    stats = statistics.as_dict({})
    assert stats["prefill_seconds"] == 2.0
    assert stats["time_to_first_token_seconds"] == pytest.approx(4.1)
    assert stats["decode_seconds"] == pytest.approx(9.0)
    assert stats["decode_tokens_per_second"] == pytest.approx(10 / 9)


def test_plain_speed_comes_from_plain_rounds_of_this_run(statistics: Statistics) -> None:
    stats = statistics.as_dict({})
    assert stats["plain_tokens_per_second_estimate"] == pytest.approx(1 / 1.0)  # median of 0.75 and 1.25
    assert stats["speedup_estimate"] == pytest.approx(10 / 9)
    assert stats["round_cost_estimate"] == pytest.approx(2.0)
    assert stats["tokens_per_drafted_round"] == pytest.approx(8 / 3)


def test_without_plain_rounds_there_is_no_estimate() -> None:
    statistics = Statistics(FakeClock())
    statistics.add(Prefilled(1, 0, 0.0, 0.0))
    statistics.add(a_round(4, "draft", 3, 3))
    stats = statistics.as_dict({})
    assert stats["plain_tokens_per_second_estimate"] is None
    assert stats["speedup_estimate"] is None


def test_notices_are_told_and_explain_why_speculation_was_off() -> None:
    statistics = Statistics(FakeClock())
    statistics.add(a_round(1, "none", 0, 0))
    stats = statistics.as_dict({"draft": "its file is broken"})
    assert stats["speculation_off_reason"] == "draft: its file is broken"
    assert stats["drafters"]["draft"]["yielded"] == "its file is broken"
    assert stats["acceptance_rate"] is None
    statistics.add(a_round(2, "lookup", 1, 1))
    assert "speculation_off_reason" not in statistics.as_dict({"draft": "its file is broken"})


def test_nothing_is_known_before_anything_happened() -> None:
    stats = Statistics(FakeClock()).as_dict({})
    assert stats["decode_tokens_per_second"] is None
    assert stats["time_to_first_token_seconds"] is None
    assert stats["mean_acceptance_length"] is None
