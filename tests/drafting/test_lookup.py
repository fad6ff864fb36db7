from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.decoding.protocol import Evidence
from specd.drafting import lookup as lookup_module
from specd.drafting.lookup import LONGEST_MATCH, MATCH_LENGTHS, MOST_PLACES, TOKENS_PER_MATCH, Lookup


def propose(lookup: Lookup, context: list[int], n: int = 8) -> list[int]:
    return [proposal.token for proposal in islice(lookup.propose(as_tokens(context)), n)]


def evidence(context: list[int], n: int = 8) -> list[Evidence]:
    return [proposal.evidence for proposal in islice(Lookup().propose(as_tokens(context)), n)]


def match_length(context: list[int], place: int) -> int:
    n = 0
    while n < min(place, LONGEST_MATCH) and context[place - 1 - n] == context[len(context) - 1 - n]:
        n += 1
    return n


def by_search(context: list[int], n: int) -> list[int]:
    """What lookup should propose, found by trying every place."""
    lengths = {place: match_length(context, place) for place in range(1, len(context))}
    level = next((length for length in MATCH_LENGTHS if max(lengths.values(), default=0) >= length), None)
    if level is None:
        return []
    places = sorted((place for place, length in lengths.items() if length >= level), reverse=True)[:MOST_PLACES]
    longest = max(lengths[place] for place in places)
    followers = [context[place] for place in places]
    best = max((p for p in places if lengths[p] == longest), key=lambda p: (followers.count(context[p]), p))
    extended = list(context)
    for i in range(min(TOKENS_PER_MATCH * longest, n)):
        extended.append(extended[best + i])
    return extended[len(context) :]


def test_what_followed_before_is_proposed() -> None:
    assert propose(Lookup(), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4]) == [5, 9, 1, 2, 3, 4, 5, 9]


def test_the_longest_match_counts() -> None:
    context = [9, 1, 2, 3, 4, 7, 0, 2, 3, 4, 8, 9, 1, 2, 3, 4]
    assert propose(Lookup(), context)[0] == 7


def test_of_equal_matches_the_most_frequent_continuation_counts_then_the_most_recent() -> None:
    assert propose(Lookup(), [5, 1, 2, 7, 6, 1, 2, 7, 4, 1, 2, 8, 3, 1, 2])[0] == 7
    assert propose(Lookup(), [5, 1, 2, 7, 6, 1, 2, 8, 3, 1, 2])[0] == 8


def test_a_repeating_text_continues_into_itself() -> None:
    assert propose(Lookup(), [1, 2] * 8, 12) == [1, 2] * 6


def test_the_length_follows_the_match() -> None:
    context = list(range(100))
    assert len(propose(Lookup(), [*context, 4], 100)) == TOKENS_PER_MATCH
    assert len(propose(Lookup(), [*context, 3, 4], 100)) == 2 * TOKENS_PER_MATCH
    assert len(propose(Lookup(), [*context, *range(50)], 1000)) == LONGEST_MATCH * TOKENS_PER_MATCH


def test_nothing_known_nothing_proposed() -> None:
    assert propose(Lookup(), [1, 2, 3, 4, 5]) == []
    assert propose(Lookup(), [1]) == []


def test_evidence_says_how_long_the_match_is_and_how_many_places_agree() -> None:
    context = [5, 1, 2, 7, 9, 6, 1, 2, 7, 4, 8, 1, 2]
    assert [(e.depth, e.match_length, e.count, e.total) for e in evidence(context, 3)] == [
        (0, 2, 2, 2),
        (1, 3, 1, 2),
        (2, 4, 1, 1),
    ]
    assert evidence([1, *range(100), *range(60)], 1)[0].match_length == LONGEST_MATCH


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=8))
def test_the_index_follows_any_change_of_history(contexts: list[list[int]]) -> None:
    """User cases 15 and 31: a new turn, an edited message, a shorter prompt."""
    lookup = Lookup()
    for context in contexts:
        assert propose(lookup, context) == by_search(context, 8)
        grown = [*context, 1, 0]
        assert propose(lookup, grown) == by_search(grown, 8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_any_context_gives_what_a_search_of_every_place_gives(context: list[int]) -> None:
    assert propose(Lookup(), context, 50) == by_search(context, 50)


def test_rolling_back_leaves_nothing_behind() -> None:
    lookup = Lookup()
    text = np.random.default_rng(0).integers(0, 4, 500).tolist()
    propose(lookup, text)
    propose(lookup, text[:3])
    fresh = Lookup()
    propose(fresh, text[:3])
    assert (lookup._last, lookup._before) == (fresh._last, fresh._before)


def test_drafting_ahead_of_the_context_leaves_nothing_behind() -> None:
    """A controller asks behind a model's tokens too, and comes back."""
    lookup = Lookup()
    text = np.random.default_rng(1).integers(0, 4, 100).tolist()
    before = propose(lookup, text)
    propose(lookup, [*text, 3, 3, 1])
    assert propose(lookup, text) == before


def test_a_half_taken_proposal_survives_a_change_of_context() -> None:
    lookup = Lookup()
    proposals = lookup.propose(as_tokens([1, 2, 3, 4, 1, 2]))
    assert next(proposals).token == 3
    propose(lookup, [9, 9, 9])
    assert next(proposals).token == 4


def test_the_work_per_proposal_does_not_grow_with_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """User case 14: at 32 000 tokens a proposal compares as few places as at 1 000, and indexes only what is new."""
    compared, hashed = [0], [0]

    def count_compared(data: bytes, place: int) -> int:
        compared[0] += 1
        return real(data, place)

    def count_hashed(data: bytes) -> int:
        hashed[0] += 1
        return hash(data)

    real = lookup_module._match_length
    monkeypatch.setattr(lookup_module, "_match_length", count_compared)
    monkeypatch.setattr(lookup_module, "hash", count_hashed, raising=False)
    text = np.random.default_rng(2).integers(0, 30, 32_000).tolist()
    for length in (1_000, 32_000):
        lookup = Lookup()
        propose(lookup, text[: length - 1])
        compared[0] = hashed[0] = 0
        propose(lookup, text[:length])
        assert compared[0] <= MOST_PLACES * len(MATCH_LENGTHS)
        assert hashed[0] <= 2 * len(MATCH_LENGTHS)


@pytest.mark.parametrize("collision", [0, 1])
def test_a_hash_that_misleads_changes_nothing(collision: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are compared token by token, whatever the index says."""
    monkeypatch.setattr("specd.drafting.lookup.hash", lambda data: collision or len(data), raising=False)
    context = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4]
    assert propose(Lookup(), context, 2) == [5, 9]


def test_preparing_is_optional() -> None:
    context = [1, 2, 3, 4, 1, 2, 3]
    prepared, fresh = Lookup(), Lookup()
    prepared.prepare(as_tokens(context[:-1]))
    assert propose(prepared, context) == propose(fresh, context)
