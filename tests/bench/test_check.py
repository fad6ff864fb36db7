"""The proof of losslessness, and that it fails where there is something to find."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from specd.bench.check import UNFILTERED, Finding, Guess, Projection, check_greedy, check_sampled
from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.protocol import Draft, Drafter, Verdict
from specd.decoding.randomness import Randomness
from specd.decoding.verify import RULES, Draw, Rule, RuleName, draw_most_likely
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.errors import Interrupted
from tests.fakes import FakeClock, FakeEngine

PROMPT = as_tokens([3, 1, 4, 1, 5])
BLOCK = RULES[RuleName.BLOCK]


def wrong_once(real: Rule) -> Rule:
    """A planted fault: the first drafted token of the text always stands."""

    def verify(draft: Draft, probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
        verdict = real.verify(draft, probs, position, randomness)
        if position == len(PROMPT) and len(draft) and verdict.num_accepted == 0:
            return Verdict(1, verdict.next_token)
        return verdict

    return Rule(verify, real.draw)


def greedily(rule: Rule) -> list[Finding]:
    target = FakeEngine(seed=2)
    chance = Randomness(0)
    drafters: dict[str, Callable[[], Drafter]] = {
        "lookup": Lookup,
        "guess": partial(Guess, target.n_vocab, draw_most_likely, chance),
    }
    clock = FakeClock()
    return list(
        check_greedy(target, drafters, {"one": PROMPT}, max_tokens=24, is_end=lambda _: False, clock=clock, rule=rule)
    )


def test_greedy_text_is_the_same() -> None:
    findings = greedily(BLOCK)
    assert [finding.name for finding in findings] == ["greedy, one, lookup", "greedy, one, guess"]
    assert all(finding.passed for finding in findings)
    assert "all 24 tokens are the same" in findings[1].detail


def test_one_wrong_token_is_found_and_placed() -> None:
    lookup, guess = greedily(wrong_once(BLOCK))
    assert lookup.passed  # it had nothing to propose there
    assert not guess.passed
    assert guess.detail == "with drafts of 1, token 1 of the answer is another one"


def model(projection: Projection, draw: Draw, randomness: Randomness) -> Drafter:
    return DraftModel(projection, UNFILTERED, draw, num_shared=6, randomness=randomness, clock=FakeClock())


def guess(projection: Projection, draw: Draw, randomness: Randomness) -> Drafter:
    return Guess(projection.n_vocab, draw, randomness)


@pytest.mark.parametrize("with_draft", [True, False])
def test_sampled_text_follows_the_target(with_draft: bool) -> None:
    target, draft = FakeEngine(seed=1), FakeEngine(seed=8)
    make = model if with_draft else guess
    findings = list(check_sampled(target, draft if with_draft else None, make, PROMPT, clock=FakeClock()))
    assert [finding.name for finding in findings] == [f"sampled, {name}" for name in RULES]
    assert all(finding.passed for finding in findings), findings
    assert "would have been seen with 95 % certainty" in findings[0].detail
    assert len(target.decodes) < 1000  # passes are made once, not once per text


def test_too_much_acceptance_is_found() -> None:
    """The planted faults: every drafted token stands; or each stands a little too often."""

    def gullible(draft: Draft, probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
        *_, last = probs
        return Verdict(len(draft), randomness.draw(last))

    def hasty(draft: Draft, probs: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
        for i, (token, q, p) in enumerate(zip(draft.tokens.tolist(), draft.probs, probs, strict=False)):
            if not randomness.accept(min(1.0, 1.3 * p.prob(token) / q.prob(token))):
                return Verdict(i, randomness.draw(p.restricted(p.excess(q))))
        return Verdict(len(draft), randomness.draw(next(probs)))

    real = RULES[RuleName.REJECTION]
    for fault in (gullible, hasty):
        (finding,) = check_sampled(
            FakeEngine(seed=1),
            FakeEngine(seed=8),
            model,
            PROMPT,
            clock=FakeClock(),
            rules={RuleName.REJECTION: Rule(fault, real.draw)},
        )
        assert not finding.passed
        assert "do not follow the target's distribution" in finding.detail


def test_a_check_that_is_stopped_finds_nothing() -> None:
    """An interrupt among the sampled texts is none of the model's faults."""
    target = FakeEngine(seed=1)
    findings = check_sampled(target, FakeEngine(seed=8), model, PROMPT, clock=FakeClock())
    target._fails_at = {60: Interrupted("stopped")}
    with pytest.raises(Interrupted):
        list(findings)
