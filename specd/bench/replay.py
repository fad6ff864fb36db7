"""Runs any controller over a recorded trace, on simulated time."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specd.bench.trace import Trace
from specd.decoding.context import TokenBuffer, Tokens, common_prefix_length
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.distribution import Distribution
from specd.decoding.loop import generate
from specd.decoding.protocol import Controller, Drafter, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import Logits
from specd.decoding.statistics import Statistics
from specd.decoding.verify import draw_most_likely, match
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.drafting.predicted import Predicted

MAX_DRAFT = 31  # tokens
_NUM_OTHERS = 50  # entries beside the most likely one in a recorded row
Build = Callable[[Sequence[Drafter], Callable[[], float]], Controller]


class SimulatedClock:
    """Seconds that pass only when an engine computes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RecordedEngine:
    """A model that answers from a trace and takes the time that its passes took.

    said:  what follows prompt and some tokens of output: a token, and its confidence
    """

    n_vocab = 1 + _NUM_OTHERS
    max_rows = MAX_DRAFT + 1
    batch_size = 1 << 20

    def __init__(
        self,
        trace: Trace,
        said: Callable[[Tokens], tuple[int, float]],
        seconds: Mapping[int, float],
        clock: SimulatedClock,
    ) -> None:
        self._held = TokenBuffer()
        self._prompt_length = len(trace.prompt)
        self._said, self._costs, self._clock = said, PassCosts(seconds), clock
        self.n_ctx = len(trace.prompt) + len(trace.steps) + MAX_DRAFT + 1

    def __len__(self) -> int:
        return len(self._held)

    def to_distribution(self, row: np.ndarray, history: Tokens) -> Distribution:
        """What the model says after `history`; the row holds only its confidence."""
        return Distribution.one_hot(self._said(history[self._prompt_length :])[0])

    def matching(self, tokens: Tokens) -> int:
        """As an engine's."""
        return common_prefix_length(self._held.view, tokens)

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        """As an engine's."""
        kept = min(self.matching(tokens), len(tokens) - num_rows)
        self.rollback(kept)
        return self._append(tokens[kept:], num_rows)

    def advance(self, tokens: Tokens) -> Logits:
        """As an engine's."""
        return self._append(tokens, len(tokens))

    def checkpoint(self) -> None:
        """As an engine's."""

    def rollback(self, length: int) -> None:
        """As an engine's."""
        self._held.truncate(length)

    def _append(self, tokens: Tokens, num_rows: int) -> Logits:
        if len(tokens):
            self._clock.now += self._costs.seconds(len(tokens))
        self._held.extend(tokens)
        rows = np.zeros((num_rows, self.n_vocab), np.float32)
        for i in range(num_rows):
            output = self._held.view[self._prompt_length : len(self._held) - num_rows + 1 + i]
            confidence = min(max(self._said(output)[1], 0.03), 0.999)
            rows[i, 0] = np.log(confidence * _NUM_OTHERS / (1 - confidence))
        return rows


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run over a trace. seconds: of decoding, simulated."""

    seconds: float
    statistics: Statistics
    rounds: tuple[Round, ...]


class Replay:
    """A trace, and the models and drafters in it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._output = trace.output

    @property
    def plain_seconds(self) -> float:
        """What plain decoding takes."""
        return len(self._output) * self.trace.target_seconds[1]

    def run(self, build: Build, names: Sequence[str] = ("lookup", "draft")) -> Replayed:
        """Run a controller with the drafters of these names."""
        clock = SimulatedClock()
        target = RecordedEngine(self.trace, self._target_says, self.trace.target_seconds, clock)
        drafters = [drafter for drafter in self._drafters(clock) if drafter.name in names]
        statistics = Statistics(clock)
        rounds = []
        for event in generate(
            target,
            build(drafters, clock),
            self.trace.prompt,
            target.to_distribution,
            match,
            max_tokens=len(self._output),
            is_end=lambda _: False,
            randomness=Randomness(0),
            clock=clock,
        ):
            statistics.add(event)
            if isinstance(event, Round):
                rounds.append(event)
        assert statistics.num_completion_tokens == len(self._output)
        return Replayed(statistics.decode_seconds, statistics, tuple(rounds))

    def best_fixed(self, name: str) -> tuple[int, float]:
        """The best fixed length of one drafter in hindsight, 0 among them, and its seconds."""
        runs = {0: self.plain_seconds}
        for num_draft in (*range(1, 9), 11, 15, 23, 31):
            build = lambda drafters, clock, n=num_draft: FixedLength(drafters, n, clock, plain_every=10**9)  # noqa: E731
            runs[num_draft] = self.run(build, [name]).seconds
        best = min(runs, key=runs.__getitem__)
        return best, runs[best]

    def oracle_seconds(self, names: Sequence[str] = ("lookup", "draft")) -> float:
        """The least time of any choices of drafter and length, known in advance: dynamic programming from the end.

        Each round one drafter is used, and no more of its tokens than will be accepted; what it costs a model to
        take in tokens that others drafted is left out. So a controller can come near to it, but hardly reach it.
        """
        target, draft = PassCosts(self.trace.target_seconds), PassCosts(self.trace.draft_seconds)
        runs = {name: self._runs(name) for name in names}
        n = len(self._output)
        least = [0.0] * (n + 1)
        for position in reversed(range(n)):
            choices = [target.seconds(1) + least[position + 1]]
            for name in names:
                for length in range(1, min(runs[name][position], n - position - 1, MAX_DRAFT) + 1):
                    drafting = length * draft.seconds(1) if name == "draft" else 0.0
                    choices.append(target.seconds(length + 1) + drafting + least[position + length + 1])
            least[position] = min(choices)
        return least[0]

    def _runs(self, name: str) -> list[int]:
        """At each position, how many tokens of a drafter would be accepted."""
        if name == "draft":
            return [self.trace.accepted(position) for position in range(len(self._output))]
        drafter = next(drafter for drafter in self._drafters(SimulatedClock()) if drafter.name == name)
        drafter.prepare(self.trace.prompt)
        context = np.concatenate([self.trace.prompt, self._output])
        runs = []
        for position in range(len(self._output)):
            proposals = drafter.propose(context[: len(self.trace.prompt) + position])
            pairs = zip(itertools.islice(proposals, MAX_DRAFT), self._output[position:].tolist(), strict=False)
            runs.append(sum(1 for _ in itertools.takewhile(lambda pair: pair[0].token == pair[1], pairs)))
        return runs

    def _drafters(self, clock: SimulatedClock) -> list[Drafter]:
        draft = RecordedEngine(self.trace, self._draft_says, self.trace.draft_seconds, clock)
        model = DraftModel(
            draft,
            draft.to_distribution,
            draw_most_likely,
            num_shared=1 << 30,
            randomness=Randomness(0),
            clock=clock,
        )
        predicted = [Predicted(self.trace.predicted)] if len(self.trace.predicted) else []
        return [*predicted, Lookup(), model]

    def _target_says(self, output: Tokens) -> tuple[int, float]:
        step = self.trace.steps[min(len(output), len(self._output) - 1)]
        return step.token, step.certainty

    def _draft_says(self, output: Tokens) -> tuple[int, float]:
        """From the record; behind tokens that neither model said, anything: it will not be accepted."""
        right = common_prefix_length(output, self._output)
        if right == len(self._output):
            return 0, 0.0
        proposals = self.trace.steps[right].draft
        ahead = len(output) - right
        return proposals[ahead] if ahead < len(proposals) else (0, 0.0)
