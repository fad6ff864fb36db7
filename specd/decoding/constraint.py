"""Text that must follow a grammar: the constraint comes before everything else that makes a distribution."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from specd.decoding.context import Tokens
from specd.decoding.distribution import Distribution
from specd.decoding.sampling import LogitsRow, ToDistribution
from specd.errors import EngineError

Mask = npt.NDArray[np.bool_]  # [n_vocab]


class Constraint(Protocol):
    """What may follow some tokens. Every call may be about any context that begins with the prompt."""

    def allowed(self, context: Tokens) -> Mask | None:
        """The tokens that may follow, at least one; None when the context itself breaks the rules."""

    def permits(self, context: Tokens, token: int) -> bool:
        """Whether one token may follow."""

    def forced(self, context: Tokens) -> list[int]:
        """Tokens that must follow, as far as nothing else may; often none."""


def constrained(to_distribution: ToDistribution, constraint: Constraint) -> ToDistribution:
    """The distribution of the tokens that are allowed: the others are taken out of the logits before penalties,
    temperature and filters see them, so what is left is normalised among the allowed ones.

    A token that would be the only one left without the constraint is the only one with it, if it is allowed: then
    nothing else of the vocabulary is looked at, which is most of the time.

    Behind a drafted token that is not allowed, which the target is going to refuse, anything goes.
    """

    def apply(row: LogitsRow, history: Tokens) -> Distribution:
        free = to_distribution(row, history)
        if len(free.tokens) == 1 and constraint.permits(history, int(free.tokens[0])):
            return free
        mask = constraint.allowed(history)
        if mask is None:
            return free
        left = np.flatnonzero(mask[: len(row)])
        if not len(left):
            raise EngineError("None of the tokens that the grammar allows here is known to the model.")
        if len(left) == 1:
            return Distribution.one_hot(int(left[0]))
        masked = np.full_like(row, -np.inf)
        masked[left] = row[left]
        if masked.max() == -np.inf:
            raise EngineError("The grammar allows only tokens here that --logit-bias or the model rules out.")
        return to_distribution(masked, history)

    return apply
