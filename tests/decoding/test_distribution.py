import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution

WEIGHTS = st.dictionaries(st.integers(0, 9), st.floats(0.01, 1), min_size=1)


def distribution(weights: dict[int, float]) -> Distribution:
    tokens = sorted(weights)
    probs = np.array([weights[token] for token in tokens])
    return Distribution(as_tokens(tokens), probs / probs.sum())


def test_the_probability_of_a_token_that_cannot_be_drawn_is_0() -> None:
    p = distribution({9: 0.25, 3: 0.75})
    assert [p.prob(token) for token in (0, 3, 5, 9, 11)] == [0, 0.75, 0, 0.25, 0]
    assert [Distribution.one_hot(4).prob(token) for token in (3, 4)] == [0, 1]


@pytest.mark.parametrize(("quantile", "token"), [(0, 2), (0.24, 2), (0.25, 5), (0.74, 5), (0.75, 7), (0.9999999, 7)])
def test_quantiles(quantile: float, token: int) -> None:
    assert distribution({2: 0.25, 5: 0.5, 7: 0.25}).at(quantile) == token


@given(WEIGHTS, WEIGHTS, st.floats(0, 1))
def test_the_excess_is_matched_by_token(a: dict[int, float], b: dict[int, float], scale: float) -> None:
    p, q = distribution(a), distribution(b)
    expected = [max(scale * p.prob(t) - q.prob(t), 0) for t in p.tokens.tolist()]
    assert p.excess(q, scale).tolist() == pytest.approx(expected, abs=1e-15)


def test_a_restriction_is_normalised_and_drops_what_has_no_weight() -> None:
    p = distribution({1: 0.5, 2: 0.3, 3: 0.2})
    residual = p.restricted(p.excess(distribution({3: 0.6, 1: 0.4})))
    assert residual.tokens.tolist() == [1, 2]
    assert residual.probs == pytest.approx([0.25, 0.75])


def test_without_any_weight_it_is_the_distribution_itself() -> None:
    p = distribution({1: 0.5, 2: 0.5})
    assert p.restricted(p.excess(p)) is p
