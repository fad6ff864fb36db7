"""All chance in decoding: one seeded generator, and noise that is a function of where it is used."""

import numpy as np
import numpy.typing as npt

from specd.decoding.context import Tokens
from specd.decoding.distribution import Distribution

_GOLDEN, _MIX_1, _MIX_2 = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_TWO_53 = 2.0**53


class Randomness:
    """The three ways in which drafting and verification use chance.

    seed:  0 … 2^64 - 1; the same seed and the same calls give the same results
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._seed = np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64)

    def accept(self, probability: float) -> bool:
        """True with the given probability; always for 1 and never for 0."""
        return self._generator.random() < probability

    def draw(self, distribution: Distribution) -> int:
        """A token, drawn with the generator."""
        return distribution.at(self._generator.random())

    def coupled(self, distribution: Distribution, position: int) -> int:
        """A token, drawn with noise that depends on seed, position and token only: argmax(log p + Gumbel noise).

        Two distributions that are alike give the same token at the same position more often than not, and one
        distribution always does. Source: Gumbel coupling (arXiv 2408.07978). position: of the drawn token.
        """
        if len(distribution.tokens) == 1:
            return int(distribution.tokens[0])
        waits = self.exponentials(position, distribution.tokens) / distribution.probs  # the shortest wins
        return int(distribution.tokens[waits.argmin()])

    def exponentials(self, position: int, tokens: Tokens) -> npt.NDArray[np.float64]:
        """Independent Exp(1) variates by (seed, position, token), `[num_tokens]`; -log of each is Gumbel.

        Counter-based: the finaliser of splitmix64 (Steele, Lea and Flood 2014) over the counters.
        """
        key = _mixed(_mixed(self._seed) + np.array([position], np.uint64) * _GOLDEN)
        bits = _mixed(key + (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        uniforms = ((bits >> np.uint64(11)) + 0.5) / _TWO_53
        return np.asarray(-np.log(uniforms), np.float64)


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
