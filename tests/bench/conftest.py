"""A benchmark on fake engines and simulated time."""

from collections.abc import Callable, Sequence

from specd.bench.measurement import Measurement, Plan, Question, Trial
from specd.bench.report import Costs, Report, cells_of, noise_of, prefill_of
from specd.bench.workloads import Workload
from specd.decoding.context import Tokens, as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.protocol import Controller, Drafter
from tests.fakes import FakeClock, FakeEngine, ScriptedDrafter, oracle, plain_greedy

NUM_TOKENS = 20


class FakeBench:
    """Two workloads, one of two turns; methods that are always right, always wrong, or right now and then.

    seconds:  of a pass by its tokens
    """

    def __init__(self, seconds: Sequence[float] = (1.0,), *, repeats: int | None = 3, budget: float = 0.0) -> None:
        self.clock = FakeClock()
        self.target = FakeEngine(n_ctx=512, clock=self.clock, seconds_per_batch=seconds)
        self.prompts: list[tuple[list[str], list[list[int]]]] = []
        self.num_forgotten = 0
        self.methods: dict[str, Callable[[Tokens], Controller]] = {
            "right": lambda _: self._fixed(oracle(self.target)),
            "wrong": lambda _: self._fixed(self._wrong()),
        }
        workloads = [
            Workload("copy", "copy", ("one",), NUM_TOKENS, 0),
            Workload("talk", "talk", ("two", "three"), NUM_TOKENS, 0),
        ]
        plan = Plan(workloads, self.methods, self._forget, self._to_prompt, lambda _: False, repeats, budget)
        self.measurement = Measurement(self.target, plan, self.clock)

    def run(self) -> list[Question | Trial]:
        return list(self.measurement.run())

    def report(self, **changed: object) -> Report:
        trials = self.measurement.trials
        values: dict[str, object] = {
            "machine": {"processor": "a <fast> one", "cores": 2, "llama_cpp": "0.3"},
            "models": {"target": {"name": "big & good"}, "draft": None},
            "settings": {"version": "0", "date": "2026-01-01 00:00", "threads": 2},
            "seconds": 12.0,
            "peak_memory_bytes": 10**9,
            "cells": cells_of(trials, {"copy": 2.5}),
            "prefill": prefill_of(self.measurement.questions),
            "pass_seconds": {"target": {1: 1.0, 2: 1.1, 8: 2.0}},
            "drafters": {"lookup": Costs(0.0, 3.0, 0.4)},
            "noise": noise_of(trials),
        }
        return Report(**(values | changed))  # type: ignore[arg-type]

    def _fixed(self, drafter: Drafter) -> Controller:
        return FixedLength([drafter], 4, self.clock, plain_every=10**9)

    def _wrong(self) -> ScriptedDrafter:
        def script(context: list[int], n: int) -> list[int]:
            return [(token + 1) % self.target.n_vocab for token in plain_greedy(self.target, context, n)]

        return ScriptedDrafter(script)

    def _forget(self) -> None:
        self.num_forgotten += 1

    def _to_prompt(self, said: Sequence[str], answers: Sequence[Tokens]) -> Tokens:
        self.prompts.append((list(said), [answer.tolist() for answer in answers]))
        text = "".join(said).encode()
        return as_tokens(
            [3, *(byte % 50 for byte in text), *(token for answer in answers for token in answer.tolist())]
        )
