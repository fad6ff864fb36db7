"""`specd generate`: one prompt in, one answer out."""

from __future__ import annotations

import gc
import json
import secrets
import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specd.bench.calibration import Calibration
from specd.chat.templates import Message, read_template
from specd.cli import options
from specd.cli.building import Plan, allocate, build_drafters, choose_draft, load_draft, load_target
from specd.cli.controlling import build_control
from specd.cli.prompt import checked_stops, clean, prompt_tokens, read_document, read_prompt
from specd.cli.settings import Settings, parse_biases
from specd.cli.signals import stopping
from specd.decoding.loop import generate
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import sampler
from specd.decoding.statistics import Statistics
from specd.decoding.verify import RULES
from specd.errors import EngineError, Interrupted, UsageError
from specd.models.folders import state_folder
from specd.models.registry import load_registry
from specd.models.store import Store
from specd.terminal.answer import stream_answer
from specd.terminal.console import uses_color, warn
from specd.terminal.explanation import explanation
from specd.terminal.progress import TransferProgress
from specd.terminal.status import StatusLine
from specd.terminal.summary import summary
from specd.terminal.text import Output, is_terminal


class Format(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


def command(
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The prompt.", show_default="piped input")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A document behind the prompt. Repeatable.")
    ] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Ignore piped input.")] = False,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text; no chat template.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=1, help="Most tokens to generate.", show_default=str(options.DEFAULT_MAX_TOKENS)
        ),
    ] = None,
    stop: options.StopOption = None,
    format_: Annotated[Format, typer.Option("--format", help="The text, or one JSON object.")] = Format.TEXT,
    stats: Annotated[bool, typer.Option("--stats", help="Print a summary on stderr, terminal or not.")] = False,
    model: options.ModelOption = None,
    draft: options.DraftOption = None,
    models: options.ModelsFileOption = None,
    chat_template: options.ChatTemplateOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    min_p: options.MinPOption = None,
    repeat_penalty: options.RepeatPenaltyOption = None,
    presence_penalty: options.PresencePenaltyOption = None,
    frequency_penalty: options.FrequencyPenaltyOption = None,
    penalty_window: options.PenaltyWindowOption = None,
    logit_bias: options.LogitBiasOption = None,
    seed: options.SeedOption = None,
    method: options.MethodOption = None,
    draft_max: options.DraftMaxOption = None,
    draft_length: options.DraftLengthOption = None,
    predict_from: options.PredictFromOption = None,
    verify: options.VerifyOption = None,
    draft_temperature: options.DraftTemperatureOption = None,
    exact: options.ExactOption = False,
    strict: options.StrictOption = False,
    explain: options.ExplainOption = False,
    ctx: options.CtxOption = None,
    threads: options.ThreadsOption = None,
    kv_type: options.KvTypeOption = None,
    flash_attn: options.FlashAttnOption = None,
    batch_size: options.BatchSizeOption = None,
    micro_batch_size: options.MicroBatchSizeOption = None,
) -> int:
    """Answer one prompt. The answer goes to stdout, everything else to stderr.

    Piped input is the prompt, or the document that --prompt is about: git diff | specd generate -p "Review this"
    """
    registry = load_registry(models)
    target = registry.target(model)
    given = {
        "ctx": ctx,
        "threads": threads,
        "kv_type": kv_type,
        "flash_attn": flash_attn,
        "batch_size": batch_size,
        "micro_batch_size": micro_batch_size,
        "method": method,
        "draft_max": draft_max,
        "draft_length": draft_length,
        "max_tokens": max_tokens,
        "system": system,
        "verify": verify,
        "seed": seed,
        "draft_temperature": draft_temperature,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "penalty_window": penalty_window,
        "logit_bias": parse_biases(logit_bias),
    }
    settings = Settings.of(target, given)
    if predict_from and not settings.method.uses_lookup:
        raise UsageError(f"--method {settings.method} copies no text, but --predict-from names one: drop one of them.")
    plan = Plan(
        target=target,
        draft=choose_draft(registry, model, draft, settings.method),
        settings=settings,
        exact=exact,
        strict=strict,
        seed=seed if seed is not None else secrets.randbits(32),
    )
    text = read_prompt(prompt, file or [], use_stdin=not no_stdin, warn=warn)
    messages = [Message("user", text)]
    if settings.system:
        messages.insert(0, Message("system", clean(settings.system, "--system", warn)))
    predicted = [read_document(each, "--predict-from", warn) for each in predict_from or []]
    if raw and chat_template is not None:
        raise UsageError("--raw uses no chat template, but --chat-template names one: drop one of them.")
    template = read_template(chat_template) if chat_template is not None else None
    stops = checked_stops(stop)
    return _run(
        plan,
        messages,
        predicted,
        stops=stops,
        template=template,
        raw=raw,
        format_=format_,
        stats=stats,
        explain=explain,
    )


def _run(
    plan: Plan,
    messages: list[Message],
    predicted: list[str],
    *,
    template: str | None,
    stops: tuple[str, ...],
    raw: bool,
    format_: Format,
    stats: bool,
    explain: bool,
) -> int:
    from specd.llama.devices import has_gpu
    from specd.llama.library import Interrupt, compute
    from specd.llama.vocab import TextDecoder

    store, progress, interrupt = Store(), TransferProgress(sys.stderr), Interrupt()
    settings, randomness = plan.settings, Randomness(plan.seed)
    output = Output(sys.stdout)
    status = StatusLine(sys.stderr, output, time.monotonic, color=uses_color(sys.stderr))
    started = time.perf_counter()
    with ExitStack() as loaded:
        target = loaded.enter_context(load_target(plan, store, progress, interrupt))
        if plan.exact and has_gpu():
            warn("--exact is proven for CPUs only; with this machine's GPU, outputs may still part at near-ties.")
        prompt = prompt_tokens(target, messages, plan.target.name, warn, raw=raw, template=template)
        allocate(target, plan, len(prompt))
        draft = load_draft(target, plan, store, progress, interrupt, warn)
        if draft.engine is not None:
            loaded.callback(draft.engine.close)
        drafters, missing = build_drafters(target, plan, draft, predicted, randomness)
        control = build_control(
            Calibration(state_folder()),
            plan,
            target,
            draft,
            drafters,
            context_length=len(prompt),
            load_seconds=time.perf_counter() - started,
        )
        controller = control.controller
        statistics = Statistics(time.perf_counter, lambda: controller.plain_seconds)
        events = generate(
            target,
            controller,
            prompt,
            sampler(settings.sampling),
            RULES[settings.verify].verify,
            max_tokens=settings.max_tokens,
            is_end=target.vocabulary.is_end,
            randomness=randomness,
            clock=time.perf_counter,
        )
        gc.freeze()  # what is there now stays: looking through it again and again costs more than a round's work
        with stopping(interrupt):
            decoder, show_text = TextDecoder(target.vocabulary), format_ is Format.TEXT
            answer = partial(stream_answer, events, statistics, decoder, status)
            try:
                text = compute(
                    interrupt, partial(answer, max_tokens=settings.max_tokens, show_text=show_text, stops=stops)
                )
            except EngineError:
                output.finish()  # the text so far is a whole line; the reason follows on stderr
                raise
        control.keep()
    notices = {**missing, **controller.notices}
    if format_ is Format.JSON:
        result = {
            "text": text,
            "finish_reason": statistics.finish_reason,
            "model": plan.target.name,
            "draft": plan.draft.name if plan.draft is not None and draft.engine is not None else None,
            "prompt_tokens": statistics.num_prompt_tokens,
            "completion_tokens": statistics.num_completion_tokens,
            "stats": statistics.as_dict(notices, {drafter.name: drafter.counters for drafter in drafters})
            | {"verify": settings.verify, "seed": plan.seed, "control": controller.report()},
        }
        output.write(json.dumps(result, ensure_ascii=False))
    output.finish()
    if stats or is_terminal(sys.stderr):
        print(summary(statistics, statistics.off_reason(notices)), file=sys.stderr)
    if explain:
        print(explanation(statistics, controller.report(), notices), file=sys.stderr)
    if statistics.finish_reason == "interrupted":
        raise Interrupted("The answer was stopped.")
    return 0
