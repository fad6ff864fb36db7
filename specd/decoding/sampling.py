"""From logits to distributions: the only currency between drafting and verification.

A distribution is sparse: the tokens that can be drawn, and their probabilities. Greedy decoding is the
distribution with one token; nothing downstream knows whether it is greedy.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.decoding.context import Tokens
from specd.errors import EngineError

Logits = npt.NDArray[np.float32]  # [num_rows, n_vocab]
LogitsRow = npt.NDArray[np.float32]  # [n_vocab]
Probabilities = npt.NDArray[np.float64]  # [num_tokens]
_ONE = np.ones(1)
_ONE.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities over the few tokens that have any.

    tokens:  distinct token ids, `[num_tokens]`, at least one
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
            return float(self.probs[0]) if self.tokens[0] == token else 0.0
        index = (self.tokens == token).argmax()
        return float(self.probs[index]) if self.tokens[index] == token else 0.0

    def sample(self, rng: np.random.Generator) -> int:
        """Draw a token by inverting the cumulative distribution."""
        if len(self.tokens) == 1:
            return int(self.tokens[0])
        cumulative = np.cumsum(self.probs)
        index = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        return int(self.tokens[min(index, len(self.tokens) - 1)])

    def minus(self, other: "Distribution") -> "Distribution":
        """The residual norm(max(self - other, 0)), matched by token id; self where nothing remains."""
        order = np.argsort(other.tokens)
        known = other.tokens[order]
        slot = np.minimum(np.searchsorted(known, self.tokens), len(known) - 1)
        subtrahend = np.where(known[slot] == self.tokens, other.probs[order][slot], 0.0)
        remaining = np.maximum(self.probs - subtrahend, 0.0)
        mass = remaining.sum()
        if mass <= np.finfo(np.float64).eps:
            return self
        kept = remaining > 0
        return Distribution(self.tokens[kept], remaining[kept] / mass)


ToDistribution = Callable[[LogitsRow, Tokens], Distribution]
"""Turns the logits after some tokens, and those tokens, into the distribution of the next one."""


def greedy(logits: LogitsRow, context: Tokens) -> Distribution:
    """All probability on the largest logit; on the smallest id among equals.

    Raises EngineError when the logits are not finite there: the model computed nonsense.
    """
    token = int(logits.argmax())
    if not math.isfinite(logits[token]):
        raise EngineError(
            f"The model gave logits that are not numbers after {len(context)} tokens: its file is damaged, "
            "or this build of llama.cpp computes it wrongly. Compare with another model or --gpu-layers 0."
        )
    return Distribution.one_hot(token)


def distributions_along(logits: Logits, history: Tokens, to_distribution: ToDistribution) -> Iterator[Distribution]:
    """One distribution per row, when asked for: the last row follows all of `history`, each other one token less.

    logits:   `[num_draft + 1, n_vocab]`
    history:  committed tokens and then the drafted ones, `[num_context + num_draft]`
    """
    first = len(history) + 1 - len(logits)
    return (to_distribution(row, history[: first + i]) for i, row in enumerate(logits))
