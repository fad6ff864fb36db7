"""Invariants of the loop, over every drafter."""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from specd.decoding.acceptance import Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.context import as_tokens
from specd.decoding.controller import PLAIN_EVERY, FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.distribution import Distribution
from specd.decoding.loop import generate, up_to_end
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller, Drafter, Event, Finished, Prefilled, Prefilling, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import ToDistribution, greedy
from specd.decoding.verify import RULES, RuleName, draw_independently
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.drafting.predicted import Predicted
from specd.errors import Interrupted
from tests.fakes import (
    FakeClock,
    FakeEngine,
    half_right,
    oracle,
    plain_greedy,
    random_drafter,
    wrong,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def drafting_with(engine: FakeEngine, num_shared: int = 50) -> DraftModel:
    return DraftModel(
        engine, greedy, draw_independently, num_shared=num_shared, randomness=Randomness(0), clock=FakeClock()
    )


def draft_model(seed: int, n_vocab: int = 50) -> Callable[[FakeEngine], list[Drafter]]:
    def build(target: FakeEngine) -> list[Drafter]:
        engine = FakeEngine(n_vocab, seed=seed)
        return [drafting_with(engine, min(n_vocab, target.n_vocab))]

    return build


Build = Callable[[FakeEngine], list[Drafter]]
DRAFTERS: dict[str, Build] = {
    "none": lambda _: [],
    "oracle": lambda target: [oracle(target)],
    "wrong": lambda target: [wrong(target)],
    "half right": lambda target: [half_right(target)],
    "random": lambda target: [random_drafter(target)],
    "lookup": lambda _: [Lookup()],
    "predicted": lambda target: [Predicted(as_tokens(plain_greedy(target, PROMPT, 90)[4::2]))],
    "same model": draft_model(seed=0),
    "other model": draft_model(seed=5),
    "padded model": draft_model(seed=5, n_vocab=64),
    "hybrid": lambda target: [half_right(target), Lookup(), *draft_model(seed=0)(target)],
}
ADAPTIVE = 0  # in place of a fixed length
EAGER = Acceptance({(name,): 0.9 for name in ("scripted", "lookup", "predicted", "draft")})


def controller(drafters: list[Drafter], k: int, plain_every: int, clock: FakeClock) -> Controller:
    if k == ADAPTIVE:
        paid = {drafter.name: PassCosts({1: 0.01}) for drafter in drafters if not drafter.is_free}
        prices = Prices(PassCosts({1: 1.0, 16: 1.5}), paid)
        return Adaptive(drafters, prices, copy.deepcopy(EAGER), clock, max_draft=15)
    return FixedLength(drafters, k, clock, plain_every=plain_every)


every_drafter = pytest.mark.parametrize("build", DRAFTERS.values(), ids=DRAFTERS.keys())
every_length = pytest.mark.parametrize("k", [ADAPTIVE, *range(1, 7)])


def start(
    target: FakeEngine,
    drafters: list[Drafter],
    k: int,
    *,
    plain_every: int = 1000,
    clock: FakeClock | None = None,
    max_tokens: int = 60,
    prompt: list[int] = PROMPT,
    is_end: Callable[[int], bool] = lambda _: False,
    rule: RuleName = RuleName.BLOCK,
    to_distribution: ToDistribution = greedy,
) -> Iterator[Event]:
    """A generation that is ready to run."""
    clock = clock or FakeClock()
    return generate(
        target,
        controller(drafters, k, plain_every, clock),
        prompt,
        to_distribution,
        RULES[rule].verify,
        max_tokens=max_tokens,
        is_end=is_end,
        randomness=Randomness(0),
        clock=clock,
    )


def run(target: FakeEngine, drafters: list[Drafter], k: int, **options: Any) -> list[Event]:
    """All events of a generation."""
    return list(start(target, drafters, k, **options))


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def tokens(events: list[Event]) -> list[int]:
    return [token for round_ in rounds(events) for token in round_.tokens.tolist()]


@every_drafter
@every_length
@pytest.mark.parametrize("rule", RuleName)
def test_greedy_output_is_that_of_plain_decoding(build: Build, k: int, rule: RuleName) -> None:
    target = FakeEngine()
    assert tokens(run(target, build(target), k, rule=rule)) == plain_greedy(target, PROMPT, 60)


@every_drafter
@every_length
def test_the_cache_holds_all_but_the_pending_token(build: Build, k: int) -> None:
    target = FakeEngine()
    context = list(PROMPT)
    events = start(target, build(target), k, plain_every=PLAIN_EVERY, max_tokens=40)
    for event in events:
        if isinstance(event, Round):
            context += event.tokens.tolist()
        assert target.held == context[:-1]


@every_drafter
@every_length
def test_the_sampler_sees_exactly_the_prefix_of_each_row(build: Build, k: int) -> None:
    """User cases 7 and 8: committed tokens and the drafted ones before it, at every position of every block."""
    target = FakeEngine()
    seen = 0

    def spy(row: np.ndarray, history: np.ndarray) -> Distribution:
        nonlocal seen
        seen += 1
        assert np.array_equal(row, target.row_after(history.tolist()))
        return greedy(row, history)

    events = run(target, build(target), k, to_distribution=spy)
    assert seen >= len(tokens(events))


@every_drafter
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 7, 30])
def test_exactly_the_tokens_asked_for(build: Build, max_tokens: int) -> None:
    """User case 3: the limit counts tokens, not rounds."""
    target = FakeEngine()
    events = run(target, build(target), 4, max_tokens=max_tokens)
    assert len(tokens(events)) == max_tokens
    assert events[-1] == Finished("length")


@every_drafter
@every_length
@pytest.mark.parametrize("position", range(12))
def test_an_end_token_inside_a_draft_ends_the_output(build: Build, k: int, position: int) -> None:
    target = FakeEngine()
    expected = plain_greedy(target, PROMPT, 60)
    end = expected[position]
    events = run(target, build(target), k, is_end=lambda token: token == end)
    assert tokens(events) == expected[: expected.index(end) + 1]
    assert events[-1] == Finished("stop")
    assert len(target) == len(PROMPT) + len(tokens(events)) - 1


def test_an_end_token_as_the_last_token_allowed_is_a_stop() -> None:
    target = FakeEngine()
    end = plain_greedy(target, PROMPT, 1)[0]
    assert run(target, [], 3, max_tokens=1, is_end=lambda t: t == end)[-1] == Finished("stop")


@every_drafter
@every_length
def test_counts_reconcile(build: Build, k: int) -> None:
    """User cases 9 and 17: what is reported is what ran."""
    target = FakeEngine()
    end = plain_greedy(target, PROMPT, 33)[-1]
    for is_end in (lambda _: False, lambda token: token == end):
        for round_ in rounds(run(target, build(target), k, is_end=is_end)):
            drafted = round_.num_accepted + round_.num_rejected + round_.num_discarded
            assert round_.num_draft_tokens == drafted
            assert len(round_.draft) <= (k or 15)
            assert round_.num_accepted <= len(round_.tokens) <= round_.num_accepted + 1
            assert min(round_.num_accepted, round_.num_rejected, round_.num_discarded) >= 0


@every_drafter
@pytest.mark.parametrize("k", [6, ADAPTIVE])
@pytest.mark.parametrize("room", range(1, 12))
def test_a_block_larger_than_the_remaining_context_is_cut(build: Build, room: int, k: int) -> None:
    """User case 28: fill the context to its last cell, then finish with "length"."""
    target = FakeEngine(n_ctx=len(PROMPT) + room)
    events = run(target, build(target), k)
    assert tokens(events) == plain_greedy(target, PROMPT, room + 1)  # the last one needs no cell
    assert events[-1] == Finished("length")


@every_drafter
@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_a_pass_never_asks_for_more_rows_than_the_engine_has(build: Build, max_rows: int) -> None:
    target = FakeEngine(max_rows=max_rows)
    run(target, build(target), 6)
    assert max(target.decodes[1:]) <= max_rows


@every_drafter
@pytest.mark.parametrize("num_events", range(1, 8))
def test_a_dropped_generator_leaves_engines_that_go_on(build: Build, num_events: int) -> None:
    target = FakeEngine()
    drafters = build(target)
    events = start(target, drafters, 3, plain_every=PLAIN_EVERY, max_tokens=40)
    said = tokens(list(islice(events, num_events)))
    events.close()
    context = PROMPT + said
    follow_up = [*context, 7, 7]
    assert tokens(run(target, drafters, 3, prompt=follow_up)) == plain_greedy(target, follow_up, 60)
    shorter = context[:4]
    assert tokens(run(target, drafters, 3, prompt=shorter)) == plain_greedy(target, shorter, 60)


def test_only_what_is_new_is_prefilled() -> None:
    target = FakeEngine()
    first = run(target, [], 3, max_tokens=5)
    context = PROMPT + tokens(first)
    target.decodes.clear()
    second = run(target, [], 3, max_tokens=1, prompt=[*context, 8, 8, 8])
    assert isinstance(second[0], Prefilled)
    assert second[0].num_reused == len(context) - 1
    assert target.decodes[0] == 3


def test_the_drafter_takes_in_the_prompt_before_the_first_round_and_sees_every_round() -> None:
    target = FakeEngine()
    drafter = half_right(target)
    events = run(target, [drafter], 3)
    assert drafter.prepared == [PROMPT]
    assert drafter.rounds == rounds(events)


@pytest.mark.parametrize("decode", [0, 1, 4])
def test_an_interrupt_keeps_what_was_said(decode: int) -> None:
    target = FakeEngine(fails_at={decode: Interrupted("stopped")})
    events = run(target, [oracle(target)], 3)
    assert events[-1] == Finished("interrupted")
    assert tokens(events) == plain_greedy(target, PROMPT, len(tokens(events)))


def test_an_interrupt_in_the_draft_model_stops_too() -> None:
    target, draft = FakeEngine(), FakeEngine(fails_at={5: Interrupted("stopped")})
    drafter = drafting_with(draft)
    assert run(target, [drafter], 3)[-1] == Finished("interrupted")


def test_seconds_are_those_of_the_clock() -> None:
    clock = FakeClock()
    target = FakeEngine(clock=clock, seconds_per_batch=(1.0, 1.5, 2.0, 2.25))
    draft = FakeEngine(clock=clock, seconds_per_batch=(0.25, 0.25))
    drafter = drafting_with(draft)
    events = run(target, [drafter], 3, plain_every=PLAIN_EVERY, clock=clock, max_tokens=9)
    assert isinstance(events[0], Prefilled)
    assert (events[0].target_seconds, events[0].draft_seconds) == (2.25, 0.25)
    first, plain, third, *_ = rounds(events)
    assert (first.draft_seconds, first.target_seconds, first.seconds) == (0.75, 2.25, 3.0)
    assert (plain.num_draft_tokens, plain.draft_seconds, plain.target_seconds) == (0, 0.0, 1.0)
    assert third.num_accepted == 3


def test_the_first_end_token_cuts() -> None:
    assert up_to_end([1, 2, 3, 2], lambda t: t == 2) == ([1, 2], True)
    assert up_to_end([1, 3], lambda t: t == 2) == ([1, 3], False)


def test_a_long_prompt_is_taken_in_decode_by_decode() -> None:
    target = FakeEngine(batch_size=4)
    target.sync(as_tokens(PROMPT[:1]))
    target.decodes.clear()
    prompt = [*PROMPT[:1], *([5] * 10), 6]
    events = run(target, [], 3, max_tokens=1, prompt=prompt)
    assert [event.num_held for event in events if isinstance(event, Prefilling)] == [1, 5]
    assert target.decodes[:3] == [4, 4, 2]
    assert tokens(events) == plain_greedy(target, prompt, 1)


@every_drafter
def test_a_memory_that_must_be_told_is_told_before_each_draft(build: Build) -> None:
    target = FakeEngine(needs_checkpoints=True)
    said = tokens(run(target, build(target), 3, max_tokens=40))
    assert said == plain_greedy(target, PROMPT, 40)


def test_a_draft_model_whose_memory_must_be_told_goes_back_to_its_last_sync() -> None:
    target, draft = FakeEngine(), FakeEngine(seed=1, needs_checkpoints=True)
    said = tokens(run(target, [drafting_with(draft)], 3, max_tokens=40))
    assert said == plain_greedy(target, PROMPT, 40)
