import json

import pytest

from specd.decoding.acceptance import MOST_EARLIER, MOST_PER_RUN, PRIORS, UNKNOWN, Acceptance, kind_of
from specd.decoding.protocol import Evidence

SURE = Evidence("draft", 0, confidence=0.97)
UNSURE = Evidence("draft", 0, confidence=0.35)


def lookup(match_length: int, count: int = 1, total: int = 1, depth: int = 0) -> Evidence:
    return Evidence("lookup", depth, match_length, count, total)


def test_kinds_tell_apart_what_matters() -> None:
    """User case 12: a draft of low confidence is another matter than one of high confidence."""
    kinds = [
        SURE,
        UNSURE,
        lookup(1),
        lookup(5),
        lookup(5, 2, 2),
        lookup(5, 2, 3),
        Evidence("draft", 3, confidence=0.97),
    ]
    assert len({kind_of(evidence) for evidence in kinds}) == len(kinds)
    assert kind_of(lookup(5)) == kind_of(lookup(5, depth=7))  # the match length says it already


def test_built_in_priors_rise_with_match_and_confidence() -> None:
    acceptance = Acceptance(PRIORS)
    for chances in (
        [acceptance.probability(lookup(n)) for n in (1, 2, 4, 8, 16, 32)],
        [acceptance.probability(Evidence("draft", 0, confidence=c)) for c in (0.1, 0.4, 0.6, 0.9, 0.999)],
        [
            acceptance.probability(lookup(3, 1, 4)),
            acceptance.probability(lookup(3)),
            acceptance.probability(lookup(3, 4, 4)),
        ],
    ):
        assert chances == sorted(chances)


def test_what_is_seen_moves_its_own_kind_only() -> None:
    acceptance = Acceptance(PRIORS)
    before = acceptance.probability(UNSURE)
    for _ in range(30):
        acceptance.observe(SURE, False)
    assert acceptance.probability(SURE) < 0.2
    assert acceptance.probability(UNSURE) == before


def test_it_forgets() -> None:
    acceptance = Acceptance(PRIORS)
    for _ in range(200):
        acceptance.observe(UNSURE, False)
    for _ in range(60):
        acceptance.observe(UNSURE, True)
    assert acceptance.probability(UNSURE) > 0.75


def test_a_drafter_that_nothing_is_known_about_must_show_what_it_is_worth() -> None:
    acceptance = Acceptance(PRIORS)
    boasting = Evidence("stranger", 0, match_length=32, count=9, total=9)
    assert acceptance.probability(boasting) == UNKNOWN
    for _ in range(20):
        acceptance.observe(boasting, True)
    assert acceptance.probability(boasting) > 0.7


def test_depths_not_reached_yet_are_like_those_before() -> None:
    acceptance = Acceptance(PRIORS)
    for _ in range(20):
        acceptance.observe(SURE, True)
    assert acceptance.at_depth("draft", 9) == acceptance.at_depth("draft", 0) > 0.9


def test_the_next_run_begins_where_this_one_ended() -> None:
    first = Acceptance(PRIORS)
    for _ in range(50):
        first.observe(UNSURE, True)
    kept = json.loads(json.dumps(first.as_json()))
    second = Acceptance.from_json(kept)
    assert second.probability(UNSURE) > Acceptance(PRIORS).probability(UNSURE) + 0.05
    assert second.probability(SURE) == Acceptance(PRIORS).probability(SURE)
    assert second.as_json() == first.as_json()


def test_one_long_run_does_not_outweigh_many_short_ones() -> None:
    long_run, short_runs = Acceptance(PRIORS), Acceptance(PRIORS)
    for _ in range(1000):
        long_run.observe(UNSURE, True)
    for _ in range(10):
        short_runs = Acceptance.from_json(short_runs.as_json())
        for _ in range(10):
            short_runs.observe(UNSURE, True)
    chances = [Acceptance.from_json(each.as_json()).probability(UNSURE) for each in (long_run, short_runs)]
    assert chances[0] < chances[1] - 0.1
    assert long_run.as_json()["draft c1 d0"] == (MOST_PER_RUN, MOST_PER_RUN)


def test_old_runs_make_room_for_new_ones() -> None:
    acceptance = Acceptance(PRIORS)
    for accepted in [True] * 20 + [False] * 20:
        acceptance = Acceptance.from_json(acceptance.as_json())
        for _ in range(30):
            acceptance.observe(SURE, accepted)
    hits, total = acceptance.as_json()["draft c6 d0"]
    assert total == pytest.approx(MOST_EARLIER, abs=0.1)
    assert hits < 25


def test_the_target_says_what_to_expect_of_a_model_that_was_not_asked() -> None:
    chances = []
    for certainty in (0.5, 0.75, 0.9, 0.99):
        acceptance = Acceptance(PRIORS)
        for _ in range(5):
            acceptance.observe_target(certainty)
        chances.append(acceptance.at_depth("draft", 0))
    assert chances == sorted(chances)
    assert chances[0] < 0.7 < 0.97 < chances[-1]


def test_a_bad_model_is_learned_where_the_target_is_sure_and_remembered() -> None:
    acceptance = Acceptance(PRIORS)
    for _ in range(5):
        acceptance.observe_target(0.99)
    for _ in range(30):
        acceptance.observe(SURE, False)
    assert acceptance.at_depth("draft", 0) < 0.2
    later = Acceptance.from_json(json.loads(json.dumps(acceptance.as_json())))
    for _ in range(5):
        later.observe_target(0.99)
    assert later.at_depth("draft", 0) < 0.85


def test_one_sure_token_is_not_a_kind_of_text() -> None:
    acceptance = Acceptance(PRIORS)
    acceptance.observe_target(0.99)
    assert acceptance.at_depth("draft", 0) == Acceptance(PRIORS).at_depth("draft", 0)
