import pytest

from specd.decoding.costs import MIN_SEEN, NUM_SEEN, WINDOW, PassCosts


def test_steps_are_kept_and_what_lies_between_is_interpolated() -> None:
    costs = PassCosts({1: 1.0, 3: 4.0, 4: 2.0, 8: 4.0})
    assert [costs.seconds(n) for n in (1, 2, 3, 4, 6, 8)] == [1.0, 2.5, 4.0, 2.0, 3.0, 4.0]
    assert costs.seconds(16) == 8.0  # beyond the table: the cost per token of the widest


def test_a_width_is_corrected_by_how_it_compares_with_plain_steps_nearby() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0, 8: 3.0})
    for _ in range(MIN_SEEN):
        costs.observe(1, 1.0)
        costs.observe(4, 4.0)
    assert [costs.seconds(n) for n in (1, 4)] == [1.0, pytest.approx(4.0)]
    assert costs.seconds(8) == pytest.approx(6.0)  # wider ones are likely to be off as much


def test_what_lies_between_a_plain_step_and_a_corrected_width_is_corrected_in_part() -> None:
    costs = PassCosts({1: 1.0, 16: 1.16})  # believed flat, and every row costs a pass
    for _ in range(MIN_SEEN):
        costs.observe(11, 11.0)
    costs.observe(1, 1.0)
    assert [costs.seconds(n) for n in (11, 6, 2)] == [pytest.approx(n, rel=0.1) for n in (11, 6, 2)]


def test_the_speed_of_the_machine_now_applies_to_all_widths() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    for _ in range(MIN_SEEN):
        costs.observe(1, 1.5)
    assert costs.speed == pytest.approx(1.5)
    assert costs.seconds(4) == pytest.approx(3.0)
    for _ in range(WINDOW):
        costs.observe(1, 1.0)
    assert costs.seconds(4) == pytest.approx(2.0)


def test_a_slow_spell_in_which_only_wide_passes_ran_does_not_make_them_dear() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    for _ in range(20):
        costs.observe(4, 6.0)
    for _ in range(WINDOW):
        costs.observe(4, 2.0)
    costs.observe(1, 1.0)
    assert (costs.seconds(1), costs.seconds(4)) == (1.0, 2.0)


def test_single_slow_passes_do_not_count() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    for i in range(40):
        costs.observe(1 if i % 2 else 4, (40.0 if i % 5 == 2 else 1.0) * (1 if i % 2 else 2))
    assert (costs.seconds(1), costs.seconds(4)) == (1.0, 2.0)


def test_errors_of_long_ago_are_forgotten() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    for seconds in (5.0, 2.0):
        for _ in range(NUM_SEEN):
            costs.observe(1, 1.0)
            costs.observe(4, seconds)
    assert costs.seconds(4) == 2.0


def test_costs_that_surprise_are_in_doubt_until_a_plain_step_was_seen() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    assert not costs.is_doubtful
    for _ in range(MIN_SEEN):
        costs.observe(4, 2.1)
    assert not costs.is_doubtful
    for _ in range(MIN_SEEN):
        costs.observe(4, 3.0)
    assert costs.is_doubtful
    costs.observe(1, 1.5)
    assert not costs.is_doubtful
    assert costs.seconds(4) == pytest.approx(3.0, rel=0.2)
    for _ in range(WINDOW):
        costs.observe(4, 3.0)
    assert not costs.is_doubtful  # it is as slow as it was when last checked


def test_a_clock_too_coarse_to_see_a_pass_says_nothing() -> None:
    costs = PassCosts({1: 1.0})
    for _ in range(10):
        costs.observe(1, 0.0)
    assert costs.seconds(1) == 1.0


def test_the_table_has_what_was_measured_and_seen() -> None:
    costs = PassCosts({1: 1.0, 4: 2.0})
    costs.observe(1, 1.0)
    costs.observe(2, 1.4)
    assert set(costs.table()) == {1, 2, 4}
