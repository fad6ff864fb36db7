"""The seams of the loop: what an engine, a drafter and a controller must do, and what the loop reports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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

    @property
    def batch_size(self) -> int:
        """How many tokens of a prompt one decode takes in."""

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

    def checkpoint(self) -> None:
        """What is appended from here on may be taken back. Some memories must be told."""

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""

    def __len__(self) -> int:
        """How many tokens the cache holds."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a drafter knows about a token before the target has scored it: a controller prices the token by it.

    It may depend on the context, on the tokens drafted before and on the distribution that the token is drawn from,
    but never on which token was drawn: to end a draft because of the token drawn would bias sampled text.

    source:        the name of the drafter
    depth:         how many tokens the same drafter put into this draft before it
    match_length:  how many tokens in front of it match the place it is copied from; 0 without such a place
    count, total:  of `total` places that match, how many continue with this token
    confidence:    the probability of the drafter's most likely token; None without probabilities
    """

    source: str
    depth: int
    match_length: int = 0
    count: int = 0
    total: int = 0
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposed token, and exactly the distribution it was drawn from."""

    token: int
    probs: Distribution
    evidence: Evidence

    @classmethod
    def certain(cls, token: int, evidence: Evidence) -> "Proposal":
        """A token without probabilities: its distribution is one-hot."""
        return cls(token, Distribution.one_hot(token), evidence)


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens to be scored.

    tokens:    `[num_draft]`
    probs:     one distribution per token
    evidence:  what is known about each
    unscored:  about tokens that were drafted too but left out
    seconds:   what drafting cost, by drafter
    """

    tokens: Tokens
    probs: tuple[Distribution, ...]
    evidence: tuple[Evidence, ...]
    unscored: tuple[Evidence, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        proposals: Sequence[Proposal],
        unscored: Sequence[Evidence] = (),
        seconds: Mapping[str, float] | None = None,
    ) -> "Draft":
        """A draft of these tokens, in this order."""
        tokens = np.array([proposal.token for proposal in proposals], np.int32)
        probs = tuple(proposal.probs for proposal in proposals)
        return cls(tokens, probs, tuple(proposal.evidence for proposal in proposals), tuple(unscored), seconds or {})

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of verification: the first `num_accepted` drafted tokens, then `next_token`."""

    num_accepted: int
    next_token: int


@dataclass(frozen=True, slots=True)
class Prefilling:
    """A prompt of several decodes is on its way into the target's cache."""

    num_prompt_tokens: int
    num_held: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt, but for its last token, is in the target's cache, and drafters have taken it in."""

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
    draft: Draft
    num_accepted: int  # drafted tokens that were committed: the draft's first
    num_rejected: int  # scored by the target, and refused or behind a refused one: the draft's last
    num_discarded: int  # never scored, or between the others: behind an end token
    draft_seconds: float
    target_seconds: float
    seconds: float  # the whole round inside the loop

    @property
    def num_draft_tokens(self) -> int:
        """All that were drafted, scored or not."""
        return len(self.draft) + len(self.draft.unscored)


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason


Event = Prefilling | Prefilled | Round | Finished


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output stays the target's; only speed is at stake."""

    @property
    def name(self) -> str:
        """What statistics call it."""

    @property
    def is_free(self) -> bool:
        """Whether proposing takes microseconds, so that it may be asked and scored at every token."""

    @property
    def notices(self) -> Mapping[str, str]:
        """Why it does not propose, or stopped proposing, by its name."""

    @property
    def counters(self) -> Mapping[str, float]:
        """What it counted by itself, for the statistics."""

    def prepare(self, context: Tokens) -> None:
        """Take in a prompt: what that costs counts as prefill. `propose` works without it."""

    def backlog(self, context: Tokens) -> int:
        """How many tokens it must take in before it can propose what follows `context`; 0 when that is free."""

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """Tokens to follow `context` (prompt, output and what others drafted so far), one at a time.

        Each costs when it is taken, so that whoever takes them decides how many. Every proposed id is below the
        target's n_vocab. The context may differ from the last call's in any way.
        """

    def observe(self, round_: Round) -> None:
        """Told of every round after its verification, whoever drafted."""


class Controller(Protocol):
    """Decides who drafts, and how far."""

    @property
    def notices(self) -> Mapping[str, str]:
        """Why a drafter is not used, by its name."""

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of a plain step, as far as is known now; None when not kept track of."""

    def report(self) -> dict[str, Any]:
        """What it decided and why, as for JSON."""

    def prepare(self, context: Tokens) -> None:
        """Let drafters take in a prompt."""

    def draft(self, context: Tokens, limit: int) -> Draft:
        """At most `limit` tokens to follow `context`, prompt and output so far; an empty draft is a plain step."""

    def observe(self, context: Tokens, round_: Round, logits: Logits) -> None:
        """Told of every round after its verification; `context` ends with the round's tokens.

        logits:  the target's rows of the pass, [len(draft) + 1, n_vocab], valid until its next one
        """
