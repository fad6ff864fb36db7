"""The models of `specd generate`, and the answers that they give."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self

from specd.bench.calibration import Calibration
from specd.chat.templates import Message
from specd.cli.building import LoadedDraft, Plan, build_drafters, context_size, give_context, load_draft, load_target
from specd.cli.controlling import build_control
from specd.cli.form import Form
from specd.cli.prompt import prompt_tokens
from specd.cli.signals import stopping
from specd.decoding.constraint import constrained
from specd.decoding.loop import generate
from specd.decoding.protocol import Event
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import sampler
from specd.decoding.statistics import Statistics
from specd.decoding.verify import RULES
from specd.models.folders import state_folder
from specd.models.progress import Progress
from specd.models.store import Store
from specd.terminal.answer import stream_answer

if TYPE_CHECKING:
    from specd.grammars.constraint import Grammar
    from specd.llama.engine import Engine
    from specd.llama.library import Interrupt

Show = Callable[[str, Event, Statistics], None]
"""(text, event, statistics so far): the text that is certain with this event, often none."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and what it asks for."""

    messages: Sequence[Message]
    max_tokens: int
    seed: int


def messages_of(prompt: str, system: str | None) -> list[Message]:
    """A conversation of one message, with a system message where there is one."""
    return [*([Message("system", system)] if system else []), Message("user", prompt)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, and how."""

    text: str
    statistics: Statistics
    notices: Mapping[str, str]
    counters: Mapping[str, Mapping[str, float]]
    report: Mapping[str, Any]
    model: str
    draft: str | None
    verify: str
    seed: int

    def as_json(self) -> dict[str, Any]:
        """The JSON object of the contract."""
        return {
            "text": self.text,
            "finish_reason": self.statistics.finish_reason,
            "model": self.model,
            "draft": self.draft,
            "prompt_tokens": self.statistics.num_prompt_tokens,
            "completion_tokens": self.statistics.num_completion_tokens,
            "stats": self.statistics.as_dict(self.notices, self.counters)
            | {"verify": self.verify, "seed": self.seed, "control": self.report},
        }

    @property
    def off_reason(self) -> str | None:
        """Why nothing was drafted; None when something was."""
        return self.statistics.off_reason(self.notices)


class Generator:
    """A target, and a draft where one is used, loaded once for any number of prompts.

    warn:  is told what is not as asked
    """

    def __init__(
        self, plan: Plan, form: Form, progress: Progress, interrupt: Interrupt, warn: Callable[[str], None]
    ) -> None:
        from specd.llama.devices import has_gpu

        self._form, self._progress, self._interrupt = form, progress, interrupt
        self._warn = lru_cache(maxsize=None)(warn)  # the same is said once, not for each prompt
        self._complained = False
        self._store = Store()
        self._started = time.perf_counter()
        self._target = load_target(plan, self._store, progress, interrupt)
        self._draft: LoadedDraft | None = None
        self._grammar: Grammar | None = None
        try:
            if plan.exact and has_gpu():
                warn("--exact is proven for CPUs only; with this machine's GPU, outputs may still part at near-ties.")
            self._plan = _without_ends(plan, self._target) if form.ignores_ends else plan
            if form.grammar is not None:
                from specd.grammars.constraint import Grammar

                self._grammar = Grammar(form.grammar, self._target.vocabulary)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the models."""
        if self._draft is not None and self._draft.engine is not None:
            self._draft.engine.close()
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, request: Request, show: Show) -> Answer:
        """Answer one prompt. Raises PromptTooLong, TemplateError or EngineError."""
        settings = replace(self._plan.settings, max_tokens=request.max_tokens)
        plan = replace(self._plan, settings=settings, seed=request.seed)
        form, target = self._form, self._target
        prompt = prompt_tokens(
            target, request.messages, plan.target.name, self._warn, raw=form.raw, template=form.template
        )
        draft = self._make_room(plan, len(prompt))
        constraint = self._grammar.constraint(len(prompt)) if self._grammar is not None else None
        randomness = Randomness(request.seed)
        drafters, missing = build_drafters(target, plan, draft, form.predicted, randomness, constraint)
        control = build_control(
            Calibration(state_folder()),
            plan,
            target,
            draft,
            drafters,
            context_length=len(prompt),
            load_seconds=time.perf_counter() - self._started,
        )
        controller = control.controller
        statistics = Statistics(time.perf_counter, lambda: controller.plain_seconds)
        to_distribution = sampler(settings.sampling)
        events = generate(
            target,
            controller,
            prompt,
            to_distribution if constraint is None else constrained(to_distribution, constraint),
            RULES[settings.verify].verify,
            max_tokens=request.max_tokens,
            is_end=target.vocabulary.is_end,
            randomness=randomness,
            clock=time.perf_counter,
        )
        text = self._streamed(events, statistics, show)
        control.keep()
        if not self._complained and (complaint := control.complaint(statistics)) is not None:
            self._complained = True
            self._warn(complaint)
        if constraint is not None and statistics.finish_reason == "length":
            self._warn(
                f"The answer was cut at {statistics.num_completion_tokens} tokens, before its form was complete."
            )
        return Answer(
            text,
            statistics,
            notices={**missing, **controller.notices},
            counters={drafter.name: drafter.counters for drafter in drafters},
            report=controller.report(),
            model=plan.target.name,
            draft=plan.draft.name if plan.draft is not None and draft.engine is not None else None,
            verify=settings.verify,
            seed=request.seed,
        )

    def _make_room(self, plan: Plan, num_prompt: int) -> LoadedDraft:
        """A context that is large enough for this prompt, for both models; loads the draft the first time."""
        target, wanted = self._target, context_size(self._target, plan, num_prompt)
        if not target.has_context or wanted > target.n_ctx:
            give_context(target, wanted)
            if self._draft is not None and self._draft.engine is not None:
                give_context(self._draft.engine, min(target.n_ctx, self._draft.engine.trained_context))
        if self._draft is None:
            self._draft = load_draft(target, plan, self._store, self._progress, self._interrupt, self._warn)
        return self._draft

    def _streamed(self, events: Iterator[Event], statistics: Statistics, show: Show) -> str:
        from specd.llama.library import compute
        from specd.llama.vocab import TextDecoder

        gc.freeze()  # what is there now stays: looking through it again and again costs more than a round's work
        decoder = TextDecoder(self._target.vocabulary)
        stream = partial(
            stream_answer,
            events,
            statistics,
            decoder,
            lambda text, event: show(text, event, statistics),
            stops=self._form.stops,
        )
        with stopping(self._interrupt):
            return compute(self._interrupt, stream)


def _without_ends(plan: Plan, target: Engine) -> Plan:
    """The plan, with tokens that end an answer ruled out."""
    bias = dict.fromkeys(target.vocabulary.ends(), -math.inf)
    sampling, draft = plan.settings.sampling, plan.settings.draft_sampling
    return replace(
        plan,
        settings=replace(
            plan.settings,
            sampling=replace(sampling, logit_bias={**sampling.logit_bias, **bias}),
            draft_sampling=replace(draft, logit_bias={**draft.logit_bias, **bias}),
        ),
    )
