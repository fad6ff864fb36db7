"""`make bench`: what speculation costs and gains on this machine, on the default pair.

Methods run interleaved, prompt by prompt, and are compared with plain decoding of the same prompt: only such
ratios mean something on a machine that does other things too. Not a test: nothing here asserts a time.
"""

import gc
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import numpy as np

from specd.decoding.controller import FixedLength
from specd.decoding.loop import generate
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, sampler
from specd.decoding.statistics import Statistics
from specd.decoding.verify import RULES, RuleName
from specd.drafting.lookup import Lookup
from specd.llama import library
from specd.llama.engine import Engine
from specd.llama.library import Interrupt, compute
from specd.llama.vocab import TextDecoder
from specd.terminal.answer import stream_answer
from specd.terminal.status import StatusLine
from specd.terminal.text import Output
from tests.model.conftest import open_engine
from tests.model.test_lossless import NUM_TOKENS, PROMPTS, REPORT, draft_model, run, tokens_of

NUM_DRAFT = 3
WIDTHS = range(1, 10)  # tokens per pass
REPEATS = 7


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


def costs(engine: Engine, context: np.ndarray) -> dict[int, float]:
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
    events = generate(
        target,
        FixedLength([Lookup()], NUM_DRAFT, time.perf_counter),
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
        answer = partial(stream_answer, events, statistics, decoder, status)
        compute(target.interrupt, partial(answer, max_tokens=NUM_TOKENS, show_text=True))
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


def speeds(target: Engine, draft: Engine) -> None:
    """Tokens per second of each method over plain decoding, prompt by prompt."""
    drafters = {
        "lookup": lambda: [Lookup()],
        "draft": lambda: [draft_model(draft)],
        "hybrid": lambda: [Lookup(), draft_model(draft)],
    }
    print(f"{'':16}{'plain':>12}" + "".join(f"{method:>18}" for method in drafters))
    for name, prompt in PROMPTS.items():
        tokens = tokens_of(target, prompt)
        plain = run(target, [], 0, tokens, stop=True)[1].decode_tokens_per_second
        assert plain is not None
        line = f"{name:16}{plain:8.1f} t/s"
        for build in drafters.values():
            statistics = run(target, build(), NUM_DRAFT, tokens, stop=True)[1]
            speed, acceptance = statistics.decode_tokens_per_second, statistics.total.acceptance_rate
            assert speed is not None
            line += f"{speed / plain:9.2f}x ({acceptance or 0:4.0%})"
        print(line, flush=True)


def main() -> None:
    """Print everything."""
    peak_memory()
    gc.freeze()  # as the command does
    with (
        open_engine("qwen2.5-coder-1.5b", n_ctx=4096, max_rows=9) as target,
        open_engine("qwen2.5-coder-0.5b", n_ctx=4096, max_rows=9) as draft,
    ):
        context = tokens_of(target, PROMPTS["code edit"])[:128]
        for engine in (target, draft):
            table = costs(engine, context)
            print(engine.path.name + ": ms per pass of n tokens (and in plain steps)")
            print("  " + "  ".join(f"{n}: {ms:.0f} ({ms / table[1]:.1f})" for n, ms in table.items()))
        python_share(target)
        python_memory(target, draft)
        speeds(target, draft)


if __name__ == "__main__":
    main()
