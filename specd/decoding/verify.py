"""Verification: which drafted tokens stand, and which token follows, without changing the distribution."""

from collections.abc import Iterator

import numpy as np

from specd.decoding.protocol import Draft, Verdict
from specd.decoding.sampling import Distribution


def rejection(draft: Draft, target_probs: Iterator[Distribution], rng: np.random.Generator) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

    target_probs:  the target's distributions, one per drafted token and one after them all; those behind the
                   first refused token are not asked for

    A token x drawn from q stands with probability min(1, p(x) / q(x)). The first that does not is replaced by
    a draw from norm(max(p - q, 0)); when all stand, one more token is drawn from the last distribution.
    """
    # zip asks the drafted tokens first: when they are used up, the last distribution is still there
    for i, (token, q, p) in enumerate(zip(draft.tokens.tolist(), draft.probs, target_probs, strict=False)):
        if rng.random() * q.prob(token) >= p.prob(token):
            return Verdict(i, p.minus(q).sample(rng))
    return Verdict(len(draft), next(target_probs).sample(rng))
