import numpy as np
import pytest

from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.randomness import Randomness
from tests.enumeration import coupled_joint

TOKENS = as_tokens(range(3))
P = Distribution(TOKENS, np.array([0.6, 0.3, 0.1]))
Q = Distribution(TOKENS, np.array([0.2, 0.3, 0.5]))
DRAWS = 40_000


def test_acceptance_is_certain_at_the_ends() -> None:
    randomness = Randomness(0)
    assert all(randomness.accept(1.0) and randomness.accept(7.5) for _ in range(1000))
    assert not any(randomness.accept(0.0) for _ in range(1000))
    assert sum(randomness.accept(0.3) for _ in range(DRAWS)) / DRAWS == pytest.approx(0.3, abs=0.01)


def test_draws_follow_the_distribution() -> None:
    randomness = Randomness(1)
    counts = np.bincount([randomness.draw(P) for _ in range(DRAWS)], minlength=3)
    assert counts / DRAWS == pytest.approx(P.probs, abs=0.01)


def test_a_seed_repeats_and_another_does_not() -> None:
    def draws(seed: int) -> list[int]:
        randomness = Randomness(seed)
        return [randomness.draw(P) for _ in range(50)] + [randomness.coupled(P, i) for i in range(50)]

    assert draws(5) == draws(5)
    assert draws(5)[:50] != draws(6)[:50]
    assert draws(5)[50:] != draws(6)[50:]
    assert draws(2**63 - 1) != draws(0)


def test_coupled_picks_follow_both_distributions_and_their_joint_law() -> None:
    randomness = Randomness(2)
    counts = np.zeros((3, 3))
    for position in range(DRAWS):
        counts[randomness.coupled(P, position), randomness.coupled(Q, position)] += 1
    assert counts.sum(axis=1) / DRAWS == pytest.approx(P.probs, abs=0.01)
    assert counts.sum(axis=0) / DRAWS == pytest.approx(Q.probs, abs=0.01)
    assert counts / DRAWS == pytest.approx(coupled_joint(P, Q), abs=0.01)


def test_the_noise_depends_on_the_token_not_on_which_others_survived() -> None:
    randomness = Randomness(3)
    whole = randomness.exponentials(17, as_tokens(range(100)))
    assert np.array_equal(randomness.exponentials(17, as_tokens([4, 90, 99])), whole[[4, 90, 99]])


def test_the_noise_is_exponential_and_independent_between_places_tokens_and_seeds() -> None:
    tokens = as_tokens(range(2000))
    noise = np.array([Randomness(seed).exponentials(p, tokens) for seed in (0, 1) for p in range(20)])
    assert np.isfinite(noise).all()
    assert (noise > 0).all()
    uniforms = np.exp(-noise)
    histogram = np.histogram(uniforms, bins=50, range=(0, 1))[0]
    expected = uniforms.size / 50
    assert ((histogram - expected) ** 2 / expected).sum() < 100  # 49 degrees of freedom: exceeded once in 20 000
    between_rows = np.corrcoef(noise)
    assert np.abs(between_rows - np.eye(len(noise))).max() < 0.1
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.02
