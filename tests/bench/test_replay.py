"""Decisions on the recorded traces of the real pair, on simulated time: exact, whatever the machine does meanwhile."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from specd.bench.replay import Replay, Replayed
from specd.bench.trace import Trace
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.pricing import MAX_DRAFT, Prices
from specd.decoding.protocol import Controller, Drafter
from specd.drafting.lookup import Lookup
from specd.errors import SpecdError

TRACES = Path(__file__).parents[1] / "traces"
KINDS = ("chat", "code", "edit", "extraction", "mixed", "story", "summary")
BOTH = ("lookup", "draft")
# A machine on which rows and drafts are cheap, as on a GPU: seconds of passes of target and draft.
CHEAP = {1: 0.020, 2: 0.0205, 4: 0.021, 8: 0.023, 16: 0.027, 32: 0.035}, {1: 0.003, 8: 0.0035, 16: 0.004, 32: 0.005}


@lru_cache
def replay(kind: str, costs: str = "recorded") -> Replay:
    trace = Trace.read(TRACES / f"{kind}.jsonl")
    if costs == "cheap":
        trace = dataclasses.replace(trace, target_seconds=CHEAP[0], draft_seconds=CHEAP[1])
    return Replay(trace)


def adaptive(trace: Trace, acceptance: Acceptance) -> Callable[[Sequence[Drafter], Callable[[], float]], Controller]:
    def build(drafters: Sequence[Drafter], clock: Callable[[], float]) -> Controller:
        prices = Prices(PassCosts(trace.target_seconds), {"draft": PassCosts(trace.draft_seconds)})
        return Adaptive(drafters, prices, acceptance, clock, max_draft=MAX_DRAFT)

    return build


@lru_cache
def ours(kind: str, names: tuple[str, ...] = BOTH, costs: str = "recorded") -> Replayed:
    one = replay(kind, costs)
    return one.run(adaptive(one.trace, Acceptance(PRIORS)), names)


@pytest.mark.parametrize("kind", KINDS)
def test_near_the_best_fixed_choice_in_hindsight_on_every_trace(kind: str) -> None:
    best = min(replay(kind).best_fixed(name)[1] for name in BOTH)
    assert best / ours(kind).seconds >= 0.97


def test_better_than_any_fixed_choice_where_kinds_of_text_mix() -> None:
    best = min(replay("mixed").best_fixed(name)[1] for name in BOTH)
    assert best / ours("mixed").seconds >= 1.05


def test_near_to_what_foresight_could_reach() -> None:
    oracle = sum(replay(kind).oracle_seconds(BOTH) for kind in KINDS)
    assert oracle / sum(ours(kind).seconds for kind in KINDS) >= 0.88


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("costs", ["recorded", "cheap"])
def test_never_slower_than_plain_decoding(kind: str, costs: str) -> None:
    assert replay(kind, costs).plain_seconds / ours(kind, costs=costs).seconds >= 0.97


@pytest.mark.parametrize("kind", KINDS)
def test_both_drafters_together_accept_no_less_per_pass_than_either(kind: str) -> None:
    both, *parts = (ours(kind, names).statistics.mean_acceptance_length for names in (BOTH, ("lookup",), ("draft",)))
    assert both is not None
    assert both >= max(part for part in parts if part is not None)


def test_both_drafters_together_are_faster_than_either_where_both_pay() -> None:
    both, lookup, draft = (
        sum(ours(kind, names, "cheap").seconds for kind in KINDS) for names in (BOTH, ("lookup",), ("draft",))
    )
    assert both < 0.7 * lookup
    assert both < 0.9 * draft


def test_a_model_that_costs_more_than_half_a_step_is_left_alone() -> None:
    drafted = ours("chat").statistics.by_drafter.get("draft")
    assert drafted is None or drafted.num_draft_tokens == 0


def test_copying_a_file_takes_few_passes() -> None:
    """User case 13: a 60-line file with its class renamed."""
    assert len(replay("edit").trace.output) > 400
    lookup = ours("edit", ("lookup",)).statistics
    assert lookup.num_rounds <= 0.35 * lookup.num_completion_tokens
    predicted = ours("edit", ("lookup", "predicted")).statistics
    assert predicted.num_rounds <= 0.25 * predicted.num_completion_tokens


@pytest.mark.parametrize("costs", ["recorded", "cheap"])
def test_what_one_run_learned_makes_the_next_one_begin_faster(costs: str) -> None:
    """The first 64 tokens of all kinds after a run over the same kind of text, for drafters of which nothing is known
    beforehand but that they are right half of the time. The built-in priors know these texts: there is little to gain.
    """
    ignorant = {("lookup",): 0.5, ("draft",): 0.5}

    def first_tokens(kind: str, priors: dict[tuple[str, ...], float], *, learned: bool) -> float:
        known = Acceptance(priors)
        trace = replay(kind, costs).trace
        if learned:
            replay(kind, costs).run(adaptive(trace, known), BOTH)
            known = Acceptance(priors, Acceptance.from_json(known.as_json())._earlier)
        return Replay(dataclasses.replace(trace, steps=trace.steps[:64])).run(adaptive(trace, known), BOTH).seconds

    def seconds(priors: dict[tuple[str, ...], float], *, learned: bool) -> float:
        return sum(first_tokens(kind, priors, learned=learned) for kind in KINDS)

    assert seconds(ignorant, learned=True) < seconds(ignorant, learned=False)
    assert seconds(dict(PRIORS), learned=True) < 1.03 * seconds(dict(PRIORS), learned=False)


def test_a_fixed_length_is_replayed_exactly() -> None:
    """Passes and seconds against what the record itself says."""
    one = replay("code")
    result = one.run(lambda drafters, clock: FixedLength(drafters, 3, clock, plain_every=10**9), ["draft"])
    position = seconds = num_rounds = 0
    held, n = 0, len(one.trace.steps)  # how much of the output the draft's cache has
    while position < n:
        plain = num_rounds in (1, 5)
        k = 0 if plain else min(3, n - position - 1)
        accepted = min(one.trace.accepted(position), k)
        seconds += one.trace.target_seconds[k + 1]
        if k:
            seconds += one.trace.draft_seconds[position - held or 1] + (k - 1) * one.trace.draft_seconds[1]
            held = position + min(accepted, k - 1)
        position += accepted + 1
        num_rounds += 1
    assert result.statistics.num_rounds == num_rounds
    assert result.seconds == pytest.approx(seconds, rel=0.02)


def test_no_replay_beats_foresight_with_one_drafter() -> None:
    for kind in KINDS:
        for name in ("lookup", "draft"):
            assert replay(kind).oracle_seconds([name]) <= replay(kind).best_fixed(name)[1]
            assert replay(kind).oracle_seconds([name]) <= ours(kind, (name,)).seconds + 1e-9


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = replay("story").trace
    trace.write(tmp_path / "again.jsonl")
    again = Trace.read(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (TRACES / "story.jsonl").read_text()
    assert again.steps == trace.steps
    assert np.array_equal(again.prompt, trace.prompt)


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"kind": 1}\n{"token": 2}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.jsonl").write_text(content)
    with pytest.raises(SpecdError, match="is not a trace"):
        Trace.read(tmp_path / "broken.jsonl")


def test_the_record_agrees_with_lookup_on_what_came_before() -> None:
    """The oracle's runs of lookup are those that the real lookup gives."""
    one = replay("summary")
    runs = one._runs("lookup")
    drafter = Lookup()
    context = np.concatenate([one.trace.prompt, one.trace.output])
    for position in (20, 50, 90):
        proposed = [p.token for p in drafter.propose(context[: len(one.trace.prompt) + position])][:MAX_DRAFT]
        actual = one.trace.output[position:].tolist()
        right = next((i for i, (a, b) in enumerate(zip(proposed, actual, strict=False)) if a != b), len(proposed))
        assert runs[position] == min(right, len(actual))
