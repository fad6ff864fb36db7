from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.drafting.predicted import Predicted

PROMPT = [500, 501, 502]
TEXT = list(range(100, 160))


def propose(drafter: Predicted, output: list[int], n: int = 3) -> list[int]:
    return [proposal.token for proposal in islice(drafter.propose(as_tokens(PROMPT + output)), n)]


def started() -> Predicted:
    drafter = Predicted(as_tokens(TEXT))
    drafter.prepare(as_tokens(PROMPT))
    return drafter


def test_the_first_token_of_an_answer_is_drafted() -> None:
    assert propose(started(), []) == TEXT[:3]


def test_it_follows_the_text() -> None:
    assert propose(started(), TEXT[:10]) == TEXT[10:13]


def test_it_begins_after_words_of_introduction() -> None:
    assert propose(started(), [7, 8, 9, 7, 8, *TEXT[:2]]) == TEXT[2:5]


def test_a_replaced_word_is_passed_over() -> None:
    assert propose(started(), [*TEXT[:10], 7]) == TEXT[11:14]
    assert propose(started(), [*TEXT[:10], 7, *TEXT[11:13]]) == TEXT[13:16]


def test_words_put_in_or_left_out_are_passed_over() -> None:
    assert propose(started(), [*TEXT[:10], 1, 2, 3, 4, 5, TEXT[10]]) == TEXT[11:14]
    assert propose(started(), [*TEXT[:10], *TEXT[16:19]]) == TEXT[19:22]
    assert propose(started(), [*TEXT[:10], *TEXT[40:46]]) == TEXT[46:49]  # a part left out: far, but a long match


def test_a_short_match_far_away_is_not_taken_for_the_place() -> None:
    text = [*TEXT, 999]
    drafter = Predicted(as_tokens(text))
    drafter.prepare(as_tokens(PROMPT))
    assert propose(drafter, [*TEXT[:5], 998, 999])[:1] != []
    assert propose(drafter, [*TEXT[:5], 999, TEXT[6]]) == TEXT[7:10]


def test_the_nearer_of_equal_matches_is_taken() -> None:
    text = [1, 2, 3, 50, *range(100, 140), 1, 2, 3, 60, *range(200, 240)]
    drafter = Predicted(as_tokens(text))
    drafter.prepare(as_tokens(PROMPT))
    assert propose(drafter, [*text[:43], 77, 1, 2, 3], 1) == [60]


def test_evidence_grows_with_the_match_and_starts_anew_after_a_deviation() -> None:
    drafter = started()
    assert next(drafter.propose(as_tokens(PROMPT + TEXT[:10]))).evidence.match_length == 10
    assert next(drafter.propose(as_tokens(PROMPT + TEXT[:10] + [7]))).evidence.match_length == 0
    again = PROMPT + TEXT[:10] + [7] + TEXT[11:13]
    assert next(drafter.propose(as_tokens(again))).evidence.match_length == 2


def test_at_the_end_of_the_text_it_falls_silent() -> None:
    assert propose(started(), TEXT) == []
    assert propose(started(), [*TEXT, 1, 2]) == []
    assert propose(Predicted(as_tokens([])), []) == []


@given(st.lists(st.lists(st.integers(100, 104), max_size=12), min_size=1, max_size=6))
def test_it_follows_any_change_of_history(outputs: list[list[int]]) -> None:
    text = as_tokens([100, 101, 102, 101, 103, 104, 100, 101, 104])
    followed = Predicted(text)
    followed.prepare(as_tokens(PROMPT))
    for output in outputs:
        fresh = Predicted(text)
        fresh.prepare(as_tokens(PROMPT))
        assert propose(followed, output) == propose(fresh, output)


def test_a_new_turn_expects_the_text_from_its_start() -> None:
    drafter = started()
    propose(drafter, TEXT[:20])
    longer = as_tokens([*PROMPT, *TEXT[:20], 503])
    drafter.prepare(longer)
    assert [p.token for p in islice(drafter.propose(longer), 2)] == TEXT[:2]
    shorter = as_tokens(PROMPT[:2])
    assert [p.token for p in islice(drafter.propose(shorter), 2)] == TEXT[:2]


def test_most_of_an_edited_text_is_proposed_right() -> None:
    """A name that is replaced in thirty places, and two lines put in."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 60, 900)
    text[rng.choice(900, 30, replace=False)] = 777
    new = [token for i, t in enumerate(text.tolist()) for token in ([888, 889] if t == 777 else [t])]
    new[400:400] = rng.integers(0, 60, 15).tolist()
    drafter = Predicted(as_tokens(text))
    drafter.prepare(as_tokens(PROMPT))
    right = sum(propose(drafter, new[:i], 1) == [token] for i, token in enumerate(new))
    assert right / len(new) > 0.88  # of 945 tokens 60 are new names and 15 new words
