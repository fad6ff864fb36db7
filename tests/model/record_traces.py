"""Records the traces in tests/traces on the real pair: python -m tests.model.record_traces (minutes, alone)."""

import time
from pathlib import Path
from statistics import median

import numpy as np

from specd.bench.trace import Trace, record
from specd.bench.workloads import load_workloads
from specd.decoding.context import as_tokens
from specd.llama.engine import Engine
from tests.model.conftest import open_engine
from tests.model.test_lossless import tokens_of

TRACES = Path(__file__).parents[1] / "traces"
WIDTHS = (*range(1, 17), 20, 24, 28, 32)
REPEATS = 5


def costs(engine: Engine) -> dict[int, float]:
    """Seconds of a pass by its tokens, the median of interleaved repeats, behind a context of 256 tokens."""
    tokens = as_tokens(np.random.default_rng(0).integers(1000, 20000, 300))
    times: dict[int, list[float]] = {}
    for _ in range(REPEATS):
        for n in WIDTHS:
            engine.sync(tokens[:256])
            started = time.perf_counter()
            engine.advance(tokens[256 : 256 + n])
            times.setdefault(n, []).append(time.perf_counter() - started)
    return {n: median(values) for n, values in times.items()}


def main() -> None:
    """Record all workloads."""
    TRACES.mkdir(exist_ok=True)
    with (
        open_engine("qwen2.5-coder-1.5b", n_ctx=2048, max_rows=32) as target,
        open_engine("qwen2.5-coder-0.5b", n_ctx=2048, max_rows=32) as draft,
    ):
        seconds = costs(target), costs(draft)
        for workload in load_workloads().values():
            if not workload.max_tokens:
                continue
            prompt = tokens_of(target, workload.turns[0])
            predicted = (
                target.vocabulary.tokenize(workload.predicted, add_special=False, parse_special=False)
                if workload.predicted
                else []
            )
            steps = record(target, draft, prompt, workload.max_tokens, target.vocabulary.is_end)
            names = target.path.stem, draft.path.stem
            trace = Trace(workload.category, *names, *seconds, prompt, steps, as_tokens(predicted))
            trace.write(TRACES / f"{workload.category}.jsonl")
            right = sum(step.draft[0][0] == step.token for step in steps) / len(steps)
            print(f"{workload.category}: {len(prompt)} + {len(steps)} tokens, draft right at {right:.0%}", flush=True)


if __name__ == "__main__":
    main()
