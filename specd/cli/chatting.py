"""The models of a chat, and the answers that they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specd.bench.calibration import Calibration
from specd.chat.conversation import Conversation
from specd.chat.templates import RAW, chat_tokens
from specd.cli.building import (
    EXACT_DRAFT_MAX,
    LoadedDraft,
    Plan,
    allocate,
    build_drafters,
    choose_draft,
    load_draft,
    load_target,
)
from specd.cli.controlling import Control, build_control
from specd.cli.options import DEFAULT_DRAFT_MAX
from specd.cli.settings import Settings
from specd.decoding.context import Tokens, as_tokens
from specd.decoding.loop import generate
from specd.decoding.protocol import Event, Finished, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import sampler
from specd.decoding.statistics import Statistics
from specd.decoding.verify import RULES
from specd.errors import PromptTooLong, UsageError
from specd.models.fetch import fetch
from specd.models.folders import state_folder
from specd.models.progress import Progress
from specd.models.registry import Model, Registry
from specd.models.store import Store
from specd.terminal.stops import StopStrings

if TYPE_CHECKING:
    from specd.llama.engine import Engine
    from specd.llama.library import Interrupt

_RESERVE = 4  # of the context, one part in so many is kept free for the answer

Show = Callable[[str, str, Statistics], None]
"""(text, who proposed it, statistics so far)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, and how. num_forgotten: turns that had to make room for it."""

    text: str
    tokens: Tokens
    statistics: Statistics
    report: Mapping[str, Any]
    notices: Mapping[str, str]
    num_forgotten: int


class Chat:
    """A target, a draft where one is used, and the settings, all of which may change between answers.

    model, draft:  as they were named
    given:         options by name, over the model's own defaults
    template:      in place of the model's own; None for that
    stops:         texts that end an answer
    """

    def __init__(
        self,
        registry: Registry,
        model: str | None,
        draft: str | None,
        given: Mapping[str, Any],
        *,
        template: str | None,
        stops: Sequence[str],
        exact: bool,
        strict: bool,
        seed: int,
        progress: Progress,
        interrupt: Interrupt,
        warn: Callable[[str], None],
    ) -> None:
        self.given = dict(given)
        self._registry, self._store, self._progress, self._warn = registry, Store(), progress, warn
        self._model, self._draft_name, self._template = model, draft, template
        self._stops = stops
        self._exact, self._strict, self._seed = exact, strict, seed
        self._interrupt = interrupt
        self._complained = False
        self._target: Engine | None = None
        self._draft: LoadedDraft | None = None
        self._control: Control | None = None
        self._missing: Mapping[str, str] = {}
        self.plan = self._plan(model, draft, self.given)

    def close(self) -> None:
        """Free the models; they are loaded again when they are needed."""
        self._control = None
        if self._draft is not None and self._draft.engine is not None:
            self._draft.engine.close()
        self._draft = None
        if self._target is not None:
            self._target.close()
            self._target = None

    def load(self) -> None:
        """Load what is not loaded. Raises what loading raises."""
        if self._target is None:
            roomy = self.plan
            if not self._exact:  # longer drafts may be asked for later
                longest = max(self.plan.max_draft, DEFAULT_DRAFT_MAX)
                roomy = replace(roomy, settings=replace(roomy.settings, draft_max=longest, draft_length=None))
            self._target = load_target(roomy, self._store, self._progress, self._interrupt)
            if self._template is None and self._target.chat_template() is None:
                self._warn(
                    f"{self.plan.target.name} has no chat template: it continues plain text. "
                    "--chat-template gives it one."
                )
            allocate(self._target, self.plan, 0)
        if self._draft is None:
            arguments = (self._store, self._progress, self._interrupt, self._warn)
            self._draft = load_draft(self._target, self.plan, *arguments)

    def use(self, model: str | None, draft: str | None) -> None:
        """Go on with other models; with the ones in use when the new ones cannot be had.

        The files are fetched first. Then the old models make room for the new ones: memory may not do for both.
        """
        plan = self._plan(model, draft, self.given)
        for wanted in (plan.target, plan.draft):
            if wanted is not None:
                fetch(wanted, self._store, self._progress)
        before = (self._model, self._draft_name, self.plan)
        self.close()
        self._model, self._draft_name, self.plan = model, draft, plan
        try:
            self.load()
        except BaseException:
            self.close()
            self._model, self._draft_name, self.plan = before
            self.load()
            raise

    def set(self, name: str, value: Any) -> None:
        """Change an option. Raises UsageError for a value that cannot be."""
        given = {**self.given, name: value}
        plan = self._plan(self._model, self._draft_name, given)
        if self._target is not None and plan.max_draft >= self._target.max_rows:
            raise UsageError(f"{name} is at most {self._target.max_rows - 1} in this chat, not {value}.")
        needs_draft = plan.draft is not None and self._draft is not None and self._draft.engine is None
        self._control = None
        self.given, self.plan = given, plan
        if needs_draft and plan.settings.method.uses_model and self._draft is not None and self._draft.reason is None:
            self._draft = None
            self.load()

    def answer(self, conversation: Conversation, show: Show) -> Answer:
        """Answer the last message. Turns are forgotten, the oldest first, where the context is too small for all.

        Raises PromptTooLong when the last message alone does not fit. Runs on the computing thread.
        """
        self.load()
        target = self._loaded
        max_tokens = self.plan.settings.max_tokens
        prompt, num_forgotten = self._prompt(conversation), 0
        while len(prompt) + min(max_tokens, target.n_ctx // _RESERVE) > target.n_ctx and conversation.drop_oldest():
            prompt, num_forgotten = self._prompt(conversation), num_forgotten + 1
        if len(prompt) >= target.n_ctx:
            raise PromptTooLong(
                f"This message makes a prompt of {len(prompt)} tokens, and the context has {target.n_ctx}. Shorten it, "
                f"or start with a larger --ctx (this model takes up to {target.trained_context})."
            )
        control = self._controlled(len(prompt))
        controller = control.controller
        statistics = Statistics(time.perf_counter, lambda: controller.plain_seconds)
        events = generate(
            target,
            controller,
            prompt,
            sampler(self.plan.settings.sampling),
            RULES[self.plan.settings.verify].verify,
            max_tokens=max_tokens,
            is_end=target.vocabulary.is_end,
            randomness=self._randomness,
            clock=time.perf_counter,
        )
        text, tokens = _stream(events, statistics, target, show, self._stops)
        control.keep()
        if not self._complained and (complaint := control.complaint(statistics)) is not None:
            self._complained = True
            self._warn(complaint)
        notices = {**self._missing, **controller.notices}
        return Answer(text, tokens, statistics, controller.report(), notices, num_forgotten)

    @property
    def num_context(self) -> tuple[int, int]:
        """Tokens in the context, and how many fit."""
        return (len(self._target), self._target.n_ctx) if self._target is not None else (0, 0)

    @property
    def model_name(self) -> str | None:
        """As it was named: a pair, a model or a path."""
        return self._model

    @property
    def draft_in_use(self) -> Model | None:
        """The draft model, where one is loaded."""
        return self.plan.draft if self._draft is not None and self._draft.engine is not None else None

    @property
    def _loaded(self) -> Engine:
        assert self._target is not None
        return self._target

    def _plan(self, model: str | None, draft: str | None, given: Mapping[str, Any]) -> Plan:
        target = self._registry.target(model)
        settings = Settings.of(target, dict(given))
        if self._exact:  # nor may rows depend on what was in the cache before: prompts go in by the same small batches
            settings = replace(settings, batch_size=EXACT_DRAFT_MAX + 1, micro_batch_size=None)
        chosen = choose_draft(self._registry, model, draft, settings.method)
        return Plan(target, chosen, settings, self._exact, self._strict, self._seed)

    def _prompt(self, conversation: Conversation) -> Tokens:
        template = self._template or self._loaded.chat_template() or RAW
        return chat_tokens(conversation.messages(), template, self._loaded.vocabulary, by_parts=True)

    def _controlled(self, context_length: int) -> Control:
        """The controller, which learns over all answers."""
        if self._control is None:
            assert self._draft is not None
            self._randomness = Randomness(self._seed)
            draft = self._draft if self.plan.settings.method.uses_model else LoadedDraft()
            drafters, self._missing = build_drafters(self._loaded, self.plan, draft, [], self._randomness)
            self._control = build_control(
                Calibration(state_folder()),
                self.plan,
                self._loaded,
                draft,
                drafters,
                context_length=context_length,
                load_seconds=0.0,
            )
        return self._control


def _stream(
    events: Iterator[Event], statistics: Statistics, target: Engine, show: Show, stops: Sequence[str]
) -> tuple[str, Tokens]:
    """Show an answer as it comes; its text, and its tokens without the one that ends it or is part of a stop string."""
    from specd.llama.vocab import TextDecoder

    decoder, limit = TextDecoder(target.vocabulary), StopStrings(stops)
    tokens: list[int] = []
    ends: list[int] = []  # of the text, behind each token
    pieces: list[str] = []

    def say(piece: str, source: str) -> None:
        pieces.append(piece)
        show(piece, source, statistics)

    for event in events:
        statistics.add(event)
        if isinstance(event, Round):
            sources = [evidence.source for evidence in event.draft.evidence[: event.num_accepted]]
            for i, token in enumerate(event.tokens.tolist()):
                text = decoder.decode(as_tokens([token]))
                tokens.append(token)
                ends.append((ends[-1] if ends else 0) + len(text))
                say(limit.feed(text), sources[i] if i < len(sources) else "")
        elif isinstance(event, Finished):
            say(limit.feed(decoder.flush()) + limit.flush(), "")
        else:
            say("", "")
        if limit.found:
            statistics.add(Finished("stop"))
            del tokens[sum(end <= limit.length for end in ends) :]
            break
    if tokens and target.vocabulary.is_end(tokens[-1]):
        tokens.pop()
    return "".join(pieces), as_tokens(tokens)
