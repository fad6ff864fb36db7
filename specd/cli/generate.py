"""`specd generate`: one prompt in, one answer out; or a file of prompts."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specd.cli import offload, options
from specd.cli.batching import run_batch
from specd.cli.building import Plan, choose_draft
from specd.cli.destination import Destination, check_writable
from specd.cli.form import Form, read_form
from specd.cli.generating import Generator, Request, messages_of
from specd.cli.prompt import clean, read_prompt
from specd.cli.settings import Settings, parse_biases
from specd.decoding.protocol import Event
from specd.decoding.statistics import Statistics
from specd.errors import Interrupted, UsageError
from specd.models.folders import write_whole
from specd.models.registry import load_registry
from specd.terminal.answer import as_json
from specd.terminal.console import uses_color, warn
from specd.terminal.explanation import explanation
from specd.terminal.progress import TransferProgress
from specd.terminal.status import StatusLine, status_text
from specd.terminal.summary import summary
from specd.terminal.text import is_terminal

_FORM, _OUTPUT, _BATCH = "Form of the answer", "Output", "Batch"


class Format(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


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
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on until --max-tokens.")] = False,
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema",
            metavar="FILE|JSON",
            help="The answer is JSON that follows this schema.",
            rich_help_panel=_FORM,
        ),
    ] = None,
    json_object: Annotated[
        bool, typer.Option("--json-object", help="The answer is a JSON object.", rich_help_panel=_FORM)
    ] = False,
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar", metavar="FILE", help="The answer follows this grammar (GBNF).", rich_help_panel=_FORM
        ),
    ] = None,
    format_: Annotated[
        Format,
        typer.Option("--format", help="The text, one JSON object, or an event per line.", rich_help_panel=_OUTPUT),
    ] = Format.TEXT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write there, once all of it is there.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print a summary on stderr, terminal or not.", rich_help_panel=_OUTPUT)
    ] = False,
    stats_file: Annotated[
        Path | None, typer.Option("--stats-file", metavar="FILE", help="Statistics as JSON.", rich_help_panel=_OUTPUT)
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            "--batch",
            metavar="FILE.jsonl",
            help="Many prompts with one model load: JSON lines with a prompt each (- for standard input). "
            "The results are JSON lines.",
            rich_help_panel=_BATCH,
        ),
    ] = None,
    skip_done: Annotated[
        bool,
        typer.Option(
            "--skip-done", help="Keep the results that --output has, and do the rest.", rich_help_panel=_BATCH
        ),
    ] = False,
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
    gpu_layers: offload.GpuLayersOption = None,
    draft_gpu_layers: offload.DraftGpuLayersOption = None,
    device: offload.DeviceOption = None,
    tensor_split: offload.TensorSplitOption = None,
    rpc: offload.RpcOption = None,
    mmap: offload.MmapOption = None,
    mlock: offload.MlockOption = None,
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
        "gpu_layers": gpu_layers,
        "draft_gpu_layers": draft_gpu_layers,
        "device": device,
        "tensor_split": tensor_split,
        "rpc": rpc,
        "mmap": mmap,
        "mlock": mlock,
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
    form = read_form(
        json_schema=json_schema,
        json_object=json_object,
        grammar=grammar,
        stops=stop,
        ignores_ends=ignore_eos,
        chat_template=chat_template,
        raw=raw,
        predict_from=predict_from,
        warn=warn,
    )
    for name, path in {"--output": output, "--stats-file": stats_file}.items():
        check_writable(path, name)
    if skip_done and (batch is None or output is None):
        raise UsageError("--skip-done needs --batch FILE and --output FILE, which has what is done.")
    if batch is not None:
        if prompt is not None or file:
            raise UsageError("--batch has the prompts: drop --prompt and --file.")
        if stats_file is not None:
            raise UsageError("--stats-file is for one answer; with --batch each result has its statistics.")
        return run_batch(plan, form, batch, output, skip_done=skip_done, stats=stats)
    text = read_prompt(prompt, file or [], use_stdin=not no_stdin, warn=warn)
    messages = messages_of(text, clean(settings.system, "--system", warn) if settings.system else None)
    request = Request(messages, settings.max_tokens, plan.seed)
    return _run(plan, form, request, format_, output, stats_file, stats=stats, explain=explain)


def _run(
    plan: Plan,
    form: Form,
    request: Request,
    format_: Format,
    file: Path | None,
    stats_file: Path | None,
    *,
    stats: bool,
    explain: bool,
) -> int:
    from specd.llama.library import Interrupt

    with Destination(file) as output:
        status = StatusLine(sys.stderr, output, time.monotonic, color=uses_color(sys.stderr))

        def show(text: str, event: Event, statistics: Statistics) -> None:
            shown = text if format_ is Format.TEXT else ""
            if format_ is Format.JSONL and (entry := as_json(text, event)) is not None:
                shown = _line(entry)
            status.write(shown, lambda: status_text(statistics, request.max_tokens))

        try:
            with Generator(plan, form, TransferProgress(sys.stderr), Interrupt(), warn) as generator:
                answer = generator.answer(request, show)
        finally:
            status.erase()
        result = answer.as_json()
        if format_ is not Format.TEXT:
            output.write(_line({"event": "end", **result} if format_ is Format.JSONL else result))
        if stats_file is not None:
            write_whole(stats_file, _line({name: value for name, value in result.items() if name != "text"}))
        if answer.statistics.finish_reason == "interrupted":
            raise Interrupted("The answer was stopped.")
    if stats or is_terminal(sys.stderr):
        print(summary(answer.statistics, answer.off_reason), file=sys.stderr)
    if explain:
        print(explanation(answer.statistics, answer.report, answer.notices), file=sys.stderr)
    return 0


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"
