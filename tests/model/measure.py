"""What `specd bench` does not measure: Python's share, memory, an adversary. python -m tests.model.measure (alone)

Not a test: nothing here asserts a time.
"""

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from specd.bench.calibration import Calibration
from specd.bench.measurement import PLAIN, Measurement, Plan, Trial
from specd.bench.report import cells_of
from specd.bench.workloads import load_workloads
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.context import Tokens
from specd.decoding.costs import PassCosts
from specd.decoding.loop import generate
from specd.decoding.pricing import MAX_DRAFT, Prices
from specd.decoding.protocol import Controller, Drafter, Event, Evidence, Proposal, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, sampler
from specd.decoding.statistics import Statistics
from specd.decoding.verify import RULES, RuleName
from specd.drafting.lookup import Lookup
from specd.drafting.predicted import Predicted
from specd.llama import library
from specd.llama.engine import Engine
from specd.llama.library import Interrupt, compute
from specd.llama.vocab import TextDecoder
from specd.terminal.answer import stream_answer
from specd.terminal.status import StatusLine, status_text
from specd.terminal.text import Output
from tests.model.conftest import open_engine
from tests.model.test_lossless import NUM_TOKENS, PROMPTS, REPORT, draft_model, run, tokens_of

NUM_DRAFT = 3
WIDTHS = (*range(1, 10), 12, 16, 24, 32)  # tokens per pass
REPEATS = 5


class ComputeTime:
    """Seconds inside llama.cpp, as the computing thread sees them."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        real = library.compute

        def timed(interrupt: Interrupt, call: Callable[[], int]) -> int:
            def run_it() -> int:
                started = time.perf_counter()
                code = call()
                self.calls.append(time.perf_counter() - started)
                return code

            return real(interrupt, run_it)

        library.compute = timed
        try:
            yield
        finally:
            library.compute = real


def pass_times(engine: Engine, context: np.ndarray) -> dict[int, float]:
    """Milliseconds to score n tokens after a short context, the median of interleaved repeats."""
    times: dict[int, list[float]] = defaultdict(list)
    for _ in range(REPEATS):
        for n in [n for n in WIDTHS if n <= engine.max_rows]:
            engine.sync(context)
            started = time.perf_counter()
            engine.advance(context[:n])
            times[n].append(time.perf_counter() - started)
    return {n: 1000 * median(values) for n, values in times.items()}


def python_share(target: Engine) -> None:
    """What Python adds to decoding by lookup: drafting, verification, bookkeeping, streaming into a pipe."""
    statistics, watch = Statistics(time.perf_counter), ComputeTime()
    prices = Prices(
        PassCosts({n: ms / 1000 for n, ms in pass_times(target, tokens_of(target, REPORT)[:128]).items()}), {}
    )
    controller = Adaptive([Lookup()], prices, Acceptance(PRIORS), time.perf_counter, max_draft=MAX_DRAFT)
    events = generate(
        target,
        controller,
        tokens_of(target, PROMPTS["long document"]),
        sampler(SamplingParams()),
        RULES[RuleName.BLOCK].verify,
        max_tokens=NUM_TOKENS,
        is_end=target.vocabulary.is_end,
        randomness=Randomness(0),
        clock=time.perf_counter,
    )
    with open(os.devnull, "w") as pipe, watch.watching():
        status = StatusLine(sys.stderr, Output(pipe), time.monotonic, color=False)
        decoder = TextDecoder(target.vocabulary)

        def show(text: str, _: Event) -> None:
            status.write(text, lambda: status_text(statistics, NUM_TOKENS))

        compute(target.interrupt, partial(stream_answer, events, statistics, decoder, show))
    python = statistics.decode_seconds - sum(watch.calls[-statistics.num_rounds :])
    print(
        f"Python: {1000 * python / statistics.num_rounds:.2f} ms per round, "
        f"{python / statistics.decode_seconds:.1%} of decode time "
        f"({statistics.num_completion_tokens} tokens by lookup, {target.n_vocab} token vocabulary)"
    )


def python_memory(target: Engine, draft: Engine) -> None:
    """Peak of what Python and numpy allocate in a generation with a long context."""
    prompt = np.tile(tokens_of(target, REPORT), 4)[: target.n_ctx - 80]
    tracemalloc.start()
    run(target, [Lookup(), draft_model(draft)], NUM_DRAFT, prompt, 64)
    print(f"Python objects at {len(prompt)} tokens of context: peak {tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB")
    tracemalloc.stop()


def peak_memory() -> None:
    """Of the whole process, with the pair and a context of 4096 tokens that is filled."""
    for what, command in {
        "Imports alone": ["-c", "import specd.cli.app, specd.llama.engine, huggingface_hub"],
        "The pair at 4096 tokens": ["-m", "specd", "generate", "--ctx", "4096", "-n", "32", "--prompt", "Summarise:"],
    }.items():
        subprocess.run([sys.executable, *command], input=REPORT * 4, text=True, check=True, stdout=subprocess.DEVNULL)
        unit = 1 if sys.platform == "darwin" else 1024
        print(f"{what}: peak {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 1e9:.2f} GB")


class Boaster:
    """An adversary: random tokens, and evidence that could not be better."""

    name, is_free = "random", True
    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab, self._rng = n_vocab, np.random.default_rng(0)

    def prepare(self, context: Tokens) -> None:
        """Nothing."""

    def backlog(self, context: Tokens) -> int:
        """None."""
        return 0

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """Anything."""
        for depth, token in enumerate(self._rng.integers(0, self._n_vocab, MAX_DRAFT).tolist()):
            yield Proposal.certain(token, Evidence(self.name, depth, 32, 9, 9))

    def observe(self, round_: Round) -> None:
        """Nothing."""


def speeds(target: Engine, draft: Engine, repeats: int, *, all_methods: bool = True) -> None:
    """Whole answers to the recorded prompts, by the controller and by methods that `specd bench` does not have."""
    clock = time.perf_counter
    calibration = Calibration(Path(tempfile.mkdtemp()))
    tables = {
        engine.path: calibration.costs(engine, MAX_DRAFT + 1, 0, seconds, clock).table()
        for engine, seconds in ((target, 0.7), (draft, 0.3))
    }

    def adaptive(*drafters: Drafter) -> Adaptive:
        prices = Prices(PassCosts(tables[target.path]), {"draft": PassCosts(tables[draft.path])}, MAX_DRAFT)
        return Adaptive(drafters, prices, Acceptance(PRIORS), clock, max_draft=MAX_DRAFT)

    print("speed over plain decoding, with 95 % interval; and the worst single trial")
    for workload in load_workloads().values():
        if not (workload.max_tokens and workload.bench_tokens):
            continue
        predicted = target.vocabulary.tokenize(workload.predicted, add_special=False, parse_special=False)
        methods: dict[str, Callable[[Tokens], Controller]] = {"auto": lambda _: adaptive(Lookup(), draft_model(draft))}
        if all_methods:
            methods["adversary"] = lambda _: adaptive(Boaster(target.n_vocab))
        if all_methods and workload.predicted:
            methods["predicted"] = lambda _, text=predicted: adaptive(Predicted(text), Lookup())  # type: ignore[misc]
        plan = Plan(
            [replace(workload, bench_tokens=workload.max_tokens)],
            methods,
            forget=lambda: draft.rollback(0),
            to_prompt=lambda said, _: tokens_of(target, said[0]),
            is_end=target.vocabulary.is_end,
            num_repeats=repeats,
            seconds=0.0,
        )
        measurement = Measurement(target, plan, clock)
        trials = [event for event in measurement.run() if isinstance(event, Trial)]
        plain = {trial.repeat: trial.tokens_per_second for trial in trials if trial.method == PLAIN}
        worst = min(trial.tokens_per_second / plain[trial.repeat] for trial in trials)
        cells = [
            f"{cell.method} {cell.speedup.median:.2f} [{cell.speedup.low:.2f} {cell.speedup.high:.2f}]"
            f" ({cell.tokens_per_pass:.2f} tokens/pass)"
            for cell in cells_of(trials, {})
            if cell.method != PLAIN
        ]
        print(
            f"{workload.category:12}{median(plain.values()):6.1f} t/s  {'  '.join(cells)}  worst {worst:.2f}",
            flush=True,
        )


def main() -> None:
    """Print everything; --speeds alone, or for other files: --speeds TARGET DRAFT [--auto, and no other method]."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--auto"]
    names = arguments[1:3] if len(arguments) >= 3 else ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"]
    if not arguments:
        peak_memory()
    gc.freeze()  # as the command does
    with (
        open_engine(names[0], n_ctx=4096, max_rows=MAX_DRAFT + 1) as target,
        open_engine(names[1], n_ctx=4096, max_rows=9) as draft,
    ):
        if not arguments:
            context = tokens_of(target, PROMPTS["code edit"])[:128]
            for engine in (target, draft):
                table = pass_times(engine, context)
                print(engine.path.name + ": ms per pass of n tokens (and in plain steps)")
                print("  " + "  ".join(f"{n}: {ms:.0f} ({ms / table[1]:.1f})" for n, ms in table.items()))
            python_share(target)
            python_memory(target, draft)
        speeds(target, draft, REPEATS, all_methods="--auto" not in sys.argv)


if __name__ == "__main__":
    main()
