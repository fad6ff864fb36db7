"""The controller on simulated time: costs decide, whatever the drafters claim."""

from collections.abc import Sequence

import pytest

from specd.decoding.acceptance import Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.costs import PassCosts
from specd.decoding.loop import generate
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Drafter, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import greedy
from specd.decoding.verify import RULES, RuleName, draw_independently
from specd.drafting.model import DraftModel
from tests.fakes import FakeClock, FakeEngine, ScriptedDrafter, plain_greedy

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FLAT = [1 + 0.01 * n for n in range(33)]
STEEP = [1.0 * n for n in range(1, 34)]  # ik_llama.cpp 1630 and LC 4624: every row costs as much as a pass
STAIRCASE = [1.0 if n == 1 else 2.0 + 2.0 * ((n - 1) // 4) for n in range(1, 34)]  # steps of four rows
PAID = 0.02  # seconds of a drafted token


class World:
    """A target with a price for every width, and drafters that are right as often as said."""

    def __init__(
        self,
        seconds: Sequence[float],
        *,
        believed: Sequence[float] | None = None,
        max_draft: int = 16,
        sharpness: float = 1.0,
    ) -> None:
        self.clock = FakeClock()
        self.target = FakeEngine(
            n_ctx=2048, max_rows=33, sharpness=sharpness, clock=self.clock, seconds_per_batch=seconds
        )
        self.seconds, self.believed, self.max_draft = seconds, believed or seconds, max_draft

    def drafter(self, right: Sequence[bool], *, name: str = "scripted", is_free: bool = True) -> ScriptedDrafter:
        """Right where `right` says so, by the length of the context."""

        def script(context: list[int], n: int) -> list[int]:
            tokens = plain_greedy(self.target, context, n)
            places = [right[(len(context) + i) % len(right)] for i in range(n)]
            return [t if ok else (t + 1) % self.target.n_vocab for t, ok in zip(tokens, places, strict=True)]

        seconds = 0.0 if is_free else PAID
        return ScriptedDrafter(script, name=name, is_free=is_free, clock=self.clock, seconds=seconds)

    def controller(self, drafters: Sequence[Drafter], priors: dict[tuple[str, ...], float]) -> Adaptive:
        paid = {drafter.name: PassCosts({1: PAID}) for drafter in drafters if not drafter.is_free}
        prices = Prices(PassCosts(dict(enumerate(self.believed, start=1))), paid, self.max_draft)
        return Adaptive(drafters, prices, Acceptance(priors), self.clock, max_draft=self.max_draft)

    def run(self, controller: Adaptive, num_tokens: int = 200) -> list[Round]:
        events = generate(
            self.target,
            controller,
            PROMPT,
            greedy,
            RULES[RuleName.BLOCK].verify,
            max_tokens=num_tokens,
            is_end=lambda _: False,
            randomness=Randomness(0),
            clock=self.clock,
        )
        return [event for event in events if isinstance(event, Round)]


def speedup(rounds: Sequence[Round], plain: float) -> float:
    return plain * sum(len(r.tokens) for r in rounds) / sum(r.seconds for r in rounds)


OFTEN = [True] * 9 + [False]
SELDOM = [False] * 7 + [True]
TRUSTED = {("scripted",): 0.9}


def test_flat_costs_give_long_drafts() -> None:
    """User case 11."""
    world = World(FLAT)
    rounds = world.run(world.controller([world.drafter([True])], TRUSTED))
    assert max(len(r.draft) for r in rounds) == 9  # all that it had to say
    assert speedup(rounds, FLAT[0]) > 5


def test_steep_costs_end_drafting_within_eight_rounds() -> None:
    """User case 11: even a drafter that is always right cannot pay, and no round is lost on it."""
    world = World(STEEP)
    assert all(len(r.draft) == 0 for r in world.run(world.controller([world.drafter([True])], TRUSTED)))


def test_steep_costs_that_were_believed_flat_are_found_within_eight_rounds() -> None:
    world = World(STEEP, believed=FLAT)
    rounds = world.run(world.controller([world.drafter(OFTEN)], TRUSTED))
    assert any(len(r.draft) for r in rounds[:4])
    assert all(len(r.draft) == 0 for r in rounds[8:60])


def test_lengths_land_on_the_steps() -> None:
    """Widths of 4, 8, 12 and 16 rows cost as little per row as any."""
    world = World(STAIRCASE)
    rounds = world.run(world.controller([world.drafter([True])], TRUSTED))
    widths = [len(r.draft) + 1 for r in rounds[:-1]]  # the last one ends with the budget
    assert {width % 4 for width in widths if width > 1} == {0}


def test_three_rows_that_cost_more_than_four_are_never_chosen() -> None:
    bumpy = [1.0, 1.6, 2.6, 2.2, 3.4, 3.6, 3.9, 3.5]
    world = World(bumpy, max_draft=7)
    rounds = world.run(world.controller([world.drafter(OFTEN)], TRUSTED))
    assert {len(r.draft) for r in rounds[:-3]} <= {0, 1, 3, 7}


@pytest.mark.parametrize("seconds", [FLAT, STEEP, STAIRCASE, [1.0, 1.9, 2.7, 3.4, 4.0, 4.5, 4.9, 5.2]])
@pytest.mark.parametrize("right", [[False], SELDOM, [True, False], OFTEN, [True]])
@pytest.mark.parametrize("is_free", [True, False])
def test_never_slower_than_plain_decoding(seconds: Sequence[float], right: list[bool], is_free: bool) -> None:
    world = World(seconds, max_draft=7)
    drafter = world.drafter(right, is_free=is_free)
    rounds = world.run(world.controller([drafter], {("scripted",): 0.75}))
    assert speedup(rounds, seconds[0]) >= 0.97


@pytest.mark.parametrize("seconds", [FLAT, STEEP, STAIRCASE])
def test_a_stranger_that_boasts_and_is_wrong_costs_nothing(seconds: Sequence[float]) -> None:
    """A random drafter: it is scored without being used, and never used."""
    world = World(seconds)
    rounds = world.run(world.controller([world.drafter([False], name="stranger")], {}))
    assert speedup(rounds, seconds[0]) > 0.999


def test_a_stranger_that_is_right_comes_into_use() -> None:
    """All that costs nothing is scored on every token, used or not."""
    world = World(STAIRCASE)
    rounds = world.run(world.controller([world.drafter([True], name="stranger")], {}))
    assert len(rounds[0].draft) == 0
    assert len(rounds[40].draft) >= 3


def test_of_two_drafters_the_better_one_is_used_whichever_comes_first() -> None:
    world = World(FLAT)
    good, bad = world.drafter(OFTEN, name="good"), world.drafter(SELDOM, name="bad")
    for drafters in ([good, bad], [bad, good]):
        rounds = world.run(world.controller(drafters, {("good",): 0.5, ("bad",): 0.5}))
        used = [evidence.source for r in rounds[10:] for evidence in r.draft.evidence]
        assert used.count("good") > 20 * used.count("bad")


def test_a_drafter_that_turns_bad_is_dropped_and_comes_back() -> None:
    world = World(STAIRCASE)
    right = [True] * 150 + [False] * 150
    rounds = world.run(world.controller([world.drafter(right)], TRUSTED), 450)
    position, by_place = len(PROMPT), {}
    for r in rounds:
        by_place[position] = len(r.draft)
        position += len(r.tokens)
    assert sum(n for place, n in by_place.items() if 190 < place < 300) == 0
    assert sum(n for place, n in by_place.items() if 330 < place < 440) > 50


def test_a_paid_drafter_is_tried_again_for_a_bounded_share_of_time() -> None:
    """What is not expected to pay is not asked, but for a try now and then: no more than 1 % of the time."""
    world = World(STAIRCASE)
    drafter = world.drafter([False], is_free=False)
    controller = world.controller([drafter], {("scripted",): 0.3})
    rounds = world.run(controller, 1000)
    tried = [r for r in rounds if r.num_draft_tokens]
    assert 2 <= len(tried) <= 20
    assert speedup(rounds, 1.0) > 0.985


@pytest.mark.parametrize(("sharpness", "drafts"), [(200.0, True), (1.0, False)])
def test_a_model_is_asked_where_the_target_is_sure(sharpness: float, drafts: bool) -> None:
    """What the target says about itself is enough to begin: nothing is spent on finding out."""
    world = World(STAIRCASE, sharpness=sharpness)
    drafter = world.drafter([True], name="draft", is_free=False)
    controller = world.controller([drafter], {("draft", "any"): 0.3, ("draft", "t0"): 0.3, ("draft",): 0.95})
    rounds = world.run(controller, 60)
    drafted = [i for i, r in enumerate(rounds) if r.num_draft_tokens]
    assert (min(drafted, default=99) <= 14) == drafts
    assert controller.report()["explored_seconds"] == 0


def test_a_model_that_cannot_pay_is_not_even_prepared() -> None:
    """Never-slower rule 4: its cache is left alone, and one line says why."""
    world = World(STEEP)
    engine = FakeEngine(clock=world.clock)
    model = DraftModel(engine, greedy, draw_independently, num_shared=50, randomness=Randomness(0), clock=world.clock)
    prices = Prices(PassCosts(dict(enumerate(STEEP, start=1))), {"draft": PassCosts({1: 0.5})}, 8)
    controller = Adaptive([model], prices, Acceptance({("draft",): 0.9}), world.clock, max_draft=8)
    world.run(controller, 60)
    assert engine.decodes == []
    assert "0.50 of a plain step" in controller.notices["draft"]
    assert (
        "right 97% of the time would give 0.79× plain decoding, and perfect ones 0.80×" in controller.notices["draft"]
    )


def test_drafting_stops_on_low_confidence() -> None:
    """User case 12: a window of 64 tokens is not filled because it is there."""
    world = World(FLAT, max_draft=32)
    engine = FakeEngine(n_ctx=2048, seed=9, clock=world.clock, seconds_per_batch=[0.2])  # knows nothing of the target
    model = DraftModel(engine, greedy, draw_independently, num_shared=50, randomness=Randomness(0), clock=world.clock)
    prices = Prices(PassCosts(dict(enumerate(FLAT, start=1))), {"draft": PassCosts({1: 0.2})}, 32)
    controller = Adaptive([model], prices, Acceptance({("draft",): 0.8}), world.clock, max_draft=32)
    rounds = world.run(controller, 300)
    assert max(len(r.draft) for r in rounds[5:]) <= 4
    assert speedup(rounds, FLAT[0]) > 0.97


def test_decodes_of_the_draft_are_its_tokens() -> None:
    """One decode per drafted token, however the rounds end; only what is drafted costs."""
    world = World(FLAT)
    engine = FakeEngine(n_ctx=2048, clock=world.clock, seconds_per_batch=[0.05])
    model = DraftModel(engine, greedy, draw_independently, num_shared=50, randomness=Randomness(0), clock=world.clock)
    flaky = world.drafter([True] * 25 + [False] * 25, name="flaky")
    prices = Prices(PassCosts(dict(enumerate(FLAT, start=1))), {"draft": PassCosts({1: 0.05})}, 16)
    priors = {("draft",): 0.8, ("flaky",): 0.8}
    controller = Adaptive([flaky, model], prices, Acceptance(priors), world.clock, max_draft=16)
    rounds = world.run(controller, 300)
    drafted = sum(evidence.source == "draft" for r in rounds for evidence in (*r.draft.evidence, *r.draft.unscored))
    assert len(engine.decodes) == model.counters["num_decodes"] + 1  # and the prompt
    assert model.counters["num_decodes"] == drafted
    assert {"draft", "flaky"} <= {evidence.source for r in rounds for evidence in r.draft.evidence}


def test_heads_and_tails_are_joined() -> None:
    """A free continuation behind a model's head, and a model's behind a short free one."""
    world = World(FLAT)
    model = world.drafter([True], name="draft", is_free=False)
    model._script = lambda context, n, full=model._script: full(context, n)[:2]
    tail = world.drafter([True] * 30 + [False], name="tail")
    tail._script = lambda context, n, full=tail._script: full(context, n)[: 0 if len(context) % 5 == 0 else 4]
    controller = world.controller([tail, model], {("draft",): 0.95, ("tail",): 0.95})
    rounds = world.run(controller)
    assert {"tail+draft", "draft+tail"} & set(controller.report()["rounds"])
    assert speedup(rounds, FLAT[0]) > 4


def test_taking_in_a_head_is_not_mistaken_for_the_price_of_a_token() -> None:
    """Behind a free head the model's first token also takes in the head, which costs more here than a token."""
    world = World(FLAT)
    engine = FakeEngine(n_ctx=2048, clock=world.clock, seconds_per_batch=[0.05, 0.05, 0.3])
    model = DraftModel(engine, greedy, draw_independently, num_shared=50, randomness=Randomness(0), clock=world.clock)
    head = world.drafter([True], name="head")
    head._script = lambda context, n, full=head._script: full(context, n)[:4]
    prices = Prices(PassCosts(dict(enumerate(FLAT, start=1))), {"draft": PassCosts({1: 0.05})}, 16)
    controller = Adaptive(
        [head, model], prices, Acceptance({("draft",): 0.95, ("head",): 0.95}), world.clock, max_draft=5
    )
    world.run(controller, 200)
    report = controller.report()
    assert report["rounds"].get("head+draft", 0) > 10, report["rounds"]
    assert report["draft_token_seconds"]["draft"] == pytest.approx(0.05)


def test_it_never_drafts_more_than_it_may() -> None:
    world = World(FLAT, max_draft=3)
    rounds = world.run(world.controller([world.drafter([True])], TRUSTED))
    assert max(len(r.draft) for r in rounds) == 3


def test_a_slow_spell_of_the_machine_changes_no_decision() -> None:
    """Everything takes three times as long for a while: ratios are the same, so drafting goes on."""
    world = World(STAIRCASE)
    controller = world.controller([world.drafter([True])], TRUSTED)
    world.target._seconds = [3 * seconds for seconds in STAIRCASE]
    rounds = world.run(controller, 300)
    assert sum(len(r.draft) < 3 for r in rounds[:-4]) <= 1  # the one plain step that tells


def test_the_report_adds_up() -> None:
    world = World(STAIRCASE)
    controller = world.controller([world.drafter(OFTEN)], TRUSTED)
    rounds = world.run(controller)
    report = controller.report()
    assert sum(report["rounds"].values()) == len(rounds)
    gained = sum(len(r.tokens) * 1.0 - r.seconds for r in rounds if r.num_draft_tokens)
    assert report["gained_seconds"] == pytest.approx(gained)
    assert report["pass_seconds"]["target"][4] == 2.0
    assert report["max_speedup"]["scripted"] == pytest.approx(2.0)
    assert 0.5 < report["break_even_acceptance"]["scripted"] < 0.8
