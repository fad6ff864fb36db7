"""What a benchmark runs on: the models, the methods, and the report of what was measured with them."""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from specd import __version__
from specd.bench.calibration import Calibration, measure, padded
from specd.bench.measurement import PLAIN, Measurement, Question
from specd.bench.replay import Replay
from specd.bench.report import Costs, Parting, Report, cells_of, noise_of, prefill_of
from specd.bench.trace import Step, Trace, foretold
from specd.bench.workloads import Workload
from specd.chat.templates import Message
from specd.cli import options
from specd.cli.building import LoadedDraft, Plan, allocate, build_drafters, load_draft, load_target
from specd.cli.controlling import build_control
from specd.cli.prompt import prompt_tokens
from specd.decoding.context import Tokens, as_tokens
from specd.decoding.costs import PassCosts
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller
from specd.decoding.randomness import Randomness
from specd.errors import UsageError
from specd.models.folders import state_folder
from specd.models.store import Store
from specd.terminal.console import silent, warn
from specd.terminal.progress import TransferProgress

if TYPE_CHECKING:
    from specd.llama.engine import Engine

MEASURING_SECONDS = 8.0  # for the cost tables, which the report shows
_DRAFT_SHARE = 0.3  # of it
_SLACK = 64  # tokens of context for chat templates


@dataclass(frozen=True, slots=True)
class Method:
    """A way of decoding. plan: with its settings; the draft model is in it only where it may draft."""

    name: str
    plan: Plan

    @classmethod
    def of(cls, name: str, plan: Plan) -> Method:
        """From its name: a --method, with `:N` for a fixed length. Raises UsageError for anything else."""
        kind, colon, length = name.partition(":")
        known = [each for each in options.Method if each is not options.Method.OFF]
        if kind not in known or (colon and not (length.isdecimal() and 1 <= int(length) <= options.MAX_DRAFT_LENGTH)):
            raise UsageError(
                f"--methods has {name!r}: give some of {', '.join(known)}, or one with a fixed length of 1 to "
                f"{options.MAX_DRAFT_LENGTH} tokens, as in draft:3."
            )
        method = options.Method(kind)
        if method is options.Method.DRAFT and plan.draft is None:
            raise UsageError(f"--methods has {name!r}, but there is no draft model: name one with --draft.")
        settings = replace(plan.settings, method=method, draft_length=int(length) if colon else None)
        return cls(name, replace(plan, settings=settings, draft=plan.draft if method.uses_model else None))


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models of a benchmark. costs: what passes take, by model."""

    plan: Plan
    target: Engine
    draft: LoadedDraft
    calibration: Calibration
    costs: Mapping[str, Mapping[int, float]]

    def has(self, method: Method) -> bool:
        """Whether a method can be measured: not one of a draft model alone that could not be loaded."""
        alone = method.plan.settings.method is options.Method.DRAFT
        return not alone or self.draft.engine is not None

    def controller(self, method: Method, prompt: Tokens) -> Controller:
        """A new one, with what earlier runs learned on this machine, and nothing from this one."""
        draft = self.draft if method.plan.draft is not None else LoadedDraft()
        drafters, _ = build_drafters(self.target, method.plan, draft, [], Randomness(0))
        return build_control(
            self.calibration,
            method.plan,
            self.target,
            draft,
            drafters,
            context_length=len(prompt),
            load_seconds=0.0,
        ).controller

    def forget(self) -> None:
        """The draft model begins with an empty cache."""
        if self.draft.model is not None:
            self.draft.model.rollback(0)

    def to_prompt(self, said: Sequence[str], answers: Sequence[Tokens]) -> Tokens:
        """A conversation up to what was said last."""
        messages = [Message("user", said[0])]
        for answer, text in zip(answers, said[1:], strict=True):
            messages += [Message("assistant", self._text(answer)), Message("user", text)]
        return prompt_tokens(self.target, messages, self.plan.target.name, silent)

    def _text(self, tokens: Tokens) -> str:
        pieces = b"".join(self.target.vocabulary.piece(token) for token in tokens.tolist())
        return pieces.decode("utf-8", "replace")


def load(stack: ExitStack, plan: Plan, methods: Sequence[Method], workloads: Sequence[Workload]) -> Loaded:
    """Load the models with room for the longest workload, and measure what passes cost. Raises PromptTooLong."""
    from specd.llama.library import Interrupt, compute

    store, progress, interrupt = Store(), TransferProgress(sys.stderr), Interrupt()
    if not any(method.plan.draft is not None for method in methods):
        plan = replace(plan, draft=None)
    widest = max(method.plan.max_draft for method in methods)
    widest_plan = replace(plan, settings=replace(plan.settings, draft_max=widest))
    target = stack.enter_context(load_target(widest_plan, store, progress, interrupt))
    allocate(target, plan, _longest(target, plan, workloads))
    draft = load_draft(target, plan, store, progress, interrupt, warn, max_rows=target.max_rows)
    if draft.engine is not None:
        stack.callback(draft.engine.close)
    calibration = Calibration(state_folder())
    costs = {}
    for name, engine in {"target": target, "draft": draft.engine}.items():
        if engine is not None:
            progress.note(f"measuring what a pass of the {name} costs")
            seconds = MEASURING_SECONDS * (_DRAFT_SHARE if name == "draft" else 1 - _DRAFT_SHARE)
            costs[name] = compute(interrupt, partial(measure, engine, target.max_rows, seconds, time.perf_counter))
            calibration.keep_costs(engine, 0, PassCosts(costs[name]))
    if draft.engine is not None:
        calibration.draft_costs(draft.engine, target.max_rows, 0, seconds, time.perf_counter)
        costs["draft"] = padded(costs["draft"], draft.engine.least_tokens)
    return Loaded(plan, target, draft, calibration, costs)


def _longest(target: Engine, plan: Plan, workloads: Sequence[Workload]) -> int:
    """Tokens of the longest workload with its answers, about."""
    lengths: list[int] = []
    for workload in workloads:
        message = Message("user", "\n\n".join(workload.turns))
        prompt = prompt_tokens(target, [message], plan.target.name, silent if lengths else warn)
        lengths.append(len(prompt) + len(workload.turns) * (workload.bench_tokens + _SLACK))
    return max(lengths)


def report_of(loaded: Loaded, measurement: Measurement, methods: Sequence[Method], seconds: float) -> Report:
    """What was measured so far, with what it could have been at most."""
    prices = Prices(
        PassCosts(loaded.costs["target"]),
        {"draft": PassCosts(loaded.costs["draft"])} if "draft" in loaded.costs else {},
        loaded.target.max_rows - 1,
    )
    names = ["lookup", *(["draft"] if "draft" in loaded.costs else [])]
    unit = 1 if sys.platform == "darwin" else 1024
    return Report(
        machine=_machine(loaded.target),
        models={
            "target": _described(loaded.plan.target.name, loaded.target),
            "draft": _described(loaded.plan.draft.name, loaded.draft.engine)
            if loaded.plan.draft is not None and loaded.draft.engine is not None
            else None,
        },
        settings={
            "version": __version__,
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "threads": loaded.target.threads,
            "context": loaded.target.n_ctx,
            "exact": loaded.target.exact,
            "methods": [PLAIN, *(method.name for method in methods)],
        },
        seconds=seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        cells=cells_of(measurement.trials, _oracles(loaded, measurement.questions, names)),
        prefill=prefill_of(measurement.questions),
        pass_seconds=loaded.costs,
        drafters={
            name: Costs(prices.token_seconds(name) / prices.plain_seconds, prices.bound(name), prices.break_even(name))
            for name in names
        },
        partings=_partings(measurement),
        noise=noise_of(measurement.trials),
    )


def _oracles(loaded: Loaded, questions: Sequence[Question], names: Sequence[str]) -> dict[str, float]:
    """By category, the speed over plain decoding that perfect foresight would reach at the prices measured."""
    plain: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    for question in questions:
        replay = replay_of(loaded, question)
        plain[question.category] += replay.plain_seconds
        best[question.category] += replay.oracle_seconds(names)
    return {category: plain[category] / best[category] for category in plain}


def replay_of(loaded: Loaded, question: Question) -> Replay:
    """A plain answer, with what the draft model would have said at each position, at the prices measured."""
    draft = loaded.draft.model
    context = np.concatenate([question.prompt, question.answer])
    if draft is not None and len(context) <= draft.n_ctx and context.max() < loaded.draft.num_shared:
        steps = foretold(draft, question.prompt, question.answer, question.certainties)
    else:
        told = zip(question.answer.tolist(), question.certainties, strict=True)
        steps = tuple(Step(token, certainty, ()) for token, certainty in told)
    return Replay(
        Trace(
            kind=question.category,
            target=loaded.target.path.stem,
            draft=loaded.draft.engine.path.stem if loaded.draft.engine is not None else "",
            target_seconds=loaded.costs["target"],
            draft_seconds=loaded.costs.get("draft", loaded.costs["target"]),
            prompt=question.prompt,
            steps=steps,
            predicted=as_tokens([]),
        )
    )


def _partings(measurement: Measurement) -> list[Parting]:
    """The first parting of each question and method, with its gap."""
    found: dict[tuple[str, str], Parting] = {}
    for trial in measurement.trials:
        question = trial.question
        if trial.has_parted and trial.num_same < len(question.answer) and (question.name, trial.method) not in found:
            gap = measurement.gap(question, trial.num_same)
            found[question.name, trial.method] = Parting(
                question.category, question.name, trial.method, trial.num_same, gap
            )
    return list(found.values())


def _machine(target: Engine) -> dict[str, Any]:
    from specd.llama import library
    from specd.llama.devices import describe, usable_cores

    return {**describe(), "cores": usable_cores(), "llama_cpp": library.build()}


def _described(name: str, engine: Engine) -> dict[str, Any]:
    return {"name": name, "file": engine.path.name, "bytes": engine.num_bytes}
