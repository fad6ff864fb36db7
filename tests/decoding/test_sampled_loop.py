"""Sampled output of the whole loop, against the distribution computed step by step: chi-square, seeded."""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from specd.decoding.acceptance import Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.distribution import Distribution
from specd.decoding.loop import generate
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller, Draft, Drafter, Round, Verdict
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, ToDistribution, sampler
from specd.decoding.verify import RULES, RuleName, Verify, rejection
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from tests.fakes import FakeClock, FakeEngine, random_drafter

PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]  # lookup has something to propose from the start
VOCABULARY, LENGTH, DRAWS = 8, 3, 20_000
PARAMS = SamplingParams(
    temperature=1.3,
    top_k=6,
    top_p=0.95,
    min_p=0.02,
    repeat_penalty=1.3,
    presence_penalty=0.3,
    frequency_penalty=0.4,
    penalty_window=4,
)
Build = Callable[[RuleName, Randomness], list[Drafter]]


def target_engine() -> FakeEngine:
    return FakeEngine(VOCABULARY, seed=3)


def remembered(to_distribution: ToDistribution) -> ToDistribution:
    """The same function; as the fake engine's rows depend on the history alone, each result is computed once."""
    known: dict[bytes, Distribution] = {}

    def look_up(row: np.ndarray, history: np.ndarray) -> Distribution:
        key = history.tobytes()
        if key not in known:
            known[key] = to_distribution(row, history)
        return known[key]

    return look_up


def model(rule: RuleName, randomness: Randomness) -> list[Drafter]:
    own = remembered(sampler(SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)))
    engine = FakeEngine(VOCABULARY, seed=4)
    draw = RULES[rule].draw
    return [DraftModel(engine, own, draw, num_shared=VOCABULARY, randomness=randomness, clock=FakeClock())]


def expected_counts(to_distribution: ToDistribution) -> dict[tuple[int, ...], float]:
    engine = target_engine()
    expected = {(): float(DRAWS)}
    for _ in range(LENGTH):
        longer = {}
        for prefix, count in expected.items():
            history = PROMPT + list(prefix)
            p = to_distribution(engine.row_after(history), as_tokens(history))
            for token, prob in zip(p.tokens.tolist(), p.probs.tolist(), strict=True):
                longer[(*prefix, token)] = count * prob
        expected = longer
    return expected


def fixed(drafters: list[Drafter]) -> Controller:
    return FixedLength(drafters, 2, FakeClock(), plain_every=10**9)


def adaptive(drafters: list[Drafter]) -> Controller:
    """At prices at which the draft's confidence decides how far it goes."""
    paid = {drafter.name: PassCosts({1: 0.2}) for drafter in drafters if not drafter.is_free}
    prices = Prices(PassCosts({1: 1.0, 4: 1.3}), paid)
    acceptance = Acceptance({("draft",): 0.5, ("lookup",): 0.5})
    return Adaptive(drafters, prices, acceptance, FakeClock(), max_draft=3)


def sampled_counts(
    verify: Verify,
    build: Build,
    rule: RuleName,
    to_distribution: ToDistribution,
    control: Callable[[list[Drafter]], Controller] = fixed,
) -> Counter:
    engine = target_engine()
    to_distribution = remembered(to_distribution)
    randomness = Randomness(12345)
    drafters = build(rule, randomness)
    controller = control(drafters)
    counts: Counter[tuple[int, ...]] = Counter()
    for i in range(DRAWS):
        if rule is RuleName.COUPLED:  # its noise is a function of seed and place: another seed for every draw
            randomness = Randomness(i)
            for drafter in drafters:
                if isinstance(drafter, DraftModel):
                    drafter._randomness = randomness
        tokens: list[int] = []
        events = generate(
            engine,
            controller,
            PROMPT,
            to_distribution,
            verify,
            max_tokens=LENGTH,
            is_end=lambda _: False,
            randomness=randomness,
            clock=FakeClock(),
        )
        for event in events:
            if isinstance(event, Round):
                tokens += event.tokens.tolist()
        counts[tuple(tokens)] += 1
    return counts


def excess_chi_square(counts: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square over the value exceeded once in 10 000 (Wilson and Hilferty 1931); rare outcomes are pooled."""
    common = [key for key, count in expected.items() if count >= 5]
    observed = [counts[key] for key in common]
    wanted = [expected[key] for key in common]
    observed.append(sum(counts.values()) - sum(observed))
    wanted.append(max(sum(expected.values()) - sum(wanted), 1e-9))
    if wanted[-1] < 5:  # too few to stand alone
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    df = len(wanted) - 1
    return statistic / (df * (1 - 2 / (9 * df) + 3.719 * math.sqrt(2 / (9 * df))) ** 3)


def lookup(rule: RuleName, randomness: Randomness) -> list[Drafter]:
    return [Lookup()]


def both(rule: RuleName, randomness: Randomness) -> list[Drafter]:
    return [*lookup(rule, randomness), *model(rule, randomness)]


CASES = [(rule, build) for rule in RuleName for build in (model, lookup)]


@pytest.mark.parametrize(("rule", "build"), CASES, ids=[f"{rule}-{build.__name__}" for rule, build in CASES])
def test_sampled_text_follows_the_target(rule: RuleName, build: Build) -> None:
    to_distribution = sampler(PARAMS)
    counts = sampled_counts(RULES[rule].verify, build, rule, to_distribution)
    assert excess_chi_square(counts, expected_counts(to_distribution)) < 1


@pytest.mark.parametrize("rule", RuleName)
def test_sampled_text_follows_the_target_when_its_confidence_ends_a_draft(rule: RuleName) -> None:
    to_distribution = sampler(PARAMS)
    counts = sampled_counts(RULES[rule].verify, both, rule, to_distribution, adaptive)
    assert excess_chi_square(counts, expected_counts(to_distribution)) < 1


class KeepsWhatItLikes(FixedLength):
    """A wrong controller: it leaves out tokens for what they are, not for what was known before they were drawn."""

    def draft(self, context: np.ndarray, limit: int) -> Draft:
        draft = super().draft(context, limit)
        liked = next((i for i, token in enumerate(draft.tokens.tolist()) if token % 2), len(draft))
        return Draft(draft.tokens[:liked], draft.probs[:liked], draft.evidence[:liked])


def test_a_controller_that_picks_by_the_drawn_tokens_fails_the_same_test() -> None:
    def picky(drafters: list[Drafter]) -> Controller:
        return KeepsWhatItLikes(drafters, 2, FakeClock(), plain_every=10**9)

    to_distribution = sampler(PARAMS)
    counts = sampled_counts(rejection, model, RuleName.REJECTION, to_distribution, picky)
    assert excess_chi_square(counts, expected_counts(to_distribution)) > 5


def accept_if_possible(draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """A wrong rule: whatever the target could say stands."""
    for i, (token, p) in enumerate(zip(draft.tokens.tolist(), rows, strict=False)):
        if p.prob(token) == 0:
            return Verdict(i, randomness.draw(p))
    return Verdict(len(draft), randomness.draw(next(rows)))


@pytest.mark.parametrize("build", [model, lookup])
def test_a_wrong_rule_fails_the_same_test(build: Build) -> None:
    to_distribution = sampler(PARAMS)
    counts = sampled_counts(accept_if_possible, build, RuleName.REJECTION, to_distribution)
    assert excess_chi_square(counts, expected_counts(to_distribution)) > 5


def test_penalties_that_do_not_see_the_drafted_tokens_fail_the_same_test() -> None:
    """User case 7: history updated once per round."""
    right = sampler(PARAMS)

    def once_per_round(row: np.ndarray, history: np.ndarray) -> Distribution:
        return right(row, history[: len(PROMPT)])

    counts = sampled_counts(rejection, model, RuleName.REJECTION, once_per_round)
    assert excess_chi_square(counts, expected_counts(right)) > 5


def coupled_rounds(build: Build, k: int, seed: int) -> list[Round]:
    randomness = Randomness(seed)
    rule = RuleName.COUPLED
    events = generate(
        FakeEngine(seed=3),
        FixedLength(build(rule, randomness), k, FakeClock()),
        PROMPT,
        sampler(SamplingParams(temperature=1.0)),
        RULES[rule].verify,
        max_tokens=60,
        is_end=lambda _: False,
        randomness=randomness,
        clock=FakeClock(),
    )
    return [event for event in events if isinstance(event, Round)]


def sequence(build: Build, k: int, seed: int) -> list[int]:
    return [token for round_ in coupled_rounds(build, k, seed) for token in round_.tokens.tolist()]


def same_model(rule: RuleName, randomness: Randomness) -> list[Drafter]:
    own = sampler(SamplingParams(temperature=1.0))
    draw = RULES[rule].draw
    return [DraftModel(FakeEngine(seed=3), own, draw, num_shared=50, randomness=randomness, clock=FakeClock())]


def test_a_coupled_draft_of_the_same_model_always_stands() -> None:
    """Target and draft use the noise of the same places, and only then is the same model always right."""
    assert all(round_.num_rejected == 0 for round_ in coupled_rounds(same_model, 4, 1))


def test_coupled_text_is_the_same_with_any_drafter_and_any_length() -> None:
    drafters: list[Build] = [
        lookup,
        same_model,
        lambda rule, randomness: [random_drafter(FakeEngine(seed=3))],
    ]
    for seed in range(5):
        plain = sequence(lambda rule, randomness: [], 0, seed)
        assert len(set(plain)) > 10
        for build in drafters:
            for k in (1, 3, 6):
                assert sequence(build, k, seed) == plain
    assert sequence(drafters[0], 3, 0) != sequence(drafters[0], 3, 1)
