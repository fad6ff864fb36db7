from itertools import islice

import numpy as np
import pytest

from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, greedy, sampler
from specd.decoding.verify import RULES, RuleName, draw_independently
from specd.drafting.model import DraftModel
from specd.errors import EngineError, Interrupted
from tests.fakes import FakeClock, FakeEngine, plain_greedy

CONTEXT = [3, 1, 4, 1, 5]


def drafter(engine: FakeEngine, num_shared: int = 50) -> DraftModel:
    return DraftModel(
        engine, greedy, draw_independently, num_shared=num_shared, randomness=Randomness(0), clock=FakeClock()
    )


def propose(model: DraftModel, context: list[int], n: int) -> list[int]:
    return [proposal.token for proposal in islice(model.propose(as_tokens(context)), n)]


def test_it_proposes_its_own_greedy_continuation() -> None:
    engine = FakeEngine()
    assert propose(drafter(engine), CONTEXT, 4) == plain_greedy(engine, CONTEXT, 4)


def test_one_decode_per_token_and_only_what_is_new() -> None:
    engine = FakeEngine()
    model = drafter(engine)
    model.prepare(as_tokens(CONTEXT))
    proposed = propose(model, CONTEXT, 3)
    assert engine.decodes == [4, 1, 1, 1]
    engine.decodes.clear()
    propose(model, CONTEXT + proposed + [7], 3)  # all accepted: the last drafted one and the next are new
    assert engine.decodes == [2, 1, 1]
    engine.decodes.clear()
    propose(model, CONTEXT + proposed[:1] + [8], 2)  # a correction after one accepted token
    assert engine.decodes == [1, 1]


def test_after_idle_rounds_it_catches_up_in_one_batch_and_says_what_that_cost() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock=clock, seconds_per_batch=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5))
    model = DraftModel(engine, greedy, draw_independently, num_shared=50, randomness=Randomness(0), clock=clock)
    model.prepare(as_tokens(CONTEXT))
    propose(model, CONTEXT, 2)
    assert model.backlog(as_tokens([*CONTEXT, 9])) == 1
    assert model.counters == {"num_decodes": 2, "num_catch_up_decodes": 0, "catch_up_seconds": 0.0}
    engine.decodes.clear()
    longer = [*CONTEXT, 9, 9, 9, 9, 9]
    assert model.backlog(as_tokens(longer)) == 5
    propose(model, longer, 3)
    assert engine.decodes == [5, 1, 1]
    assert model.counters == {"num_decodes": 5, "num_catch_up_decodes": 1, "catch_up_seconds": 1.25}


def test_a_token_that_is_not_asked_for_is_not_decoded() -> None:
    engine = FakeEngine()
    proposals = drafter(engine).propose(as_tokens(CONTEXT))
    assert engine.decodes == []
    next(proposals)
    assert len(engine.decodes) == 1


def test_confidence_is_that_of_the_most_likely_token_whatever_is_drawn() -> None:
    engine = FakeEngine()
    own = sampler(SamplingParams(temperature=5.0, top_k=0, top_p=1, min_p=0))
    for seed in range(5):
        model = DraftModel(
            engine, own, draw_independently, num_shared=50, randomness=Randomness(seed), clock=FakeClock()
        )
        row = engine.row_after(CONTEXT).astype(np.float64)
        confidence = next(model.propose(as_tokens(CONTEXT))).evidence.confidence
        assert confidence == pytest.approx(np.exp(row.max()) / np.exp(row).sum(), rel=1e-5)


def test_the_cache_equals_the_committed_prefix_after_every_round() -> None:
    """User case 4: nothing is trimmed too far, whatever was accepted."""
    engine = FakeEngine()
    model = drafter(engine)
    context = list(CONTEXT)
    for num_accepted in (0, 1, 2, 3, 3, 0, 2, 1):
        proposed = propose(model, context, 3)
        assert engine.held == context + proposed[:-1]
        context += [*proposed[:num_accepted], 9]
    assert propose(model, context, 3) == plain_greedy(engine, context, 3)


@pytest.mark.parametrize("room", range(4))
def test_it_yields_at_the_end_of_its_own_context(room: int) -> None:
    """User case 27: the target goes on."""
    engine = FakeEngine(n_ctx=len(CONTEXT) + room)
    model = drafter(engine)
    assert propose(model, CONTEXT, 6) == plain_greedy(engine, CONTEXT, room + 1)
    longer = CONTEXT + [2] * (room + 1)
    assert propose(model, longer, 6) == []
    assert "context of" in model.notices["draft"]
    assert propose(model, CONTEXT, 1) != []  # a shorter context brings it back


def test_ids_outside_the_shared_ones_are_never_proposed_nor_read() -> None:
    """User case 20: padding rows."""
    engine = FakeEngine(n_vocab=64, seed=2)
    model = drafter(engine, num_shared=40)
    context = list(CONTEXT)
    for _ in range(50):
        proposed = propose(model, context, 1)
        assert max(proposed) < 40
        context += proposed
    assert any(int(np.argmax(engine.row_after(context[:i]))) >= 40 for i in range(len(CONTEXT), len(context)))
    assert propose(model, [*context, 41], 3) == []
    assert "token 41" in model.notices["draft"]


def test_a_model_that_breaks_retires_with_the_reason() -> None:
    engine = FakeEngine(fails_at={2: EngineError("out of memory")})
    model = drafter(engine)
    assert propose(model, CONTEXT, 6) == plain_greedy(engine, CONTEXT, 2)  # what it had is not lost
    assert "out of memory" in model.notices["draft"]
    assert propose(model, CONTEXT, 6) == []


def test_an_interrupt_is_not_a_failure() -> None:
    model = drafter(FakeEngine(fails_at={0: Interrupted("stopped")}))
    with pytest.raises(Interrupted):
        propose(model, CONTEXT, 3)
    assert model.notices == {}
    assert propose(model, CONTEXT, 3) != []


@pytest.mark.parametrize("name", RuleName)
def test_the_reported_distribution_is_the_one_sampled_from(name: RuleName) -> None:
    """At the draft's own temperature, not the raw one of its logits."""
    engine = FakeEngine()
    own = sampler(SamplingParams(temperature=0.5, top_k=5))
    model = DraftModel(engine, own, RULES[name].draw, num_shared=50, randomness=Randomness(1), clock=FakeClock())
    context = list(CONTEXT)
    for proposal in islice(model.propose(as_tokens(CONTEXT)), 4):
        token, q = proposal.token, proposal.probs
        expected = own(engine.row_after(context), as_tokens(context))
        if name is RuleName.MATCH:
            expected = Distribution.one_hot(expected.most_likely())
        assert q.tokens.tolist() == expected.tokens.tolist()
        assert q.probs == pytest.approx(expected.probs)
        assert q.prob(token) > 0
        context.append(token)


def test_drafts_for_coupling_are_drawn_with_the_noise_of_their_place() -> None:
    engine, noise = FakeEngine(), Randomness(4)
    own = sampler(SamplingParams(temperature=2.0, top_k=0, top_p=1, min_p=0))
    model = DraftModel(
        engine, own, RULES[RuleName.COUPLED].draw, num_shared=50, randomness=Randomness(4), clock=FakeClock()
    )
    context = list(CONTEXT)
    for token in propose(model, CONTEXT, 6):
        assert token == noise.coupled(own(engine.row_after(context), as_tokens(context)), len(context))
        context.append(token)
