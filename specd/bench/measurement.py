"""Decoding the same prompts with several methods, interleaved, and comparing each with plain decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from specd.bench.workloads import Workload
from specd.decoding.context import Tokens, as_tokens, common_prefix_length
from specd.decoding.controller import FixedLength
from specd.decoding.loop import generate
from specd.decoding.protocol import Controller, Drafter, Engine, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import Logits, certainty, greedy
from specd.decoding.statistics import Statistics
from specd.decoding.verify import match
from specd.errors import Interrupted

PLAIN = "off"  # the method that the others are compared with
MIN_REPEATS = 1

ToPrompt = Callable[[Sequence[str], Sequence[Tokens]], Tokens]
"""What the model is given: for what the person said so far, and the answers to all but the last of it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A turn of a workload, and what plain decoding answers to it.

    certainties:      how sure it was of each token
    prefill_seconds:  of the target, for all of the prompt
    """

    category: str
    name: str
    prompt: Tokens
    answer: Tokens
    certainties: Sequence[float]
    prefill_seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer.

    num_same:  leading tokens that are those of plain decoding
    """

    question: Question
    method: str
    repeat: int
    statistics: Statistics
    num_same: int

    @property
    def tokens_per_second(self) -> float:
        """Of decoding."""
        return self.statistics.num_completion_tokens / max(self.statistics.decode_seconds, 1e-9)

    @property
    def has_parted(self) -> bool:
        """Whether the answer is another one than that of plain decoding."""
        return self.num_same < max(len(self.question.answer), self.statistics.num_completion_tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    methods:      by name, what makes a new controller for a prompt; without PLAIN, which is always measured
    forget:       empties the caches of all drafters
    to_prompt:    makes the prompt of a turn
    num_repeats:  of each question and method; None for as many as fit into `seconds`, at least MIN_REPEATS
    """

    workloads: Sequence[Workload]
    methods: Mapping[str, Callable[[Tokens], Controller]]
    forget: Callable[[], None]
    to_prompt: ToPrompt
    is_end: Callable[[int], bool]
    num_repeats: int | None
    seconds: float


class Measurement:
    """Runs a plan on a target; what is done so far can be asked for at any time, also after an interrupt."""

    def __init__(self, target: Engine, plan: Plan, clock: Callable[[], float]) -> None:
        self._target, self._plan, self._clock = target, plan, clock
        self._started = clock()
        self._repeat_seconds = 0.0  # of the last repeat that is complete
        self.questions: list[Question] = []
        self.trials: list[Trial] = []

    def run(self) -> Iterator[Question | Trial]:
        """All of it, one answer at a time.

        First every question is answered plainly, which warms up machine and model and gives the answers to compare
        with. Then all methods answer each question, one after the other, in an order that changes every time.
        """
        for workload in self._plan.workloads:
            yield from self._questions(workload)
        methods = [PLAIN, *self._plan.methods]
        repeat = 0
        while self._goes_on(repeat):
            started = self._clock()
            for i, question in enumerate(self.questions):
                self._target.rollback(0)  # the cache of the prompt is made as it was for the plain answer: in one go
                self._target.sync(question.prompt[:-1])
                first = (repeat + i) % len(methods)
                for method in methods[first:] + methods[:first]:
                    yield self._trial(question, method, repeat)
            self._repeat_seconds = self._clock() - started
            repeat += 1

    @property
    def seconds_left(self) -> float:
        """As far as can be told."""
        if self._plan.num_repeats is None:
            return max(0.0, self._plan.seconds - (self._clock() - self._started))
        per_trial = (self._clock() - self._started) / max(1, len(self.questions) + len(self.trials))
        num_questions = sum(len(workload.turns) for workload in self._plan.workloads)
        num_trials = num_questions * (1 + self._plan.num_repeats * (1 + len(self._plan.methods)))
        return max(0.0, per_trial * (num_trials - len(self.questions) - len(self.trials)))

    def gap(self, question: Question, position: int) -> float:
        """How much likelier plain decoding's token was than the second one, as a difference of logits.

        Where an answer parts from plain decoding's with a tiny gap, both tokens were as good.
        """
        row = self._target.sync(np.concatenate([question.prompt, question.answer[:position]]), num_rows=1)[-1]
        second, first = np.partition(row, -2)[-2:]
        return float(first - second)

    def _goes_on(self, repeat: int) -> bool:
        if self._plan.num_repeats is not None:
            return repeat < self._plan.num_repeats
        spent = self._clock() - self._started
        return repeat < MIN_REPEATS or spent + self._repeat_seconds <= self._plan.seconds

    def _questions(self, workload: Workload) -> Iterator[Question]:
        answers: list[Tokens] = []
        for turn in range(len(workload.turns)):
            prompt = self._plan.to_prompt(workload.turns[: turn + 1], answers)
            self._target.rollback(0)
            controller = _Recorder([], 0, self._clock)
            statistics, tokens = self._decode(prompt, workload.bench_tokens, controller)
            name = workload.name if len(workload.turns) == 1 else f"{workload.name}, turn {turn + 1}"
            question = Question(
                workload.category, name, prompt, tokens, controller.certainties, statistics.prefill_seconds
            )
            answers.append(tokens)
            self.questions.append(question)
            yield question

    def _trial(self, question: Question, method: str, repeat: int) -> Trial:
        """The target keeps the prompt, which costs all methods the same; drafters begin with nothing."""
        self._plan.forget()
        self._target.sync(question.prompt[:-1])
        plain = partial(FixedLength, [], 0, self._clock)
        controller = plain() if method == PLAIN else self._plan.methods[method](question.prompt)
        statistics, tokens = self._decode(question.prompt, len(question.answer), controller)
        trial = Trial(question, method, repeat, statistics, common_prefix_length(tokens, question.answer))
        self.trials.append(trial)
        return trial

    def _decode(self, prompt: Tokens, max_tokens: int, controller: Controller) -> tuple[Statistics, Tokens]:
        statistics = Statistics(self._clock, lambda: controller.plain_seconds)
        tokens: list[int] = []
        for event in generate(
            self._target,
            controller,
            prompt,
            greedy,
            match,
            max_tokens=max_tokens,
            is_end=self._plan.is_end,
            randomness=Randomness(0),
            clock=self._clock,
        ):
            statistics.add(event)
            if isinstance(event, Round):
                tokens += event.tokens.tolist()
        if statistics.finish_reason == "interrupted":
            raise Interrupted("The measurement was stopped.")
        return statistics, as_tokens(tokens)


class _Recorder(FixedLength):
    """Plain decoding that notes how sure the target is of every token."""

    def __init__(self, drafters: Sequence[Drafter], num_draft: int, clock: Callable[[], float]) -> None:
        super().__init__(drafters, num_draft, clock)
        self.certainties: list[float] = []

    def observe(self, context: Tokens, round_: Round, logits: Logits) -> None:
        """One token per round."""
        super().observe(context, round_, logits)
        self.certainties.append(certainty(logits[0]))
