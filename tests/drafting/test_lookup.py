import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd.decoding.context import as_tokens
from specd.drafting.lookup import MATCH_LENGTHS, Lookup


def propose(lookup: Lookup, context: list[int], n: int = 8) -> list[int]:
    return lookup.propose(as_tokens(context), n).tokens.tolist()


def by_search(context: list[int], n: int) -> list[int]:
    """What lookup should propose, found by trying every place."""
    for length in MATCH_LENGTHS:
        suffix = context[-length:]
        for position in range(len(context) - 1, length - 1, -1):
            if context[position - length : position] == suffix and length < len(context):
                extended = list(context)
                for i in range(min(length, n)):
                    extended.append(extended[position + i])
                return extended[len(context) :]
    return []


def test_what_followed_before_is_proposed() -> None:
    assert propose(Lookup(), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4]) == [5, 9, 1, 2]


def test_the_most_recent_occurrence_counts() -> None:
    assert propose(Lookup(), [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3])[0] == 8


def test_the_longest_match_counts() -> None:
    context = [9, 1, 2, 3, 4, 7, 0, 2, 3, 4, 8, 9, 1, 2, 3, 4]
    assert propose(Lookup(), context)[0] == 7


def test_a_repeating_text_continues_into_itself() -> None:
    assert propose(Lookup(), [1, 2] * 8, 12) == [1, 2] * 6


def test_the_budget_and_the_match_bound_the_length() -> None:
    context = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]
    assert propose(Lookup(), context, 2) == [6, 7]
    assert len(propose(Lookup(), context, 30)) == 4
    assert propose(Lookup(), context, 0) == []


def test_nothing_known_nothing_proposed() -> None:
    assert propose(Lookup(), [1, 2, 3, 4, 5]) == []
    assert propose(Lookup(), [1]) == []


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=8))
def test_the_index_follows_any_change_of_history(contexts: list[list[int]]) -> None:
    """User cases 15 and 31: a new turn, an edited message, a shorter prompt."""
    lookup = Lookup()
    for context in contexts:
        assert propose(lookup, context) == by_search(context, 8)
        grown = [*context, 1, 0]
        assert propose(lookup, grown) == by_search(grown, 8)


def test_rolling_back_leaves_nothing_behind() -> None:
    lookup = Lookup()
    rng = np.random.default_rng(0)
    text = rng.integers(0, 4, 500).tolist()
    propose(lookup, text)
    propose(lookup, text[:3])
    assert len(lookup._positions) <= 3 * len(MATCH_LENGTHS)


def test_preparing_is_optional() -> None:
    context = [1, 2, 3, 4, 1, 2, 3]
    prepared, fresh = Lookup(), Lookup()
    prepared.prepare(as_tokens(context[:-1]))
    assert propose(prepared, context) == propose(fresh, context) == [4, 1, 2]
