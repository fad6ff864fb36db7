"""`specd bench`: is it faster here, by how much, and why."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specd.bench.baseline import falls, num_compared
from specd.bench.measurement import PLAIN, Measurement, Question, Trial
from specd.bench.measurement import Plan as BenchPlan
from specd.bench.report import Report
from specd.bench.text import print_report
from specd.bench.workloads import Workload, first_of_each, load_workloads, read_prompts
from specd.cli import offload, options
from specd.cli.benching import Loaded, Method, load, report_of
from specd.cli.building import Plan, choose_draft
from specd.cli.checking import check
from specd.cli.settings import Settings
from specd.cli.signals import stopping
from specd.cli.tuning import tune
from specd.errors import Interrupted, UsageError
from specd.models.folders import write_whole
from specd.models.registry import load_registry
from specd.terminal.progress import StepProgress

DEFAULT_MINUTES = 11.0
_BUDGET = 128  # tokens of each answer to prompts of a file


def command(
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Prompts to measure with: one per line, or JSON lines in Spec-Bench's form (turns, category).",
            show_default="our own, of 11 kinds",
        ),
    ] = None,
    per_category: Annotated[
        int | None, typer.Option("--per-category", min=1, metavar="N", help="Only the first N of each category.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="LIST",
            help="What to compare with plain decoding: auto, lookup, draft, hybrid, or one of them with a fixed "
            "length, as in draft:3.",
            show_default="lookup,draft:3,auto",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=2, help="Most tokens of each answer.", show_default="48 to 128, by prompt"
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, metavar="X", help="Repeat for about so long.")
    ] = DEFAULT_MINUTES,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, metavar="N", help="Repeat so often instead, however long it takes."),
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Compare with an earlier --json: exit 1 where something fell."),
    ] = None,
    check_: Annotated[
        bool,
        typer.Option("--check", help="Instead: prove that speculation changes nothing here. Exit 1 on a difference."),
    ] = False,
    tune_: Annotated[
        bool,
        typer.Option("--tune", help="Instead: find threads, attention, cache and batches that are fastest here."),
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="With --tune: write what was found to your models.toml.")
    ] = False,
    model: options.ModelOption = None,
    draft: options.DraftOption = None,
    models: options.ModelsFileOption = None,
    draft_max: options.DraftMaxOption = None,
    exact: options.ExactOption = False,
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
    """Measure what speculation gains on this machine, and say why.

    All methods answer the same prompts, one after the other in changing order, and are compared with plain decoding of
    the same prompt, which is the only comparison that means something on a machine that does other things too.
    """
    if save and not tune_:
        raise UsageError("--save keeps what --tune finds: give both, or neither.")
    if check_ and tune_:
        raise UsageError("--check and --tune are two jobs: give one of them.")
    workloads = _workloads(prompts, per_category, max_tokens)
    before = Report.read(baseline) if baseline is not None else None
    for file in (json_, html):
        _check_writable(file)
    registry = load_registry(models)
    target = registry.target(model)
    given = {
        "ctx": ctx,
        "threads": threads,
        "draft_max": draft_max,
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
    }
    plan = Plan(
        target=target,
        draft=choose_draft(registry, model, draft, options.Method.AUTO),
        settings=replace(Settings.of(target, given), method=options.Method.AUTO, draft_length=None),
        exact=exact,
        strict=methods is not None,
        seed=0,
    )
    if check_:
        return check(plan, workloads, max_tokens)
    if tune_:
        return tune(plan, workloads, save=save, seconds=60 * minutes)
    wanted = [Method.of(name, plan) for name in _listed(methods, has_draft=plan.draft is not None)]
    with ExitStack() as stack:
        loaded = load(stack, plan, wanted, workloads)
        wanted = [method for method in wanted if loaded.has(method)]
        report, interrupted = _measured(loaded, wanted, workloads, repeats, 60 * minutes)
    if report is None:
        raise Interrupted("Nothing was measured yet.")
    print_report(report, sys.stdout)
    if json_ is not None:
        write_whole(json_, json.dumps(report.as_json(), indent=1) + "\n")
    if html is not None:
        from specd.bench.page import page

        write_whole(html, page(report))
    if interrupted:
        raise Interrupted("The measurement was stopped.")
    return _compared(before, report) if before is not None else 0


def _measured(
    loaded: Loaded, methods: list[Method], workloads: list[Workload], repeats: int | None, seconds: float
) -> tuple[Report | None, bool]:
    """The report, None when there is nothing to report yet; and whether the measurement was interrupted."""
    from specd.llama.library import compute

    target = loaded.target
    bench = BenchPlan(
        workloads=workloads,
        methods={method.name: partial(loaded.controller, method) for method in methods},
        forget=loaded.forget,
        to_prompt=loaded.to_prompt,
        is_end=target.vocabulary.is_end,
        num_repeats=repeats,
        seconds=seconds,
    )
    started = time.perf_counter()
    measurement = Measurement(target, bench, time.perf_counter)
    with StepProgress(sys.stderr) as progress, stopping(target.interrupt):

        def measure() -> bool:
            try:
                for event in measurement.run():
                    progress.show(_step(event), measurement.seconds_left)
            except Interrupted:
                target.interrupt.clear()
                return True
            return False

        interrupted = compute(target.interrupt, measure)
        if not any(trial.method != PLAIN for trial in measurement.trials):
            return None, interrupted
        make = partial(report_of, loaded, measurement, methods, time.perf_counter() - started)
        return compute(target.interrupt, make), interrupted


def _step(event: Question | Trial) -> str:
    match event:
        case Question():
            return f"plain answers first: {event.name}"
        case Trial():
            return f"repeat {event.repeat + 1}: {event.question.name}, {event.method}"


def _workloads(prompts: Path | None, per_category: int | None, max_tokens: int | None) -> list[Workload]:
    if prompts is not None:
        workloads = read_prompts(prompts, max_tokens or _BUDGET)
    else:
        workloads = [each for each in load_workloads().values() if each.bench_tokens]
        if max_tokens is not None:
            workloads = [replace(each, bench_tokens=max_tokens) for each in workloads]
    return workloads if per_category is None else first_of_each(workloads, per_category)


def _listed(methods: str | None, *, has_draft: bool) -> list[str]:
    """The methods asked for, each once; plain decoding is always measured."""
    if methods is None:
        return ["lookup", "draft:3", "auto"] if has_draft else ["lookup:3", "auto"]
    names = dict.fromkeys(name.strip() for name in methods.split(","))
    names.pop(PLAIN, None)
    if not names:
        raise UsageError(f"--methods {methods!r} names nothing to compare with plain decoding: try auto.")
    return list(names)


def _check_writable(file: Path | None) -> None:
    """Before minutes go into what is to be written there."""
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"{file} cannot be written: it is a folder.")
    if not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written: there is no folder {file.parent}.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: permission denied.")


def _compared(before: Report, after: Report) -> int:
    """Say what fell; 1 when something did. Raises UsageError when there is nothing to compare."""
    number = num_compared(before, after)
    if not number:
        raise UsageError("--baseline has no prompts and methods in common with this benchmark.")
    for fall in (found := falls(before, after)):
        print(f"specd: {fall}", file=sys.stderr)
    if not found:
        print(f"Nothing fell against the baseline ({number} cells compared).")
    return 1 if found else 0
