"""Every way in which a random procedure can go, with exact probabilities."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from specd.decoding.distribution import Distribution

Result = TypeVar("Result")


class Branching:
    """Stands in for Randomness: follows a list of choices, then takes the first possible one, and keeps a record.

    For `coupled`, the second call at a position is conditional on the first: both pick with the same noise.
    """

    def __init__(self, choices: list[int]) -> None:
        self._choices = choices
        self.record: list[tuple[list[float], int]] = []  # weights of the options, and the one taken
        self._picked: dict[int, tuple[Distribution, int]] = {}

    def accept(self, probability: float) -> bool:
        p = min(1.0, probability)
        return bool(self._choose([(p, True), (1 - p, False)]))

    def draw(self, distribution: Distribution) -> int:
        return self._choose(list(zip(distribution.probs.tolist(), distribution.tokens.tolist(), strict=True)))

    def coupled(self, distribution: Distribution, position: int) -> int:
        if position not in self._picked:
            token = self.draw(distribution)
            self._picked[position] = (distribution, token)
            return token
        other, token = self._picked[position]
        joint = coupled_joint(distribution, other)[:, token] / other.prob(token)
        return self._choose([(float(joint[t]), t) for t in range(3)])

    def _choose(self, options: list[tuple[float, int]]) -> int:
        possible = [(weight, value) for weight, value in options if weight > 0]
        at = len(self.record)
        choice = self._choices[at] if at < len(self._choices) else 0
        self.record.append(([weight for weight, _ in possible], choice))
        return possible[choice][1]


def every_way(procedure: Callable[[Branching], Result]) -> Iterator[tuple[float, Result]]:
    """The procedure's results with their probabilities, one for each way of chance."""
    waiting: list[list[int]] = [[]]
    while waiting:
        choices = waiting.pop()
        branching = Branching(choices)
        result = procedure(branching)
        taken = [choice for _, choice in branching.record]
        for depth in range(len(choices), len(taken)):
            waiting += [[*taken[:depth], other] for other in range(1, len(branching.record[depth][0]))]
        yield math.prod(weights[choice] for weights, choice in branching.record), result


def coupled_joint(p: Distribution, q: Distribution) -> np.ndarray:
    """P(p picks a and q picks b) where both take argmin E / probability over the same Exp(1) E; three tokens.

    For a = b it is 1 / sum_x max(p_x / p_a, q_x / q_b). Else, with r = E_b / E_a, the density of r is
    1 / (1 + r + max(p_c / p_a, r q_c / q_b))^2 for p_b / p_a <= r <= q_b / q_a, c being the third token.
    """
    ps, qs = [p.prob(t) for t in range(3)], [q.prob(t) for t in range(3)]
    joint = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            if ps[a] == 0 or qs[b] == 0:
                continue
            if a == b:
                joint[a, a] = 1 / sum(max(ps[x] / ps[a], qs[x] / qs[a]) for x in range(3))
                continue
            c = 3 - a - b
            low, high = ps[b] / ps[a], qs[b] / qs[a] if qs[a] else math.inf
            alpha, beta = ps[c] / ps[a], qs[c] / qs[b]
            knee = alpha / beta if beta else math.inf
            if low < min(high, knee):
                joint[a, b] += 1 / (1 + alpha + low) - 1 / (1 + alpha + min(high, knee))
            if max(low, knee) < high:
                start, end = 1 + max(low, knee) * (1 + beta), 1 + high * (1 + beta)
                joint[a, b] += (1 / start - 1 / end) / (1 + beta)
    return joint
