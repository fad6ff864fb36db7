import numpy as np

from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from tests.fakes import FakeClock, FakeEngine, ScriptedDrafter, draft_of, oracle, round_of

CONTEXT = as_tokens([1, 2, 3])
ROUND = round_of([1], draft_of([]))


def test_a_fixed_length_with_plain_steps_between() -> None:
    controller = FixedLength([oracle(FakeEngine())], 4, FakeClock(), plain_every=8)
    lengths = []
    for _ in range(20):
        lengths.append(len(controller.draft(CONTEXT, 10)))
        controller.observe(CONTEXT, ROUND, np.zeros((1, 50), np.float32))
    assert [i for i, n in enumerate(lengths) if n == 0] == [1, 5, 9, 17]
    assert set(lengths) == {0, 4}


def test_the_limit_cuts_it() -> None:
    drafter = oracle(FakeEngine())
    assert len(FixedLength([drafter], 4, FakeClock()).draft(CONTEXT, 2)) == 2
    assert drafter.num_proposed == 2


def test_the_first_drafter_with_something_to_say_is_taken() -> None:
    silent, loud = ScriptedDrafter(lambda _, n: [], name="silent"), ScriptedDrafter(lambda _, n: [7] * n, name="loud")
    draft = FixedLength([silent, loud], 3, FakeClock()).draft(CONTEXT, 10)
    assert [evidence.source for evidence in draft.evidence] == ["loud"] * 3


def test_drafting_time_is_counted_by_drafter() -> None:
    clock = FakeClock()
    drafter = ScriptedDrafter(lambda _, n: [7] * n, clock=clock, seconds=0.5)
    assert FixedLength([drafter], 3, clock).draft(CONTEXT, 10).seconds == {"scripted": 1.5}
