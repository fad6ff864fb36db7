"""Verification: which drafted tokens stand, and which token follows, without changing the target's distribution.

All rules are lossless and have one signature. Beside each stands how a draft model should draw its tokens for it.
In the comments, p_i and q_i are the target's and the draft's distributions of the i-th drafted token x_i.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from specd.decoding.distribution import Distribution
from specd.decoding.protocol import Draft, Verdict
from specd.decoding.randomness import Randomness

Verify = Callable[[Draft, Iterator[Distribution], int, Randomness], Verdict]
"""(draft, target_probs, position, randomness) -> verdict.

target_probs:  the target's distributions, one per drafted token and one after them all; a rule asks for no more
               of them than it needs
position:      of the first drafted token in the sequence
"""

Draw = Callable[[Distribution, int, Randomness], tuple[int, Distribution]]
"""(q, position, randomness) -> a drafted token, and the distribution that it was really drawn from."""


def rejection(draft: Draft, target_probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

    x_i stands with probability min(1, p_i(x_i) / q_i(x_i)). The first that does not is replaced by a draw from
    norm(max(p_i - q_i, 0)); when all stand, one more token is drawn from the target.
    """
    # zip asks the drafted tokens first: when they are used up, the last distribution is still there
    for i, (token, q, p) in enumerate(zip(draft.tokens.tolist(), draft.probs, target_probs, strict=False)):
        if not randomness.accept(p.prob(token) / q.prob(token)):
            return Verdict(i, randomness.draw(p.restricted(p.excess(q))))
    return Verdict(len(draft), randomness.draw(next(target_probs)))


def block(draft: Draft, target_probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """Block verification (Sun et al. 2024, arXiv 2403.10444): the longest prefix that passes, not the first failure.

    With r_0 = 1 and r_i = min(1, r_(i-1) p_i(x_i) / q_i(x_i)), the prefix of length i passes with probability
    s / (s + 1 - r_i), where s is the mass of max(r_i p_(i+1) - q_(i+1), 0); the whole draft with r_k. The next token
    follows norm(max(r_i p_(i+1) - q_(i+1), 0)), or the target's last distribution after a whole draft.
    """
    ratio, p = 1.0, next(target_probs)
    longest = (0, ratio, p)
    for i, (token, q) in enumerate(zip(draft.tokens.tolist(), draft.probs, strict=True), start=1):
        ratio = min(1.0, ratio * p.prob(token) / q.prob(token))
        if ratio == 0:  # no longer prefix can pass
            break
        p = next(target_probs)
        passes = ratio
        if i < len(draft) and ratio < 1:
            mass = float(p.excess(draft.probs[i], ratio).sum())
            passes = mass / (mass + 1 - ratio)
        if randomness.accept(passes):
            longest = (i, ratio, p)
    num_accepted, ratio, p = longest
    if num_accepted < len(draft):
        p = p.restricted(p.excess(draft.probs[num_accepted], ratio))
    return Verdict(num_accepted, randomness.draw(p))


def coupled(draft: Draft, target_probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """Gumbel coupling (arXiv 2408.07978): the target draws each token with noise of that place, and x_i stands
    when it is the same token. A draft drawn with the same noise often is.

    The output depends on the seed and the target alone, whatever is drafted.
    """
    return _on_equality(draft, target_probs, lambda p, i: randomness.coupled(p, position + i))


def match(draft: Draft, target_probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """The target draws each token by itself, and x_i stands when it is the same token, as in llama.cpp."""
    return _on_equality(draft, target_probs, lambda p, i: randomness.draw(p))


def _on_equality(
    draft: Draft, target_probs: Iterator[Distribution], draw: Callable[[Distribution, int], int]
) -> Verdict:
    for i, (token, p) in enumerate(zip(draft.tokens.tolist(), target_probs, strict=False)):
        drawn = draw(p, i)
        if drawn != token:
            return Verdict(i, drawn)
    return Verdict(len(draft), draw(next(target_probs), len(draft)))


def draw_independently(q: Distribution, position: int, randomness: Randomness) -> tuple[int, Distribution]:
    """A sample of q; its noise is never used again, or the output would be biased."""
    return randomness.draw(q), q


def draw_coupled(q: Distribution, position: int, randomness: Randomness) -> tuple[int, Distribution]:
    """The token that the noise of this position picks from q."""
    return randomness.coupled(q, position), q


def draw_most_likely(q: Distribution, position: int, randomness: Randomness) -> tuple[int, Distribution]:
    """The token most likely to be matched; drawn from a one-hot distribution, that is."""
    token = q.most_likely()
    return token, Distribution.one_hot(token)


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to verify, and the way to draw drafts that suits it."""

    verify: Verify
    draw: Draw


class RuleName(StrEnum):
    """The rules by name."""

    REJECTION = "rejection"
    BLOCK = "block"
    COUPLED = "coupled"
    MATCH = "match"


RULES = {
    RuleName.REJECTION: Rule(rejection, draw_independently),
    RuleName.BLOCK: Rule(block, draw_independently),
    RuleName.COUPLED: Rule(coupled, draw_coupled),
    RuleName.MATCH: Rule(match, draw_most_likely),
}
