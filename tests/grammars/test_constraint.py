"""A grammar over tokens: what is allowed does not depend on how the context was reached."""

import json

import numpy as np
import pytest

from specd.decoding.context import Tokens, as_tokens
from specd.errors import EngineError
from specd.grammars.constraint import Grammar
from specd.grammars.gbnf import gbnf_grammar
from specd.grammars.schema import schema_grammar
from tests.grammars.words import Words

PROMPT = [1, 2, 3]


WORDS = Words('{"', '": ', '", "', "name", "age", "Ada", "12", '"}', "true")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "bb"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
GRAMMAR = Grammar(schema_grammar(json.dumps(SCHEMA), "it"), WORDS)


def context(text: str, *more: int) -> Tokens:
    return as_tokens([*PROMPT, *WORDS.tokenize(text, add_special=False, parse_special=False), *more])


def test_only_what_the_schema_allows_may_follow() -> None:
    constraint = GRAMMAR.constraint(len(PROMPT))
    mask = constraint.allowed(context('{"name": "Ada", "age": 1'))
    assert mask is not None
    assert {WORDS.text([token]) for token in np.flatnonzero(mask)} == {*"0123456789", "12", ","}
    assert constraint.permits(
        context('{"name": "Ada", "age": 1'), WORDS.tokenize("12", add_special=False, parse_special=False)[0]
    )
    assert not constraint.permits(context('{"name": "Ada", "age": 1'), WORDS.eos)


def test_what_must_follow_is_known() -> None:
    constraint = GRAMMAR.constraint(len(PROMPT))
    assert WORDS.text(constraint.forced(context(""))).rstrip() == '{"name":'
    assert WORDS.text(constraint.forced(context('{"name": "Ada"'))).rstrip() == ', "age":'
    assert constraint.forced(context('{"name": "A')) == []
    whole = context('{"name": "Ada", "age": 1, "kind": "a"}')
    assert constraint.forced(whole) == [WORDS.eos]
    assert np.flatnonzero(constraint.allowed(whole)).tolist() == [WORDS.eos - 1, WORDS.eos]  # type: ignore[arg-type]
    assert constraint.forced(as_tokens([*whole, WORDS.eos])) == []


def test_a_context_that_breaks_the_rules_allows_nothing_and_harms_nothing() -> None:
    constraint = GRAMMAR.constraint(len(PROMPT))
    broken = context('{"name": "Ada" "')
    assert constraint.allowed(broken) is None
    assert constraint.forced(broken) == []
    assert not constraint.permits(broken, 1)
    assert WORDS.text(constraint.forced(context('{"name": "Ada"'))).rstrip() == ', "age":'


@pytest.mark.parametrize("seed", range(8))
def test_the_same_may_follow_however_the_context_was_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    constraint, walk = GRAMMAR.constraint(len(PROMPT)), as_tokens(PROMPT)
    for _ in range(120):
        if rng.random() < 0.2:
            walk = walk[: int(rng.integers(len(PROMPT), len(walk) + 1))]
        if rng.random() < 0.3:
            constraint.forced(walk)
        if rng.random() < 0.3:  # a draft that may be wrong
            constraint.permits(np.append(walk, rng.integers(0, WORDS.size)).astype(np.int32), 5)
        mask, fresh = constraint.allowed(walk), GRAMMAR.constraint(len(PROMPT)).allowed(walk)
        assert mask is not None
        assert fresh is not None
        assert mask.tolist() == fresh.tolist()
        walk = np.append(walk, rng.choice(np.flatnonzero(mask))).astype(np.int32)
        if walk[-1] in WORDS.ends():
            assert set(json.loads(WORDS.text(walk[len(PROMPT) : -1].tolist()))) == {"name", "age", "kind"}
            walk = as_tokens(PROMPT)


def test_a_vocabulary_that_begins_texts_with_a_blank_forces_no_blanks() -> None:
    words = Words(" name", '{"', "name", blank_first=True)
    constraint = Grammar(gbnf_grammar('root ::= "name: " [0-9]', "it"), words).constraint(0)
    assert words.text(constraint.forced(as_tokens([]))) == "name: "


def test_a_model_without_an_end_is_refused() -> None:
    words = Words(num_ends=0)
    with pytest.raises(EngineError, match="no token that ends an answer"):
        Grammar(gbnf_grammar('root ::= "a"', "it"), words)
