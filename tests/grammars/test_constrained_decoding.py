"""The whole loop under a grammar, by exact enumeration against the masked, renormalised target."""

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from specd.decoding.constraint import Constraint, constrained
from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.distribution import Distribution
from specd.decoding.loop import generate
from specd.decoding.protocol import Drafter, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, ToDistribution, sampler
from specd.decoding.verify import RULES, RuleName, Verify
from specd.drafting.constrained import GRAMMAR, Constrained, Forced
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.errors import EngineError
from specd.grammars.constraint import Grammar
from specd.grammars.gbnf import gbnf_grammar
from tests.enumeration import every_way
from tests.fakes import FakeClock, FakeEngine, ScriptedDrafter
from tests.grammars.words import Words

WORDS = Words(characters="abc", num_ends=1)
A, B, C, END = range(4)
PROMPT = [A, B, C, A, B, A, C, A, B]
LANGUAGE = ["ab", "ac", "bcc", "bca", "c", "abca"]
RULES_OF_LANGUAGE = Grammar(gbnf_grammar('root ::= "ab" "ca"? | "ac" | "bc" [ca] | "c"', "it"), WORDS)
PARAMS = SamplingParams(temperature=0.9, top_k=3, top_p=0.93, min_p=0.03, repeat_penalty=1.4, presence_penalty=0.2)
Build = Callable[[Constraint, Randomness], list[Drafter]]


def constraint() -> Constraint:
    return RULES_OF_LANGUAGE.constraint(len(PROMPT))


def drafting_with(rule: Constraint, randomness: Randomness) -> DraftModel:
    own = constrained(sampler(SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)), rule)
    draw = RULES[RuleName.REJECTION].draw
    return DraftModel(FakeEngine(4, seed=9), own, draw, num_shared=4, randomness=randomness, clock=FakeClock())


BUILDS: dict[str, Build] = {
    "nothing": lambda rule, randomness: [],
    "grammar": lambda rule, randomness: [Forced(rule)],
    "lookup": lambda rule, randomness: [Constrained(Lookup(), rule)],
    "draft": lambda rule, randomness: [drafting_with(rule, randomness)],
    "free and wrong": lambda rule, randomness: [ScriptedDrafter(lambda context, n: [B, A, C])],
    "grammar, then draft": lambda rule, randomness: [Forced(rule), drafting_with(rule, randomness)],
}


def said(build: Build, verify: Verify, randomness: Randomness, to_distribution: ToDistribution | None = None) -> str:
    rule = constraint()
    controller = FixedLength(build(rule, randomness), 3, FakeClock(), plain_every=10**9)
    events = generate(
        FakeEngine(4, seed=5),
        controller,
        PROMPT,
        to_distribution or constrained(sampler(PARAMS), rule),
        verify,
        max_tokens=6,
        is_end=lambda token: token == END,
        randomness=randomness,
        clock=FakeClock(),
    )
    return WORDS.text([token for event in events if isinstance(event, Round) for token in event.tokens.tolist()])


def expected() -> dict[str, float]:
    """What the language allows, computed from its words, and the target's logits filtered by hand."""
    engine = FakeEngine(4, seed=5)
    to_distribution, result = sampler(PARAMS), dict.fromkeys(LANGUAGE, 0.0)

    def follow(text: str, probability: float) -> None:
        history = as_tokens([*PROMPT, *(WORDS.tokenize(text, add_special=False, parse_special=False))])
        row = engine.row_after(history.tolist()).copy()
        for token, letter in enumerate("abc"):
            if not any(word.startswith(text + letter) for word in LANGUAGE):
                row[token] = -np.inf
        if text not in LANGUAGE:
            row[END] = -np.inf
        p = to_distribution(row, history)
        for token, share in zip(p.tokens.tolist(), p.probs.tolist(), strict=True):
            if token == END:
                result[text] += probability * share
            else:
                follow(text + "abc"[token], probability * share)

    follow("", 1.0)
    return result


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("rule", [RuleName.REJECTION, RuleName.BLOCK, RuleName.MATCH])
def test_constrained_output_is_the_masked_target(rule: RuleName, build: Build) -> None:
    found: Counter[str] = Counter()
    for probability, text in every_way(lambda chance: said(build, RULES[rule].verify, chance)):  # type: ignore[arg-type]
        found[text] += probability  # type: ignore[assignment]
    wanted = {text: p for text, p in expected().items() if p}
    assert found.keys() == wanted.keys()
    assert len(wanted) > 2
    for text, p in wanted.items():
        assert math.isclose(found[text], p, abs_tol=1e-12)


def test_the_test_above_can_fail() -> None:
    """Drawing from the free target and keeping what is allowed, as others do, is another distribution."""
    found: Counter[str] = Counter()

    def filtered_first(row: np.ndarray, history: np.ndarray) -> Distribution:
        free, mask = sampler(PARAMS)(row, history), rule.allowed(history)
        kept = mask[free.tokens]
        if not kept.any():
            return constrained(sampler(PARAMS), rule)(row, history)
        return Distribution(free.tokens[kept], free.probs[kept] / free.probs[kept].sum())

    rule = constraint()
    for probability, text in every_way(
        lambda chance: said(BUILDS["nothing"], RULES["match"].verify, chance, filtered_first)
    ):  # type: ignore[arg-type]
        found[text] += probability  # type: ignore[assignment]
    assert max(abs(found[text] - p) for text, p in expected().items()) > 0.01


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_coupled_output_depends_on_the_seed_alone(build: Build) -> None:
    verify = RULES[RuleName.COUPLED].verify
    texts = [said(build, verify, Randomness(seed)) for seed in range(60)]
    assert texts == [said(BUILDS["nothing"], verify, Randomness(seed)) for seed in range(60)]
    assert set(texts) <= set(LANGUAGE)
    assert len(set(texts)) > 2


def test_what_is_forced_is_accepted_whole_with_its_end() -> None:
    words = Words("name")
    rule = Grammar(gbnf_grammar('root ::= "name: " [0-9] " years"', "it"), words).constraint(1)
    events = list(
        generate(
            FakeEngine(words.size, seed=1),
            FixedLength([Forced(rule)], 9, FakeClock(), plain_every=10**9),
            [5],
            constrained(sampler(SamplingParams()), rule),
            RULES[RuleName.BLOCK].verify,
            max_tokens=30,
            is_end=lambda token: token in words.ends(),
            randomness=Randomness(1),
            clock=FakeClock(),
        )
    )
    rounds = [event for event in events if isinstance(event, Round)]
    text = words.text([token for round_ in rounds for token in round_.tokens.tolist()])
    assert re.fullmatch("name: [0-9] years", text)
    assert [round_.num_rejected for round_ in rounds] == [0] * len(rounds)
    assert len(rounds) <= 3
    assert {evidence.source for round_ in rounds for evidence in round_.draft.evidence} == {GRAMMAR}


def test_copied_values_and_fixed_parts_make_one_draft() -> None:
    words = Words()
    prompt = words.tokenize("x=Ada Lovelace; y=36;", add_special=False, parse_special=False)
    rule = Grammar(gbnf_grammar('root ::= "(x=" [A-Za-z ]+ "; y=" [0-9]+ ")"', "it"), words).constraint(len(prompt))
    drafter = Constrained(Lookup(), rule)
    context = np.append(prompt, words.tokenize("(x=", add_special=False, parse_special=False)).astype(np.int32)
    proposals = list(drafter.propose(context))
    assert words.text([proposal.token for proposal in proposals]).startswith("Ada Lovelace; y=36")
    assert {proposal.evidence.source for proposal in proposals} == {"lookup", GRAMMAR}


def test_a_drafter_is_cut_before_what_is_not_allowed() -> None:
    drafter = Constrained(ScriptedDrafter(lambda context, n: [A, B, B]), constraint())
    assert [proposal.token for proposal in drafter.propose(as_tokens(PROMPT))] == [A, B]


def test_a_bias_that_rules_out_all_that_is_allowed_is_told() -> None:
    params = SamplingParams(logit_bias={A: -math.inf, B: -math.inf, C: -math.inf})
    rule = constraint()
    row = np.array([-np.inf, -np.inf, -np.inf, 1.0], np.float32)
    with pytest.raises(EngineError, match="rules out"):
        constrained(sampler(params), rule)(row, as_tokens(PROMPT))
