"""A small vocabulary that is the first part of a large one: tokens 0 to 29 of 40, and two of the later ones."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.decoding.constraint import constrained
from specd.decoding.context import Tokens, as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.loop import generate
from specd.decoding.protocol import Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, greedy, sampler
from specd.decoding.verify import RULES, draw_independently
from specd.drafting.model import DraftModel
from specd.drafting.translated import ABSENT, Translated
from tests.fakes import FakeClock, FakeEngine, plain_greedy

LETTERS = [chr(ord("a") + i) for i in range(26)]
MERGED = ["ab", "cd", "abc", "de"]  # 26 to 29, each of two that come before it
LATER = ["abcd", "<end>", "cde", "xy", "<pad>", "abab", "cdabcd", "", "é", "z" * 9]  # 30 to 39
SPELLINGS = [*LETTERS, *MERGED, *LATER]
SAME, OTHERS = 30, (31, 34)
IDS = {spelling: i for i, spelling in enumerate([*LETTERS, *MERGED, "<end>", "<pad>"])}
PIECES = {
    30: [26, 27],  # ab has the lowest id, then cd, which comes before abc
    31: [30],
    32: [27, 4],  # cd e: cd comes before de
    33: [23, 24],
    34: [31],
    35: [26, 26],
    36: [27, 26, 27],
    37: [0],
    38: [0],
    39: [25] * 9,
}


def translated(engine: FakeEngine) -> Translated:
    return Translated(engine, SAME, OTHERS, 40, SPELLINGS.__getitem__, IDS)


def small(**options: int) -> FakeEngine:
    return FakeEngine(n_vocab=32, **options)  # type: ignore[arg-type]


def read(tokens: list[int]) -> list[int]:
    return [piece for token in tokens for piece in (PIECES[token] if token >= SAME else [token])]


def expected_row(engine: FakeEngine, tokens: list[int]) -> np.ndarray:
    row = np.full(40, ABSENT, np.float32)
    own = engine.row_after(read(tokens))
    row[:SAME], row[list(OTHERS)] = own[:SAME], own[SAME:]
    return row


@pytest.mark.parametrize("token", PIECES)
def test_what_the_small_one_lacks_is_read_as_its_pieces(token: int) -> None:
    engine = small()
    translated(engine).sync(as_tokens([1, token, 2]))
    assert engine.held == [1, *PIECES[token], 2]


def test_rows_are_in_ids_of_the_large_one() -> None:
    engine = small()
    model = translated(engine)
    rows = model.sync(as_tokens([3, 30, 31, 5]), num_rows=3)
    for i, row in enumerate(rows):
        assert np.array_equal(row, expected_row(engine, [3, 30, 31, 5][: 2 + i]))


def test_one_decode_takes_in_what_is_new_pieces_and_all() -> None:
    engine = small(max_rows=1)
    model = translated(engine)
    model.sync(as_tokens([1, 2, 36]), num_rows=1)
    model.sync(as_tokens([1, 2, 36, 35, 33]), num_rows=1)
    model.advance(as_tokens([31]))
    assert engine.decodes == [5, 4, 1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 39), min_size=1, max_size=6), st.integers(0, 4))),
    st.integers(1, 5),
)
def test_whatever_is_kept_and_added_the_engine_reads_the_context(
    steps: list[tuple[int, list[int], int]], max_rows: int
) -> None:
    engine = small(max_rows=max_rows, n_ctx=4096)
    model, context = translated(engine), [7]
    for keep, tokens, num_rows in steps:
        context = context[:keep] + tokens
        num_rows = min(num_rows, len(context))
        rows = model.sync(as_tokens(context), num_rows)
        assert engine.held == read(context)
        assert len(model) == len(context)
        assert model.n_ctx == engine.n_ctx - len(read(context)) + len(context)
        for i in range(num_rows):
            assert np.array_equal(rows[i], expected_row(engine, context[: len(context) - num_rows + 1 + i]))


def test_an_engine_that_was_emptied_or_failed_is_filled_again() -> None:
    engine = small(n_ctx=8)
    model = translated(engine)
    model.sync(as_tokens([1, 36, 3]))
    engine.rollback(0)
    model.sync(as_tokens([1, 36, 3, 4]))
    assert engine.held == read([1, 36, 3, 4])
    with pytest.raises(Exception, match="too much"):
        model.sync(as_tokens([1, 36, 3, 4, 39]))
    model.sync(as_tokens([1, 36, 3, 4, 5]))
    assert engine.held == read([1, 36, 3, 4, 5])


def test_a_draft_with_it_changes_nothing_and_proposes_ids_of_the_large_one() -> None:
    target, clock = FakeEngine(n_vocab=40, sharpness=3.0), FakeClock()
    model = DraftModel(
        translated(small()), greedy, draw_independently, num_shared=40, randomness=Randomness(0), clock=clock
    )
    prompt = [3, 36, 34, 1]
    proposed = [proposal.token for proposal in islice(model.propose(as_tokens(prompt)), 12)]
    assert all(token < SAME or token in OTHERS for token in proposed)
    events = generate(
        target,
        FixedLength([model], 4, clock),
        as_tokens(prompt),
        greedy,
        RULES["match"].verify,
        max_tokens=60,
        is_end=lambda _: False,
        randomness=Randomness(0),
        clock=clock,
    )
    rounds = [event for event in events if isinstance(event, Round)]
    tokens = [token for round_ in rounds for token in round_.tokens.tolist()]
    assert tokens == plain_greedy(target, prompt, 60)
    assert sum(round_.num_draft_tokens for round_ in rounds) > 60


def test_a_grammar_that_allows_only_what_it_lacks_does_not_end_it() -> None:
    class OnlyLater:
        def permits(self, context: Tokens, token: int) -> bool:
            return token in (33, 35)

        def allowed(self, context: Tokens) -> np.ndarray:
            return np.isin(np.arange(40), (33, 35))

        def forced(self, context: Tokens) -> list[int]:
            return []

    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        to_distribution = constrained(sampler(params), OnlyLater())
        model = DraftModel(
            translated(small()),
            to_distribution,
            draw_independently,
            num_shared=40,
            randomness=Randomness(0),
            clock=FakeClock(),
        )
        proposed = [proposal.token for proposal in islice(model.propose(as_tokens([3, 1])), 3)]
        assert set(proposed) <= {33, 35}
        assert len(proposed) == 3
