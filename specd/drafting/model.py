"""Drafting with a small model."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from specd.decoding.context import TokenBuffer, Tokens
from specd.decoding.protocol import Engine, Evidence, Proposal, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import ToDistribution, certainty
from specd.decoding.verify import Draw
from specd.errors import EngineError

REGULAR_BACKLOG = 2  # tokens: the correction, behind the last drafted token when all were accepted


class DraftModel:
    """Decodes ahead with a small model that keeps its own KV cache.

    The cache already holds the tokens that were accepted, so each proposed token takes one decode: the first takes
    in what was committed since, in one batch. After rounds in which the model was idle that is a longer one, which is
    counted and timed. When the context does not fit, or holds ids that the draft does not know, it proposes nothing
    and says why; the target goes on.

    to_distribution:  the draft's own sampling; may differ from the target's
    draw:             how tokens are drawn from it: goes with the rule that verifies them
    num_shared:       ids below this mean the same in both models; no other is read or proposed
    """

    name = "draft"
    is_free = False

    def __init__(
        self,
        engine: Engine,
        to_distribution: ToDistribution,
        draw: Draw,
        *,
        num_shared: int,
        randomness: Randomness,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._to_distribution = to_distribution
        self._num_shared = num_shared
        self._draw = draw
        self._randomness = randomness
        self._clock = clock
        self._failed = False
        self._notice: str | None = None
        self._num_decodes = self._num_catch_ups = 0
        self._catch_up_seconds = 0.0

    @property
    def notices(self) -> Mapping[str, str]:
        """Why it stopped proposing, if it did."""
        return {self.name: self._notice} if self._notice else {}

    @property
    def counters(self) -> Mapping[str, float]:
        """Decodes, each of which gave a token; those that took in more as it had been idle, and their seconds."""
        return {
            "num_decodes": self._num_decodes,
            "num_catch_up_decodes": self._num_catch_ups,
            "catch_up_seconds": self._catch_up_seconds,
        }

    def prepare(self, context: Tokens) -> None:
        """Decode the prompt, but for its last token."""
        if self._can_follow(context):
            with self._failing_softly():
                self._engine.sync(context[:-1])

    def backlog(self, context: Tokens) -> int:
        """How many tokens of the context are not in its cache."""
        return len(context) - self._engine.matching(context[:-1])

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """One decode per token, to the end of the draft's context."""
        if not self._can_follow(context):
            return
        with self._failing_softly():
            idle, started = self.backlog(context) > REGULAR_BACKLOG, self._clock()
            logits = self._engine.sync(context, num_rows=1)
            if idle:
                self._num_catch_ups += 1
                self._catch_up_seconds += self._clock() - started
            history = TokenBuffer(context, capacity=len(context) + 64)
            for depth in itertools.count():
                self._num_decodes += 1
                row = logits[-1, : self._num_shared]
                evidence = Evidence(self.name, depth, confidence=certainty(row))
                token, q = self._draw(self._to_distribution(row, history.view), len(history), self._randomness)
                yield Proposal(token, q, evidence)
                if len(history) >= self._engine.n_ctx:
                    return
                history.extend([token])
                logits = self._engine.advance(history.view[-1:])

    def observe(self, round_: Round) -> None:
        """Nothing to learn: `propose` sees the committed tokens in the context."""

    def _can_follow(self, context: Tokens) -> bool:
        """Whether the draft can hold and read the context; if not, the notice says why."""
        if self._failed:
            return False
        if len(context) > self._engine.n_ctx:
            self._notice = f"the draft's context of {self._engine.n_ctx} tokens is full"
            return False
        unknown = int(context.max())
        if unknown >= self._num_shared:
            self._notice = f"token {unknown} is not among the {self._num_shared} that the draft shares"
            return False
        return True

    @contextmanager
    def _failing_softly(self) -> Iterator[None]:
        """A draft model that breaks retires; what it had proposed still counts."""
        try:
            yield
        except EngineError as error:
            self._failed, self._notice = True, f"the draft model failed: {error}"
