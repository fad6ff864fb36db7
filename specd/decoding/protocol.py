"""The seams of the loop: what an engine, a drafter and a controller must do, and what the loop reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from specd.decoding.context import Tokens
from specd.decoding.distribution import Distribution
from specd.decoding.sampling import Logits

FinishReason = Literal["stop", "length", "interrupted"]


class Engine(Protocol):
    """A model with its KV cache: the loop's target, and a model drafter's draft."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""

    @property
    def n_ctx(self) -> int:
        """How many tokens the KV cache can hold."""

    @property
    def max_rows(self) -> int:
        """How many rows of logits one `advance` can give."""

    def matching(self, tokens: Tokens) -> int:
        """How many leading tokens of `tokens` the cache holds already."""

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        """Make the cache hold exactly `tokens`, keeping the longest common prefix.

        Returns the logits after each of the last `num_rows` tokens, `[num_rows, n_vocab]`.
        """

    def advance(self, tokens: Tokens) -> Logits:
        """Append `tokens` to the cache; the logits after each, `[len(tokens), n_vocab]`.

        The rows are valid until the next call.
        """

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""

    def __len__(self) -> int:
        """How many tokens the cache holds."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, and exactly the distributions they were drawn from.

    source:  the name of the drafter that proposed them
    tokens:  `[num_draft]`
    probs:   one distribution per token
    """

    source: str
    tokens: Tokens
    probs: tuple[Distribution, ...]

    @classmethod
    def certain(cls, source: str, tokens: list[int]) -> "Draft":
        """A draft without probabilities of its own: each token's distribution is one-hot."""
        probs = tuple(Distribution.one_hot(token) for token in tokens)
        return cls(source, np.array(tokens, np.int32), probs)

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, num_tokens: int) -> "Draft":
        """The draft cut to at most `num_tokens`."""
        return Draft(self.source, self.tokens[:num_tokens], self.probs[:num_tokens])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verification: the first `num_accepted` drafted tokens, then `next_token`."""

    num_accepted: int
    next_token: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt, but for its last token, is in the target's cache, and the drafter has taken it in."""

    num_prompt_tokens: int
    num_reused: int  # tokens that the target's cache held already
    target_seconds: float
    draft_seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One target pass and the tokens it committed.

    num_draft_tokens = num_accepted + num_rejected + num_discarded, and
    len(tokens) = num_accepted, plus 1 when the target's own token was reached.
    """

    tokens: Tokens  # [num_tokens], committed
    source: str  # who drafted; also set when nothing was proposed
    num_draft_tokens: int
    num_accepted: int  # drafted tokens that were committed
    num_rejected: int  # scored by the target, and refused or behind a refused one
    num_discarded: int  # never scored, or behind an end token
    draft_seconds: float
    target_seconds: float
    seconds: float  # the whole round inside the loop


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason


Event = Prefilled | Round | Finished


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output stays the target's; only speed is at stake."""

    @property
    def name(self) -> str:
        """What statistics call it."""

    @property
    def notices(self) -> Mapping[str, str]:
        """Why a drafter in it does not propose, or stopped proposing, by the drafter's name."""

    def prepare(self, context: Tokens) -> None:
        """Take in a prompt: what that costs counts as prefill. `propose` works without it."""

    def propose(self, context: Tokens, max_tokens: int) -> Draft:
        """Up to `max_tokens` tokens to follow `context` (prompt and output so far); none is fine.

        Every proposed id is below the target's n_vocab. The context may differ from the last call's in any way.
        """

    def observe(self, round_: Round) -> None:
        """Told of every round after its verification, whoever drafted."""


class Controller(Protocol):
    """Decides how far to draft."""

    def budget(self, limit: int) -> int:
        """The most tokens to draft this round, at most `limit`; 0 for a plain step."""

    def observe(self, round_: Round) -> None:
        """Told of every round after its verification."""
