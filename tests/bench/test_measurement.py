import pytest

from specd.bench.measurement import MIN_REPEATS, PLAIN, Question, Trial
from specd.errors import Interrupted
from tests.bench.conftest import NUM_TOKENS, FakeBench
from tests.fakes import FakeEngine, plain_greedy


def test_plain_answers_come_first_and_later_turns_go_on_from_them() -> None:
    bench = FakeBench()
    events = bench.run()
    questions = [event for event in events if isinstance(event, Question)]
    assert events[: len(questions)] == questions
    assert [question.name for question in questions] == ["copy", "talk, turn 1", "talk, turn 2"]
    for question in questions:
        assert question.answer.tolist() == plain_greedy(bench.target, question.prompt.tolist(), NUM_TOKENS)
        assert len(question.certainties) == NUM_TOKENS
        assert question.prefill_seconds > 0
    assert bench.prompts[-1] == (["two", "three"], [questions[1].answer.tolist()])


def test_methods_take_turns_in_changing_order_and_begin_anew() -> None:
    bench = FakeBench(repeats=3)
    trials = [event for event in bench.run() if isinstance(event, Trial)]
    orders = [[trial.method for trial in trials[i : i + 3]] for i in range(0, len(trials), 3)]
    assert all(sorted(order) == sorted([PLAIN, "right", "wrong"]) for order in orders)
    assert {order[0] for order in orders} == {PLAIN, "right", "wrong"}
    assert bench.num_forgotten == len(trials) == 3 * 3 * 3


def test_answers_are_compared_with_plain_decoding() -> None:
    bench = FakeBench()
    trials = [event for event in bench.run() if isinstance(event, Trial)]
    assert not any(trial.has_parted for trial in trials)
    real = bench.target.row_after
    bench.target.row_after = lambda tokens: -real(tokens) if len(tokens) > 14 else real(tokens)  # type: ignore[method-assign]
    parted = bench.measurement._trial(bench.measurement.questions[1], "right", 9)
    assert parted.has_parted
    assert parted.num_same == 15 - len(parted.question.prompt)


def test_the_gap_of_two_tokens() -> None:
    bench = FakeBench()
    bench.run()
    question = bench.measurement.questions[0]
    row = sorted(bench.target.row_after([*question.prompt.tolist(), *question.answer[:5].tolist()]))
    assert bench.measurement.gap(question, 5) == pytest.approx(float(row[-1] - row[-2]))


def test_it_repeats_for_as_long_as_it_may() -> None:
    one_repeat = 3 * 3 * NUM_TOKENS  # seconds, about
    short, long = FakeBench(repeats=None, budget=1.0), FakeBench(repeats=None, budget=10.0 * one_repeat)
    short.run()
    long.run()
    assert {trial.repeat for trial in short.measurement.trials} == set(range(MIN_REPEATS))
    assert max(trial.repeat for trial in long.measurement.trials) + 1 > 5
    assert long.clock.now <= 10 * one_repeat


def test_what_is_left_is_told() -> None:
    bench = FakeBench(repeats=4)
    left = []
    for _ in bench.measurement.run():
        left.append(bench.measurement.seconds_left)
        total = bench.clock.now
    assert left[-1] == 0.0
    assert left[len(left) // 2] == pytest.approx(total / 2, rel=0.2)


def test_an_interrupt_leaves_what_was_done() -> None:
    bench = FakeBench()
    engine: FakeEngine = bench.target
    events = bench.measurement.run()
    for _ in range(8):
        next(events)
    engine._fails_at = {len(engine.decodes) + 5: Interrupted("stopped")}
    with pytest.raises(Interrupted):
        list(events)
    assert len(bench.measurement.questions) == 3
    assert len(bench.measurement.trials) == 5
    assert bench.report().cells
