"""Engines, drafters and a clock that run in microseconds and break in the ways real ones do."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, as_tokens, common_prefix_length
from specd.decoding.distribution import Distribution
from specd.decoding.protocol import Draft, Evidence, Proposal, Round
from specd.decoding.sampling import Logits
from specd.errors import CannotRewind, EngineError

AHEAD = 9  # tokens that a scripted drafter has to say


class FakeClock:
    """Seconds that pass only when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Logits that depend on every token held, so that a wrong cache shows at once.

    sharpness:          by which the logits are multiplied: at 1 no token is likely, at 200 one is certain
    seconds_per_batch:  what a decode of n tokens costs on the clock; the last entry for longer ones
    fails_at:           decodes (counted from 0) that raise
    """

    def __init__(
        self,
        n_vocab: int = 50,
        *,
        seed: int = 0,
        n_ctx: int = 256,
        max_rows: int = 16,
        batch_size: int = 512,
        needs_checkpoints: bool = False,
        sharpness: float = 1.0,
        clock: FakeClock | None = None,
        seconds_per_batch: Sequence[float] = (1.0,),
        fails_at: Mapping[int, Exception] | None = None,
    ) -> None:
        self.n_vocab, self.n_ctx, self.max_rows, self.batch_size = n_vocab, n_ctx, max_rows, batch_size
        self.decodes: list[int] = []  # tokens per decode
        self._table = np.random.default_rng(seed).normal(scale=sharpness, size=(257, n_vocab)).astype(np.float32)
        self._held = TokenBuffer()
        self._needs_checkpoints = needs_checkpoints
        self._checkpoint = self._last_start = 0
        self._clock, self._seconds = clock, seconds_per_batch
        self._fails_at = fails_at or {}
        self._rows = np.zeros((max_rows, n_vocab), np.float32)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> list[int]:
        return self._held.view.tolist()

    def row_after(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after a whole context: a function of all its tokens and their order."""
        state = 0
        for token in tokens:
            state = (state * 31 + token + 1) % 257
        return self._table[state]

    def matching(self, tokens: Tokens) -> int:
        return common_prefix_length(self._held.view, tokens)

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        kept = min(self.matching(tokens), len(tokens) - num_rows)
        self.rollback(kept)
        rows = self._append(tokens[kept:], num_rows)
        self.checkpoint()
        return rows

    def advance(self, tokens: Tokens) -> Logits:
        return self._append(tokens, len(tokens))

    def checkpoint(self) -> None:
        self._checkpoint = len(self)

    def rollback(self, length: int) -> None:
        if not 0 <= length <= len(self):
            raise EngineError("out of range")
        if self._needs_checkpoints and length < len(self) and self._checkpoint < self._last_start:
            raise CannotRewind("nobody told this memory that it must go back")
        self._held.truncate(length)

    def _append(self, tokens: Tokens, num_rows: int) -> Logits:
        if num_rows > self.max_rows or len(self) + len(tokens) > self.n_ctx:
            raise EngineError("too much")
        if len(tokens) and not (min(tokens) >= 0 and max(tokens) < self.n_vocab):
            raise EngineError("unknown token")
        if (error := self._fails_at.get(len(self.decodes))) is not None:
            self.decodes.append(len(tokens))
            raise error
        self._last_start = len(self)
        if len(tokens):
            self.decodes.append(len(tokens))
            if self._clock is not None:
                self._clock.now += self._seconds[min(len(tokens), len(self._seconds)) - 1]
        self._held.extend(tokens)
        held = self.held
        for i in range(num_rows):  # into one buffer, as llama.cpp does: rows of an earlier call are gone
            self._rows[i] = self.row_after(held[: len(held) - num_rows + 1 + i])
        return self._rows[:num_rows]


def plain_greedy(engine: FakeEngine, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What plain greedy decoding gives, computed without any of the code under test."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(int(np.argmax(engine.row_after(context))))
    return context[len(prompt) :]


class ScriptedDrafter:
    """Proposes what a function of the context and a number of tokens says."""

    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(
        self,
        script: Callable[[list[int], int], list[int]],
        *,
        name: str = "scripted",
        is_free: bool = True,
        clock: FakeClock | None = None,
        seconds: float = 0.0,
    ) -> None:
        self._script, self.name, self.is_free = script, name, is_free
        self._clock, self._seconds = clock, seconds
        self.rounds: list[Round] = []
        self.prepared: list[list[int]] = []
        self.num_proposed = 0

    def prepare(self, context: Tokens) -> None:
        self.prepared.append(context.tolist())

    def backlog(self, context: Tokens) -> int:
        return 0 if self.is_free else 1

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        for depth, token in enumerate(self._script(context.tolist(), AHEAD)):
            self.num_proposed += 1
            if self._clock is not None:
                self._clock.now += self._seconds
            yield Proposal.certain(token, Evidence(self.name, depth, match_length=depth + 4, count=1, total=1))

    def observe(self, round_: Round) -> None:
        self.rounds.append(round_)


def draft_of(tokens: Sequence[int], source: str = "toy", probs: Sequence[Distribution] | None = None) -> Draft:
    """A draft of these tokens, certain ones where no distributions are given."""
    qs = probs if probs is not None else [Distribution.one_hot(token) for token in tokens]
    return Draft.of(
        [Proposal(token, q, Evidence(source, i)) for i, (token, q) in enumerate(zip(tokens, qs, strict=True))]
    )


def round_of(
    tokens: Sequence[int],
    draft: Draft,
    accepted: int = 0,
    *,
    rejected: int | None = None,
    draft_seconds: float = 0.0,
    seconds: float = 1.0,
) -> Round:
    """A round; what is neither accepted nor rejected was discarded."""
    if rejected is None:
        rejected = len(draft) - accepted
    discarded = len(draft) + len(draft.unscored) - accepted - rejected
    return Round(
        as_tokens(tokens), draft, accepted, rejected, discarded, draft_seconds, seconds - draft_seconds, seconds
    )


def oracle(engine: FakeEngine) -> ScriptedDrafter:
    """Always right."""
    return ScriptedDrafter(lambda context, n: plain_greedy(engine, context, n))


def wrong(engine: FakeEngine) -> ScriptedDrafter:
    """Never right."""
    return ScriptedDrafter(lambda context, n: [(t + 1) % engine.n_vocab for t in plain_greedy(engine, context, n)])


def half_right(engine: FakeEngine) -> ScriptedDrafter:
    """Right for as many tokens as the context's length says, then wrong."""

    def script(context: list[int], n: int) -> list[int]:
        right = plain_greedy(engine, context, n)
        cut = len(context) % (n + 1)
        return right[:cut] + [(t + 1) % engine.n_vocab for t in right[cut:]]

    return ScriptedDrafter(script)


def random_drafter(engine: FakeEngine, seed: int = 1) -> ScriptedDrafter:
    """Any tokens, any number."""
    rng = np.random.default_rng(seed)
    return ScriptedDrafter(lambda _, n: rng.integers(0, engine.n_vocab, rng.integers(0, n + 1)).tolist())
