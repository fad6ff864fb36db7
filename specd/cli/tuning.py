"""`specd bench --tune`: the settings that decode fastest here, kept in the user's models.toml."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from specd.bench.measurement import Measurement, Question
from specd.bench.measurement import Plan as BenchPlan
from specd.bench.tune import Comparison, Knob, best_limit, descend
from specd.bench.workloads import Workload
from specd.cli.benching import Method, load, replay_of
from specd.cli.building import Plan
from specd.cli.options import DEFAULT_DRAFT_MAX, FlashAttn, KvType
from specd.cli.signals import stopping
from specd.decoding.context import Tokens
from specd.errors import EngineError
from specd.models.registry import save_defaults

if TYPE_CHECKING:
    from specd.llama.engine import Engine

_CONTEXT, _STEPS = 128, 12  # tokens behind which single steps are measured, and how many
_PROMPT = 512  # tokens of a prompt
_NUM_WORKLOADS = 4  # that tell how far to draft


def tune(plan: Plan, workloads: Sequence[Workload], *, save: bool, seconds: float) -> int:
    """Try the settings one after the other, print what each gives, and keep the best ones with `save`."""
    from specd.llama.library import compute

    method = Method.of("auto", plan)
    with ExitStack() as stack:
        loaded = load(stack, plan, [method], workloads)
        target = loaded.target
        start = _settings(plan, target)
        found: dict[str, Any] = {}

        def run() -> None:
            for comparison in descend(start, _knobs(target), time.perf_counter, seconds, EngineError):
                _print(comparison)
                if comparison.wins:
                    found[comparison.name] = comparison.value
            _use(target, {**start, **found})
            measurement = Measurement(
                target,
                BenchPlan(
                    workloads=workloads[:_NUM_WORKLOADS],
                    methods={},
                    forget=loaded.forget,
                    to_prompt=loaded.to_prompt,
                    is_end=target.vocabulary.is_end,
                    num_repeats=0,
                    seconds=0.0,
                ),
                time.perf_counter,
            )
            questions = [event for event in measurement.run() if isinstance(event, Question)]
            limit, speeds = best_limit([replay_of(loaded, question) for question in questions])
            listed = ", ".join(f"{each}: {speed:.2f}×" for each, speed in speeds.items())
            print(f"draft_max: {limit} is enough (simulated on {len(questions)} answers: {listed})", flush=True)
            if limit != (plan.settings.draft_max or DEFAULT_DRAFT_MAX):
                found["draft_max"] = limit

        with stopping(target.interrupt):
            compute(target.interrupt, run)
    if not found:
        print("The settings as they are decode fastest here: there is nothing to keep.")
        return 0
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.items())
    print(f"Faster here: {options}")
    if "kv_type" in found:
        print("A quantised KV cache changes what the model says a little.")
    if save:
        print(f"Kept as defaults of {plan.target.name} in {save_defaults(plan.target.name, found)}.")
    else:
        print("--save keeps that as the model's defaults.")
    return 0


def _settings(plan: Plan, target: Engine) -> dict[str, Any]:
    """As they are now."""
    runtime = target.runtime
    return {
        "threads": target.threads,
        "flash_attn": plan.settings.flash_attn.value,
        "kv_type": runtime.kv_type,
        "batch_size": runtime.batch,
        "micro_batch_size": runtime.micro_batch or runtime.batch,
    }


def _knobs(target: Engine) -> list[Knob]:
    """In the order in which they matter. Batches are about prompts, the others about single steps."""
    from specd.llama.devices import usable_cores

    cores = usable_cores()
    threads = sorted({cores, max(1, cores - 1), max(1, cores // 2)}, reverse=True)

    def step(settings: Mapping[str, Any]) -> float:
        return _step_seconds(target, settings)

    def prompt(settings: Mapping[str, Any]) -> float:
        return _prompt_seconds(target, settings)

    return [
        Knob("threads", threads, step),
        Knob("flash_attn", [FlashAttn.ON.value, FlashAttn.OFF.value], step),
        Knob("kv_type", [KvType.Q8_0.value], step),
        Knob("batch_size", [256, 1024, 2048], prompt),
        Knob("micro_batch_size", [64, 128, 256], prompt),
    ]


def _use(target: Engine, settings: Mapping[str, Any]) -> None:
    from specd.llama.runtime import Runtime

    flash = {FlashAttn.AUTO: None, FlashAttn.ON: True, FlashAttn.OFF: False}[FlashAttn(settings["flash_attn"])]
    micro_batch = min(settings["micro_batch_size"], settings["batch_size"])
    n_ctx = target.n_ctx
    target.configure(settings["threads"], Runtime(settings["batch_size"], micro_batch, settings["kv_type"], flash))
    target.allocate(n_ctx)


def _tokens(target: Engine, number: int) -> Tokens:
    return np.random.default_rng(0).integers(0, min(target.n_vocab, 20000), number).astype(np.int32)


def _step_seconds(target: Engine, settings: Mapping[str, Any]) -> float:
    """Of single steps behind a short context."""
    _use(target, settings)
    tokens = _tokens(target, _CONTEXT + _STEPS + 1)
    target.sync(tokens[: _CONTEXT + 1])
    started = time.perf_counter()
    for i in range(_CONTEXT + 1, len(tokens)):
        target.advance(tokens[i : i + 1])
    return time.perf_counter() - started


def _prompt_seconds(target: Engine, settings: Mapping[str, Any]) -> float:
    _use(target, settings)
    tokens = _tokens(target, _PROMPT)
    started = time.perf_counter()
    target.sync(tokens, num_rows=1)
    return time.perf_counter() - started


def _print(comparison: Comparison) -> None:
    what = f"{comparison.name} {comparison.value} against {comparison.against}"
    if comparison.speed is None:
        print(f"{what}: cannot be used ({comparison.reason})", flush=True)
    else:
        verdict = ", taken" if comparison.wins else ""
        print(f"{what}: {comparison.speed:.2f}×{verdict}", flush=True)
