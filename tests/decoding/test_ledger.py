import pytest

from specd.decoding.ledger import CREDIT, EXPLORED_SHARE, MIN_GAIN, PATIENCE, Ledger
from tests.fakes import draft_of, round_of

NOTHING, ONE = draft_of([]), draft_of([1], "lookup")


def test_plain_rounds_neither_gain_nor_lose() -> None:
    ledger = Ledger()
    ledger.add(round_of([1], NOTHING, seconds=1.2), 1.0, 1.2, exploring=False)
    assert (ledger.gained_seconds, ledger.decode_seconds, dict(ledger.rounds)) == (0.0, 1.2, {"plain": 1})


def test_gains_are_counted_against_plain_steps() -> None:
    ledger = Ledger()
    ledger.add(round_of([1, 2], ONE, 1, seconds=1.5), 1.0, 1.5, exploring=False)
    ledger.add(round_of([1], ONE, 0, seconds=1.75), 1.0, 1.75, exploring=False)
    assert ledger.gained_seconds == pytest.approx(0.5 - 0.75)


def test_a_pass_that_is_slow_by_chance_is_not_held_against_the_draft() -> None:
    ledger = Ledger()
    ledger.add(round_of([1, 2], ONE, 1, draft_seconds=0.25, seconds=9.0), 1.0, 1.5, exploring=False)
    assert ledger.gained_seconds == pytest.approx(0.25)


def test_losses_beyond_what_is_allowed_raise_what_a_draft_must_promise() -> None:
    ledger = Ledger()
    assert ledger.min_gain(1.0) == MIN_GAIN
    demands = []
    for _ in range(9):
        ledger.add(round_of([1], ONE, 0, seconds=2.0), 1.0, 2.0, exploring=False)
        demands.append(ledger.min_gain(1.0))
    assert demands == sorted(demands)
    assert demands[3] == pytest.approx(MIN_GAIN + PATIENCE)  # what is known to pay may still earn the debt back
    assert demands[-1] > MIN_GAIN + PATIENCE + 0.3
    for _ in range(9):
        ledger.add(round_of([1, 2], ONE, 1, seconds=1.0), 1.0, 1.0, exploring=False)
    assert ledger.min_gain(1.0) == MIN_GAIN


def test_a_short_text_is_taken_in_on_credit_and_a_long_one_must_be_earned_first() -> None:
    ledger = Ledger()
    assert ledger.catch_up_at_stake(CREDIT * 2.0, 2.0) == 0.0
    assert ledger.catch_up_at_stake(CREDIT * 2.0 + 0.1, 2.0) == CREDIT * 2.0 + 0.1


def test_a_small_share_of_decode_time_may_be_lost_to_bad_luck() -> None:
    ledger = Ledger()
    ledger.add(round_of([1], NOTHING, seconds=200.0), 1.0, 1.0, exploring=False)
    ledger.add(round_of([1], ONE, 0, seconds=2.5), 1.0, 2.5, exploring=False)
    assert ledger.min_gain(1.0) == MIN_GAIN


def test_exploration_is_bounded_in_time() -> None:
    ledger = Ledger()
    assert not ledger.allows_exploring(0.5)
    ledger.add(round_of([1], NOTHING, seconds=60.0), 1.0, 60.0, exploring=False)
    assert ledger.allows_exploring(60 * EXPLORED_SHARE)
    assert not ledger.allows_exploring(60 * EXPLORED_SHARE + 0.01)
    ledger.add(round_of([1], ONE, 0, seconds=1.5), 1.0, 1.5, exploring=True)
    assert ledger.explored_seconds == pytest.approx(0.5)
    assert ledger.gained_seconds == 0
    assert not ledger.allows_exploring(0.2)


def test_rounds_are_counted_by_who_drafted() -> None:
    ledger = Ledger()
    both = draft_of([1, 2, 3])
    both = type(both)(both.tokens, both.probs, (*draft_of([1, 2], "draft").evidence, *ONE.evidence))
    ledger.add(round_of([1], both, 0), 1.0, 1.0, exploring=False)
    assert dict(ledger.rounds) == {"draft+lookup": 1}
