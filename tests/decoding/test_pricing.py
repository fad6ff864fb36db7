import pytest

from specd.decoding.costs import PassCosts
from specd.decoding.pricing import CATCH_UP_ROUNDS, Prices, Prospect
from tests.fakes import draft_of, round_of


def prices(steps: dict[int, float], draft: float = 0.25, max_draft: int = 15) -> Prices:
    return Prices(PassCosts(steps), {"draft": PassCosts({1: draft})}, max_draft)


def test_a_prospect_adds_up_chances() -> None:
    prospect = Prospect().with_token(0.5).with_token(0.5, 2.0)
    assert (prospect.num_draft, prospect.reach, prospect.expected, prospect.seconds) == (2, 0.25, 1.75, 2.0)


def test_the_bound_is_that_of_perfect_drafts_at_the_best_width() -> None:
    table = prices({1: 1.0, 2: 1.8, 4: 2.0, 16: 16.0})
    assert table.bound("lookup") == pytest.approx(4 / 2.0)
    assert table.bound("draft") == pytest.approx(4 / (2.0 + 3 * 0.25))


def test_break_even_is_the_acceptance_at_which_it_costs_what_it_gives() -> None:
    table = prices({1: 1.0, 2: 1.5}, draft=0.0, max_draft=1)
    assert table.break_even("lookup") == pytest.approx(0.5, abs=0.001)  # 1 + a = 1.5
    assert prices({1: 1.0, 2: 2.5}, max_draft=1).break_even("draft") is None


def test_catching_up_is_paid_for_by_several_rounds() -> None:
    table = prices({1: 1.0})
    assert table.first_token_seconds("draft", 1) == 0.25
    assert table.first_token_seconds("draft", 2) == 0.5  # the usual two tokens after a full acceptance
    assert table.first_token_seconds("draft", 33) == pytest.approx(0.25 + 8.0 / CATCH_UP_ROUNDS)


def test_the_rate_follows_the_speed_but_never_below_plain() -> None:
    table = prices({1: 1.0})
    assert table.rate == 1.0
    for _ in range(50):
        table.observe_round(round_of([1, 2, 3, 4], draft_of([1, 2, 3]), 3, seconds=2.0))
    assert table.rate == pytest.approx(2.0, rel=0.01)
    for _ in range(50):
        table.observe_round(round_of([1], draft_of([1, 2, 3]), 0, seconds=2.0))
    assert table.rate == pytest.approx(1 / table.plain_seconds)


def test_drafting_teaches_what_a_token_costs() -> None:
    table = prices({1: 1.0})
    table.observe_drafting("draft", 1, [0.5, 0.5, 0.5])
    assert table.token_seconds("draft") == 0.5
    table.observe_drafting("draft", 40, [9.0, 0.5, 0.5])  # the first one caught up: it says nothing about one token
    assert table.token_seconds("draft") == 0.5
    table.observe_drafting("lookup", 0, [9.0])
    assert table.token_seconds("lookup") == 0.0
