"""Whether speculation changes what the model says, with these files on this machine."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.decoding.context import TokenBuffer, Tokens, as_tokens, common_prefix_length
from specd.decoding.controller import FixedLength
from specd.decoding.distribution import Distribution
from specd.decoding.loop import generate
from specd.decoding.protocol import Controller, Drafter, Engine, Evidence, Finished, Proposal, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import Logits, SamplingParams, ToDistribution, greedy, sampler
from specd.decoding.verify import RULES, Draw, Rule, RuleName
from specd.errors import Interrupted

NUM_IDS = 6  # of the short vocabulary
LENGTH = 3  # tokens of a sampled text: NUM_IDS ** LENGTH different ones
NUM_DRAWS = 4000  # texts per rule
NUM_DRAFT = 2  # tokens of their drafts
SIGNIFICANCE = 0.001  # chance of a false alarm, for each rule
_SIMULATIONS = 4000
_POWER = 0.95
_SHIFTS = (0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12)  # of probability

UNFILTERED = sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. detail: how, and how sure that is, or where it failed."""

    name: str
    passed: bool
    detail: str


class Guess:
    """A drafter that knows nothing: any token, each as likely as the others."""

    name, is_free = "guess", True
    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(self, n_vocab: int, draw: Draw, randomness: Randomness) -> None:
        self._any = Distribution(np.arange(n_vocab, dtype=np.int32), np.full(n_vocab, 1 / n_vocab))
        self._draw, self._randomness = draw, randomness

    def prepare(self, context: Tokens) -> None:
        """Nothing to take in."""

    def backlog(self, context: Tokens) -> int:
        """None."""
        return 0

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """Without end."""
        for depth in itertools.count():
            token, q = self._draw(self._any, len(context) + depth, self._randomness)
            yield Proposal(token, q, Evidence(self.name, depth, 1, 1, 1))

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


def check_greedy(
    target: Engine,
    drafters: Mapping[str, Callable[[], Drafter]],
    prompts: Mapping[str, Tokens],
    *,
    max_tokens: int,
    is_end: Callable[[int], bool],
    clock: Clock,
    rule: Rule,
) -> Iterator[Finding]:
    """Greedy text with each drafter, compared with plain decoding, token by token; drafts of several lengths.

    The rows of the target must not depend on how many are scored at once (exact mode), or equal texts could part at a
    near tie.

    prompts:  by name
    """
    longest = target.max_rows - 1
    for name, prompt in prompts.items():
        target.rollback(0)

        def decode(drafters: Sequence[Drafter], num_draft: int, prompt: Tokens = prompt) -> _Run:
            controller = FixedLength(drafters, num_draft, clock, plain_every=10**9)
            return _decode(target, controller, prompt, greedy, rule, max_tokens, is_end, Randomness(0), clock)

        plain = decode([], 0)
        for drafter, make in drafters.items():
            num_drafted = num_accepted = 0
            failed = None
            for num_draft in sorted({1, min(3, longest), longest}):
                run = decode([make()], num_draft)
                num_drafted += run.num_drafted
                num_accepted += run.num_accepted
                if run.tokens.tolist() != plain.tokens.tolist() and failed is None:
                    place = common_prefix_length(run.tokens, plain.tokens)
                    failed = f"with drafts of {num_draft}, token {place + 1} of the answer is another one"
            detail = failed or (
                f"all {len(plain.tokens)} tokens are the same; {num_accepted} of {num_drafted} drafted ones accepted"
            )
            yield Finding(f"greedy, {name}, {drafter}", failed is None, detail)


def check_sampled(
    target: Engine,
    draft: Engine | None,
    make: Callable[["Projection", Draw, Randomness], Drafter],
    prompt: Tokens,
    *,
    clock: Clock,
    rules: Mapping[RuleName, Rule] = RULES,
    num_draws: int = NUM_DRAWS,
) -> Iterator[Finding]:
    """Sampled texts, compared with their exact probabilities.

    The vocabulary is cut to the NUM_IDS likeliest tokens after the prompt, so that all texts of LENGTH tokens can be
    told: their probabilities come from plain passes over each of them, and the frequencies from the loop, with real
    logits of real batches. A Pearson statistic that none of some thousand draws from the exact probabilities reaches
    is a failure.

    make:  a drafter, for the projection of its engine (that of the target where there is no draft model)
    """
    row = target.sync(prompt, num_rows=1)[-1]
    ids = as_tokens(np.sort(np.argsort(row)[-NUM_IDS:]))
    scored = Projection(target, prompt, ids)
    drafting = Projection(draft, prompt, ids) if draft is not None else scored
    exact = _exact(scored)
    frontier, smallest = _threshold(exact, num_draws)
    for name, rule in rules.items():
        counts = np.zeros(len(exact), np.int64)
        num_drafted = num_accepted = 0
        for seed in range(num_draws):
            randomness = Randomness(seed)
            controller = FixedLength([make(drafting, rule.draw, randomness)], NUM_DRAFT, clock, plain_every=10**9)
            run = _decode(scored, controller, as_tokens([0]), UNFILTERED, rule, LENGTH, _never, randomness, clock)
            num_drafted += run.num_drafted
            num_accepted += run.num_accepted
            counts[_number(run.tokens.tolist())] += 1
        statistic = _pearson(counts, exact)
        passed = bool(statistic <= frontier)
        shift = f"a shift of {smallest:.1%} of the probability" if smallest is not None else "a large shift only"
        detail = (
            f"{num_draws} texts follow the target's distribution ({num_accepted} of {num_drafted} drafted tokens were "
            f"accepted); {shift} would have been seen with 95 % certainty"
            if passed
            else f"{num_draws} texts do not follow the target's distribution: Pearson's statistic is {statistic:.0f}, "
            f"and at most {frontier:.0f} by chance (1 in {1 / SIGNIFICANCE:.0f})"
        )
        yield Finding(f"sampled, {name}", passed, detail)


class Projection:
    """A model cut to a few tokens behind a fixed prompt; passes that were made before are not made again.

    Its token i stands for ids[i]; its first token stands for the whole prompt.
    """

    def __init__(self, engine: Engine, prompt: Tokens, ids: Tokens) -> None:
        self.n_vocab = len(ids)
        self.n_ctx = LENGTH + NUM_DRAFT + 1
        self.max_rows = min(engine.max_rows, NUM_DRAFT + 1)
        self.batch_size = engine.batch_size
        self._engine, self._prompt, self._ids = engine, prompt, ids
        self._held = TokenBuffer()
        self._passes: dict[tuple[bytes, int], Logits] = {}

    def __len__(self) -> int:
        return len(self._held)

    def matching(self, tokens: Tokens) -> int:
        """As an engine's."""
        return common_prefix_length(self._held.view, tokens)

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        """As an engine's."""
        self._held.truncate(min(self.matching(tokens), len(tokens) - num_rows))
        return self._append(tokens[len(self._held) :], num_rows)

    def advance(self, tokens: Tokens) -> Logits:
        """As an engine's."""
        return self._append(tokens, len(tokens))

    def checkpoint(self) -> None:
        """As an engine's."""

    def rollback(self, length: int) -> None:
        """As an engine's."""
        self._held.truncate(length)

    def _append(self, tokens: Tokens, num_rows: int) -> Logits:
        self._held.extend(tokens)
        if not num_rows:
            return np.zeros((0, self.n_vocab), np.float32)
        key = (self._held.view.tobytes(), num_rows)
        if key not in self._passes:
            context = np.concatenate([self._prompt, self._ids[self._held.view[1:]]])
            self._passes[key] = self._engine.sync(context, num_rows)[:, self._ids].copy()
        return self._passes[key]


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: Tokens
    num_drafted: int
    num_accepted: int


def _decode(
    target: Engine,
    controller: Controller,
    prompt: Tokens,
    to_distribution: ToDistribution,
    rule: Rule,
    max_tokens: int,
    is_end: Callable[[int], bool],
    randomness: Randomness,
    clock: Clock,
) -> _Run:
    """A whole text. Raises Interrupted when it was stopped."""
    tokens: list[int] = []
    num_drafted = num_accepted = 0
    for event in generate(
        target,
        controller,
        prompt,
        to_distribution,
        rule.verify,
        max_tokens=max_tokens,
        is_end=is_end,
        randomness=randomness,
        clock=clock,
    ):
        if isinstance(event, Round):
            tokens += event.tokens.tolist()
            num_drafted += len(event.draft)
            num_accepted += event.num_accepted
        elif isinstance(event, Finished) and event.reason == "interrupted":
            raise Interrupted("The check was stopped.")
    return _Run(as_tokens(tokens), num_drafted, num_accepted)


def _never(_: int) -> bool:
    return False


def _exact(model: Projection) -> npt.NDArray[np.float64]:
    """The probabilities of all texts, `[NUM_IDS ** LENGTH]`, from plain passes."""
    probs = np.ones(1)
    for length in range(LENGTH):
        rows = [
            model.sync(as_tokens([0, *text]), num_rows=1)[-1].astype(np.float64)
            for text in itertools.product(range(model.n_vocab), repeat=length)
        ]
        weights = np.exp(np.array(rows) - np.max(rows, axis=1, keepdims=True))
        probs = (probs[:, None] * (weights / weights.sum(axis=1, keepdims=True))).reshape(-1)
    return probs


def _number(text: Sequence[int]) -> int:
    number = 0
    for token in text:
        number = number * NUM_IDS + token
    return number


def _pearson(counts: npt.NDArray[np.int64], probs: npt.NDArray[np.float64]) -> float:
    """Pearson's chi-square statistic, with the texts that are too rare for it taken together."""
    expected = probs * counts.sum(axis=-1, keepdims=True)
    rare = probs < 5 / counts.sum(axis=-1).max()
    parts = (counts - expected)[..., ~rare] ** 2 / expected[..., ~rare]
    together = (counts - expected)[..., rare].sum(axis=-1) ** 2 / max(expected[..., rare].sum(axis=-1).max(), 1e-9)
    return parts.sum(axis=-1) + together if rare.any() else parts.sum(axis=-1)  # type: ignore[no-any-return]


def _threshold(probs: npt.NDArray[np.float64], num_draws: int) -> tuple[float, float | None]:
    """The largest statistic that chance gives, and the smallest shift of probability that almost always exceeds it.

    A shift moves some of the probability to the text that is likeliest anyway, which is what too much acceptance does.
    """
    rng = np.random.default_rng(0)
    by_chance = _pearson(rng.multinomial(num_draws, probs, _SIMULATIONS), probs)
    frontier = float(np.quantile(by_chance, 1 - SIGNIFICANCE))
    likeliest = np.eye(len(probs))[probs.argmax()]
    for shift in _SHIFTS:
        shifted = rng.multinomial(num_draws, (1 - shift) * probs + shift * likeliest, 200)
        if np.mean(_pearson(shifted, probs) > frontier) >= _POWER:
            return frontier, shift
    return frontier, None
