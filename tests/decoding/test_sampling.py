"""Filters against hand-written tables, and against slow and obvious versions of themselves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.sampling import (
    SamplingParams,
    biased,
    distributions_along,
    greedy,
    largest,
    likely_enough,
    nucleus,
    penalised,
    sampler,
    softmax,
)
from specd.errors import EngineError, UsageError

NO_TOKENS = as_tokens([])
UNFILTERED = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def log_row(*probs: float) -> np.ndarray:
    return np.log(np.array(probs)).astype(np.float32)


def table(distribution: Distribution) -> dict[int, float]:
    return dict(zip(distribution.tokens.tolist(), distribution.probs.tolist(), strict=True))


def kept(values: np.ndarray, filtered: object) -> list[int]:
    """The indices that a filter kept, as a list."""
    return np.arange(len(values))[filtered].tolist()  # type: ignore[index]


def test_greedy_is_one_hot_on_the_largest_logit_the_smallest_id_among_equals() -> None:
    assert table(greedy(row(0.5, 2.0, -1.0), NO_TOKENS)) == {1: 1.0}
    assert table(greedy(row(1.0, 3.0, 3.0), NO_TOKENS)) == {1: 1.0}


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, **UNFILTERED}])
@pytest.mark.parametrize("bad", [[np.nan] * 300, [np.inf] + [0.0] * 299, [-np.inf] * 300])
def test_logits_that_are_not_numbers_are_an_error(params: dict[str, float], bad: list[float]) -> None:
    with pytest.raises(EngineError, match="not numbers"):
        sampler(SamplingParams(**params))(row(*bad), NO_TOKENS)  # type: ignore[arg-type]


def test_temperature_sharpens_and_flattens() -> None:
    logits = log_row(0.5, 0.3, 0.2)
    assert softmax(logits, 1.0) == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    squares = np.array([0.25, 0.09, 0.04])
    assert softmax(logits, 0.5) == pytest.approx(squares / squares.sum(), abs=1e-6)
    assert table(sampler(SamplingParams(temperature=0))(logits, NO_TOKENS)) == {0: 1.0}
    assert softmax(logits, 1e-9) == pytest.approx([1, 0, 0])


def test_top_k_top_p_and_min_p_by_hand() -> None:
    probs = np.array([0.1, 0.4, 0.05, 0.25, 0.2])
    assert kept(probs, largest(probs, 2)) == [1, 3]
    assert kept(probs, largest(probs, 0)) == [0, 1, 2, 3, 4]
    assert kept(probs[:4], largest(np.array([1.0, 2.0, 2.0, 2.0]), 2)) == [1, 2]
    assert kept(probs, nucleus(probs, 0.4)) == [1]
    assert kept(probs, nucleus(probs, 0.41)) == [1, 3]
    assert kept(probs, nucleus(probs, 0.66)) == [1, 3, 4]
    assert kept(probs, nucleus(probs, 1.0)) == [0, 1, 2, 3, 4]
    assert kept(probs, likely_enough(probs, 0.5)) == [1, 3, 4]
    assert kept(probs, likely_enough(probs, 1.0)) == [1]


def test_the_order_of_filters() -> None:
    """Top-p sees what top-k left, and min-p what both left."""
    logits = log_row(0.4, 0.3, 0.2, 0.1)
    params = SamplingParams(temperature=1, top_k=3, top_p=0.75, min_p=0.0)
    assert table(sampler(params)(logits, NO_TOKENS)) == pytest.approx({0: 4 / 7, 1: 3 / 7}, abs=1e-6)  # 0.7 / 0.9
    params = SamplingParams(temperature=1, top_k=3, top_p=0.8, min_p=0.6)
    assert table(sampler(params)(logits, NO_TOKENS)) == pytest.approx({0: 4 / 7, 1: 3 / 7}, abs=1e-6)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 2000))
def test_the_k_largest_are_those_of_a_full_sort(seed: int, k: int, n: int) -> None:
    values = np.random.default_rng(seed).integers(0, 50, n * 10).astype(np.float32)  # many equals
    expected = np.sort(np.argsort(-values, kind="stable")[:k])
    assert kept(values, largest(values, k)) == expected.tolist()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.9999), st.sampled_from([0.2, 1.0, 3.0]))
def test_the_nucleus_is_that_of_a_full_sort(seed: int, share: float, spread: float) -> None:
    probs = softmax(np.random.default_rng(seed).normal(scale=spread, size=3000).astype(np.float32), 1.0)
    order = np.argsort(-probs, kind="stable")
    count = int(np.searchsorted(np.cumsum(probs[order]), share)) + 1
    assert kept(probs, nucleus(probs, share)) == np.sort(order[:count]).tolist()


def test_tokens_that_cannot_come_are_not_in_the_distribution() -> None:
    logits = row(1.0, -np.inf, 0.0, -np.inf)
    result = sampler(SamplingParams(temperature=1, **UNFILTERED))(logits, NO_TOKENS)  # type: ignore[arg-type]
    assert result.tokens.tolist() == [0, 2]
    assert result.probs.sum() == pytest.approx(1, abs=1e-15)


def test_penalties_by_hand() -> None:
    logits = row(2.0, -2.0, 1.0, 4.0)
    history = as_tokens([0, 1, 1, 0, 1])
    changed = penalised(logits, history, SamplingParams(repeat_penalty=2.0))
    assert changed.tolist() == [1.0, -4.0, 1.0, 4.0]
    changed = penalised(logits, history, SamplingParams(presence_penalty=0.5, frequency_penalty=0.25))
    assert changed.tolist() == [2.0 - 0.5 - 0.5, -2.0 - 0.5 - 0.75, 1.0, 4.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 4.0]  # the caller's row is untouched


@pytest.mark.parametrize(
    ("window", "penalised_tokens"), [(0, []), (1, [3]), (2, [2, 3]), (64, [0, 2, 3]), (-1, [0, 2, 3])]
)
def test_the_window_of_the_penalties(window: int, penalised_tokens: list[int]) -> None:
    logits = row(1.0, 1.0, 1.0, 1.0)
    params = SamplingParams(presence_penalty=1.0, penalty_window=window)
    changed = penalised(logits, as_tokens([0, 2, 3]), params)
    assert np.flatnonzero(changed == 0.0).tolist() == penalised_tokens


def test_penalties_come_before_greedy_too() -> None:
    params = SamplingParams(presence_penalty=5.0)
    assert table(sampler(params)(row(2.0, 3.0), as_tokens([1]))) == {0: 1.0}


def test_a_bias_by_hand() -> None:
    logits = row(1.0, 2.0)
    assert biased(logits, {0: 1.5, 1: -math.inf, 9: 3.0}).tolist() == [2.5, -math.inf]
    assert logits.tolist() == [1.0, 2.0]
    assert biased(logits, {}) is logits
    assert table(sampler(SamplingParams(logit_bias={1: -math.inf}))(logits, NO_TOKENS)) == {0: 1.0}


def test_each_row_sees_the_context_and_the_drafted_tokens_before_it() -> None:
    """User cases 7 and 8: exactly the committed prefix at every position, inside a block too."""
    seen: list[list[int]] = []

    def spy(logits: np.ndarray, history: np.ndarray) -> Distribution:
        seen.append(history.tolist())
        return greedy(logits, history)

    rows = distributions_along(np.zeros((3, 4), np.float32), as_tokens([7, 8, 1, 2]), spy)
    assert len(list(rows)) == 3
    assert seen == [[7, 8], [7, 8, 1], [7, 8, 1, 2]]


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([0.1, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
)
def test_whatever_the_filters_the_result_is_a_distribution(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(scale=4, size=500).astype(np.float32)
    before = logits.copy()
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=1.1)
    result = sampler(params)(logits, as_tokens([3, 3, 400]))
    assert result.tokens.dtype == np.int32
    assert (np.diff(result.tokens) > 0).all()
    assert (result.probs > 0).all()
    assert result.probs.sum() == pytest.approx(1, abs=1e-12)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -0.1, "0 or more"),
        ("temperature", math.nan, "0 or more"),
        ("temperature", math.inf, "0 or more"),
        ("top_k", -1, "0 .all. or more"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("top_p", math.nan, "above 0 and at most 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", 1.1, "from 0 to 1"),
        ("repeat_penalty", 0.0, "above 0"),
        ("presence_penalty", math.nan, "a number"),
        ("frequency_penalty", math.inf, "a number"),
        ("penalty_window", -2, "-1 .all., 0 .none. or more"),
    ],
)
def test_bad_values_are_refused_with_the_allowed_range(name: str, value: float, words: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*must be {words}"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_a_bias_that_is_not_a_number_is_refused(bias: float) -> None:
    with pytest.raises(UsageError, match="bias of token 5"):
        SamplingParams(logit_bias={5: bias})
