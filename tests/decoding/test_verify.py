"""Rejection sampling keeps the target's distribution; a rule that does not fails the same test."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from specd.decoding.context import as_tokens
from specd.decoding.protocol import Draft, Verdict
from specd.decoding.sampling import Distribution
from specd.decoding.verify import rejection

Rule = Callable[[Draft, Iterator[Distribution], np.random.Generator], Verdict]
DRAWS = 20_000
CHI_SQUARE_999 = {8: 26.12}  # degrees of freedom -> the value exceeded once in a thousand


def dense(probs: Sequence[float]) -> Distribution:
    return Distribution(as_tokens(range(len(probs))), np.array(probs))


def accept_everything(draft: Draft, target_probs: Iterator[Distribution], rng: np.random.Generator) -> Verdict:
    return Verdict(len(draft), list(target_probs)[-1].sample(rng))


def redraw_from_target(draft: Draft, target_probs: Iterator[Distribution], rng: np.random.Generator) -> Verdict:
    """Forgets to subtract the draft's share from the correction."""
    rows = list(target_probs)
    verdict = rejection(draft, iter(rows), rng)
    if verdict.num_accepted == len(draft):
        return verdict
    return Verdict(verdict.num_accepted, rows[verdict.num_accepted].sample(rng))


def chi_square_of(rule: Rule, one_hot_draft: bool) -> float:
    """First two tokens of a toy chain (V = 3) drafted and verified, against the target's joint distribution."""
    rng = np.random.default_rng(7)
    target_first, target_next = [0.6, 0.3, 0.1], np.array([[0.1, 0.8, 0.1], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
    draft_first, draft_next = [0.2, 0.3, 0.5], np.array([[0.6, 0.2, 0.2], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    counts = np.zeros((3, 3))
    for _ in range(DRAWS):
        q1 = Distribution.one_hot(1) if one_hot_draft else dense(draft_first)
        x1 = q1.sample(rng)
        q2 = Distribution.one_hot(2) if one_hot_draft else dense(draft_next[x1])
        x2 = q2.sample(rng)
        draft = Draft("toy", as_tokens([x1, x2]), (q1, q2))
        rows = [dense(target_first), dense(target_next[x1]), dense(target_next[x2])]
        verdict = rule(draft, iter(rows), rng)
        tokens = [*[x1, x2][: verdict.num_accepted], verdict.next_token]
        if len(tokens) == 1:  # the target's own token came first: the next round draws the second
            tokens.append(dense(target_next[tokens[0]]).sample(rng))
        counts[tokens[0], tokens[1]] += 1
    expected = DRAWS * np.array(target_first)[:, None] * target_next
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("one_hot_draft", [False, True])
def test_rejection_keeps_the_joint_distribution(one_hot_draft: bool) -> None:
    assert chi_square_of(rejection, one_hot_draft) < CHI_SQUARE_999[8]


@pytest.mark.parametrize("rule", [accept_everything, redraw_from_target])
@pytest.mark.parametrize("one_hot_draft", [False, True])
def test_wrong_rules_fail_the_same_test(rule: Rule, one_hot_draft: bool) -> None:
    assert chi_square_of(rule, one_hot_draft) > 10 * CHI_SQUARE_999[8]


@pytest.mark.parametrize("num_right", range(5))
def test_the_correction_comes_from_the_first_refused_row(num_right: int) -> None:
    drafted = [10, 11, 12, 13][:4]
    rows = [Distribution.one_hot(t if i < num_right else 50 + i) for i, t in enumerate([*drafted, 54])]
    asked = iter(rows)
    verdict = rejection(Draft.certain("toy", drafted), asked, np.random.default_rng(0))
    assert len(list(asked)) == 4 - num_right  # the rows behind the refused one cost nothing
    assert verdict == Verdict(num_right, 54 if num_right == 4 else 50 + num_right)
