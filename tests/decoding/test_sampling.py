import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.decoding.sampling import Distribution, distributions_along, greedy
from specd.errors import EngineError

NO_TOKENS = as_tokens([])


def distribution(probs: dict[int, float]) -> Distribution:
    return Distribution(as_tokens(list(probs)), np.array(list(probs.values())))


def test_greedy_is_one_hot_on_the_largest_logit_and_keeps_the_row() -> None:
    row = np.array([0.5, 2.0, -1.0], np.float32)
    before = row.copy()
    result = greedy(row, NO_TOKENS)
    assert result.tokens.tolist() == [1]
    assert result.probs.tolist() == [1.0]
    assert np.array_equal(row, before)


def test_greedy_takes_the_smallest_id_among_equals() -> None:
    assert greedy(np.array([1.0, 3.0, 3.0], np.float32), NO_TOKENS).tokens.tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    with pytest.raises(EngineError, match="not numbers"):
        greedy(np.array([1.0, bad, 0.0], np.float32), NO_TOKENS)


def test_each_row_sees_the_context_and_the_drafted_tokens_before_it() -> None:
    seen: list[list[int]] = []

    def spy(row: np.ndarray, history: np.ndarray) -> Distribution:
        seen.append(history.tolist())
        return greedy(row, history)

    rows = distributions_along(np.zeros((3, 4), np.float32), as_tokens([7, 8, 1, 2]), spy)
    assert len(list(rows)) == 3
    assert seen == [[7, 8], [7, 8, 1], [7, 8, 1, 2]]


def test_prob_matches_by_token_not_by_place() -> None:
    p = distribution({9: 0.25, 3: 0.75})
    assert (p.prob(3), p.prob(9), p.prob(0)) == (0.75, 0.25, 0.0)


def test_the_residual_matches_by_token_not_by_place() -> None:
    p, q = distribution({1: 0.5, 2: 0.3, 3: 0.2}), distribution({3: 0.6, 1: 0.4})
    residual = p.minus(q)
    assert residual.tokens.tolist() == [1, 2]
    assert residual.probs == pytest.approx([0.25, 0.75])


def test_the_residual_of_equals_is_the_distribution_itself() -> None:
    p = distribution({1: 0.5, 2: 0.5})
    assert p.minus(p) is p


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0.01, 1), min_size=1),
    st.dictionaries(st.integers(0, 9), st.floats(0.01, 1), min_size=1),
)
def test_the_residual_is_a_distribution_over_what_p_has_more_of(a: dict[int, float], b: dict[int, float]) -> None:
    p = distribution({t: w / sum(a.values()) for t, w in a.items()})
    q = distribution({t: w / sum(b.values()) for t, w in b.items()})
    residual = p.minus(q)
    assert residual.probs.sum() == pytest.approx(1)
    if residual is not p:
        assert all(p.prob(t) > q.prob(t) for t in residual.tokens.tolist())


def test_sampling_follows_the_probabilities() -> None:
    rng = np.random.default_rng(3)
    p = distribution({4: 0.2, 2: 0.5, 9: 0.3})
    draws = [p.sample(rng) for _ in range(20_000)]
    for token in (4, 2, 9):
        assert draws.count(token) / len(draws) == pytest.approx(p.prob(token), abs=0.015)
