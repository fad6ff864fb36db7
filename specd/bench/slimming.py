"""Which parts of a draft model to leave out: the choice with the most expected tokens per second of the pair.

What is expected comes from two measurements: how often the draft's most likely token is the target's, position by
position along the target's own greedy answers, and what a drafted token costs. Pure: who measures is passed in.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specd.decoding.costs import PassCosts
from specd.errors import EngineError

SAME = "same"
WORTH = 1.005  # factor by which a choice must be better to be taken
MAX_LOSS = 0.04  # of agreement: what is lost beyond is not given for speed on these few texts
TIE = 0.99  # share of the best speed with which fewer tokens are taken: they take in prompts faster, and less memory
GAIN = 1.02  # factor by which the last one must be better than the parent to be worth a file
MAX_LENGTH = 15  # tokens of a draft that are thought of
_RANKED_AGAIN = 6  # layers that mattered least the last time, which are looked at again when one is gone


@dataclass(frozen=True, slots=True)
class Choice:
    """What a smaller draft is made of.

    kind:        type of the weights as the quantiser names it, with "-pure" behind it for every matrix in this very
                 type; "same" leaves them as they are
    num_tokens:  ids below stay, and control tokens; None for all
    layers:      that stay, ascending; None for all
    """

    kind: str = SAME
    num_tokens: int | None = None
    layers: tuple[int, ...] | None = None

    def __str__(self) -> str:
        parts = ["weights as they are" if self.kind == SAME else self.kind]
        parts.append("all tokens" if self.num_tokens is None else f"{self.num_tokens} tokens")
        parts.append("all layers" if self.layers is None else f"{len(self.layers)} layers")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """cost: of a drafted token, in plain steps of the target; hits: by text, whether each token would be accepted."""

    cost: float
    hits: Mapping[str, Sequence[bool]]

    @property
    def agreement(self) -> float:
        """The share of the target's tokens that the draft would have said."""
        total = sum(len(hits) for hits in self.hits.values())
        return sum(sum(hits) for hits in self.hits.values()) / total


Measure = Callable[[Choice, Sequence[str]], Measured]
"""Measures a choice on texts of these names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A choice that was looked at.

    measured:  None where it cannot be used, for a `reason`
    speedup:   expected over plain decoding
    is_best:   so far
    """

    choice: Choice
    measured: Measured | None
    speedup: float = 0.0
    is_best: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a draft is judged by.

    costs:    of passes of the target
    without:  by text, the speed over plain decoding that lookup reaches alone: there a draft must do better to matter
    """

    costs: PassCosts
    without: Mapping[str, float]

    def speedup(self, measured: Measured) -> float:
        """Expected speed of the pair over plain decoding: the geometric mean over texts, each with the drafter and at
        the fixed length that suit it."""
        speeds = [
            max(
                self.without.get(name, 1.0),
                *(_speed(hits, length, measured.cost, self.costs) for length in range(1, MAX_LENGTH + 1)),
            )
            for name, hits in measured.hits.items()
        ]
        return math.exp(sum(map(math.log, speeds)) / len(speeds))


def _speed(hits: Sequence[bool], length: int, cost: float, costs: PassCosts) -> float:
    """Of drafts of one length along an answer."""
    position, steps = 0, 0.0
    round_steps = costs.seconds(length + 1) / costs.seconds(1) + length * cost
    while position < len(hits):
        accepted = 0
        while accepted < length and position + accepted < len(hits) and hits[position + accepted]:
            accepted += 1
        position += accepted + 1
        steps += round_steps
    return len(hits) / steps


class Search:
    """Looks at one part after another: types, tokens, layers one by one.

    measure:     on texts by their names
    texts:       names of all calibration texts
    quick:       of those that are enough to rank layers
    start:       where to begin
    kinds:       types to try; none where the start's stays
    nums:        numbers of tokens to try, ascending; likewise
    num_layers:  of which some may be left out; 0 where the start's stay
    """

    def __init__(
        self,
        measure: Measure,
        texts: Sequence[str],
        quick: Sequence[str],
        terms: Terms,
        *,
        start: Choice,
        kinds: Sequence[str],
        nums: Sequence[int],
        num_layers: int,
    ) -> None:
        self._measure, self._texts, self._quick, self._terms = measure, texts, quick, terms
        self._kinds, self._nums, self._num_layers = kinds, nums, num_layers
        self.best = start
        self.speedup = self._top = 0.0
        self._least_agreement = 0.0

    def findings(self) -> Iterator[Finding]:
        """Each choice as it is measured. May be ended at any time: `best` then is the best so far."""
        yield (first := self._look(self.best))
        self._least_agreement = first.measured.agreement - MAX_LOSS if first.measured is not None else 0.0
        for kind in self._kinds:
            yield self._look(replace(self.best, kind=kind))
        for number in reversed(self._nums):
            yield self._look(replace(self.best, num_tokens=number), enough=TIE)
        if self._num_layers:
            yield from self._fewer_layers()

    def _fewer_layers(self) -> Iterator[Finding]:
        """Leave out the layer that matters least on few texts, as long as that is better on all."""
        layers = tuple(range(self._num_layers))
        candidates: Sequence[int] = layers
        while len(layers) > 1:
            ranked = []
            for layer in candidates:
                fewer = replace(self.best, layers=tuple(each for each in layers if each != layer))
                yield (finding := self._found(fewer, self._quick))
                ranked.append((finding.speedup, layer, fewer))
            ranked.sort(key=lambda entry: (-entry[0], entry[1]))
            finding = self._look(ranked[0][2])
            yield finding
            if not finding.is_best:
                return
            layers = finding.choice.layers or ()
            candidates = [layer for _, layer, _ in ranked[1 : 1 + _RANKED_AGAIN]]

    def _look(self, choice: Choice, enough: float = WORTH) -> Finding:
        """enough: share of the best speed with which it is taken."""
        finding = self._found(choice, self._texts)
        if finding.measured is None or finding.measured.agreement < self._least_agreement:
            return finding
        if finding.speedup <= self._top * enough:
            return finding
        self._top = max(self._top, finding.speedup)
        self.best, self.speedup = choice, finding.speedup
        return replace(finding, is_best=True)

    def _found(self, choice: Choice, texts: Sequence[str]) -> Finding:
        try:
            measured = self._measure(choice, texts)
        except EngineError as error:
            return Finding(choice, None, reason=str(error))
        return Finding(choice, measured, self._terms.speedup(measured))
