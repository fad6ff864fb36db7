"""Drafting with a small model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from specd.decoding.context import Tokens, as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.protocol import Draft, Engine, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import ToDistribution
from specd.decoding.verify import Draw
from specd.errors import EngineError


class DraftModel:
    """Decodes ahead with a small model that keeps its own KV cache.

    The cache already holds the tokens that were accepted, so a draft of k tokens takes k decodes: the first
    one takes in whatever was committed since. When the context does not fit, or holds ids that the draft does
    not know, it proposes nothing and says why; the target goes on.

    to_distribution:  the draft's own sampling; may differ from the target's
    draw:             how tokens are drawn from it: goes with the rule that verifies them
    num_shared:       ids below this mean the same in both models; no other is read or proposed
    """

    name = "draft"

    def __init__(
        self,
        engine: Engine,
        to_distribution: ToDistribution,
        draw: Draw,
        *,
        num_shared: int,
        randomness: Randomness,
    ) -> None:
        self._engine = engine
        self._to_distribution = to_distribution
        self._num_shared = num_shared
        self._draw = draw
        self._randomness = randomness
        self._failed = False
        self._notice: str | None = None

    @property
    def notices(self) -> Mapping[str, str]:
        """Why it stopped proposing, if it did."""
        return {self.name: self._notice} if self._notice else {}

    def prepare(self, context: Tokens) -> None:
        """Decode the prompt, but for its last token."""
        if self._can_follow(context):
            with self._failing_softly():
                self._engine.sync(context[:-1])

    def propose(self, context: Tokens, max_tokens: int) -> Draft:
        """One decode per token; fewer than `max_tokens` at the end of the draft's context."""
        tokens: list[int] = []
        probs: list[Distribution] = []
        if max_tokens > 0 and self._can_follow(context):
            with self._failing_softly():
                logits = self._engine.sync(context, num_rows=1)
                for i in range(min(max_tokens, self._engine.n_ctx - len(context) + 1)):
                    if i:
                        logits = self._engine.advance(as_tokens(tokens[-1:]))
                    history = np.concatenate([context, as_tokens(tokens)])
                    q = self._to_distribution(logits[-1, : self._num_shared], history)
                    token, q = self._draw(q, len(history), self._randomness)
                    tokens.append(token)
                    probs.append(q)
        return Draft(self.name, as_tokens(tokens), tuple(probs))

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
