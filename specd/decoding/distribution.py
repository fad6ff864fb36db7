"""Distributions over tokens: the only currency between drafting and verification.

They are sparse: the tokens that can be drawn, and their probabilities. Greedy decoding is the distribution with
one token; nothing downstream knows whether it is greedy.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.decoding.context import Tokens

Probabilities = npt.NDArray[np.float64]  # [num_tokens]
_ONE = np.ones(1)
_ONE.flags.writeable = False
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities over the few tokens that have any.

    tokens:  distinct token ids, ascending, `[num_tokens]`, at least one
    probs:   their probabilities, `[num_tokens]`, float64, summing to 1
    """

    tokens: Tokens
    probs: Probabilities

    @classmethod
    def one_hot(cls, token: int) -> "Distribution":
        """The distribution that always gives `token`."""
        return cls(np.array([token], np.int32), _ONE)

    def prob(self, token: int) -> float:
        """The probability of one token, 0 when it cannot be drawn."""
        if len(self.tokens) == 1:  # the common case, without array arithmetic
            return 1.0 if self.tokens[0] == token else 0.0
        index = self.tokens.searchsorted(token)
        return float(self.probs[index]) if index < len(self.tokens) and self.tokens[index] == token else 0.0

    def at(self, quantile: float) -> int:
        """The token at a quantile in [0, 1) of the cumulative distribution: a draw, for a uniform quantile."""
        if len(self.tokens) == 1:
            return int(self.tokens[0])
        cumulative = np.cumsum(self.probs)
        index = int(np.searchsorted(cumulative, quantile * cumulative[-1], side="right"))
        return int(self.tokens[min(index, len(self.tokens) - 1)])

    def most_likely(self) -> int:
        """The token with the largest probability, the smallest id among equals."""
        return int(self.tokens[self.probs.argmax()])

    def excess(self, other: "Distribution", scale: float = 1.0) -> Probabilities:
        """max(scale * self - other, 0) on this distribution's tokens, matched by id, `[num_tokens]`."""
        slot = np.minimum(np.searchsorted(other.tokens, self.tokens), len(other.tokens) - 1)
        others = np.where(other.tokens[slot] == self.tokens, other.probs[slot], 0.0)
        excess: Probabilities = np.maximum(scale * self.probs - others, 0.0)
        return excess

    def restricted(self, weights: Probabilities) -> "Distribution":
        """The tokens with the given weights, normalised; this distribution itself where no weight remains."""
        mass = weights.sum()
        if mass <= _EPS:
            return self
        kept = weights > 0
        return Distribution(self.tokens[kept], weights[kept] / mass)
