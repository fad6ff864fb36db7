"""What passes cost on this machine's GPU, what Python adds, and what speculation gains, on a model with random weights.

python -m tests.gpu.measure [FOLDER FOR RESULTS]

Random weights say nothing sensible, so drafts are scripted: right for a given share of tokens. Costs are real.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from specd.bench.calibration import measure
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.loop import generate
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, sampler
from specd.decoding.verify import RULES
from specd.llama import library
from specd.llama.devices import devices
from specd.llama.engine import Engine
from tests.fakes import ScriptedDrafter
from tests.model.tiny import dense

WIDTHS = 32
LENGTH = 200
PROMPT = [2, *range(10, 100)]
SHARES = (0.6, 0.8, 0.95)  # of drafted tokens that are right


def decode(target: Engine, controller: Controller) -> tuple[list[int], float, float]:
    """The text, seconds per token, and what of a round was not spent in llama.cpp."""
    events = generate(
        target,
        controller,
        PROMPT,
        sampler(SamplingParams()),
        RULES["match"].verify,
        max_tokens=LENGTH,
        is_end=lambda token: False,
        randomness=Randomness(0),
        clock=time.perf_counter,
    )
    rounds = [event for event in events if isinstance(event, Round)]
    tokens = [token for round_ in rounds for token in round_.tokens.tolist()]
    overhead = median(round_.seconds - round_.target_seconds for round_ in rounds)
    return tokens, sum(round_.seconds for round_ in rounds) / len(tokens), overhead


def drafter(right: list[int], share: float) -> ScriptedDrafter:
    """Right for a share of tokens, each by itself."""
    luck = np.random.default_rng(1).random(len(right) + 64) < share

    def script(context: list[int], number: int) -> list[int]:
        place = len(context) - len(PROMPT)
        return [right[i] if luck[i] else (right[i] + 1) % 200 for i in range(place, min(place + number, len(right)))]

    return ScriptedDrafter(script)


def main(folder: Path) -> None:
    """Measure, print, and write results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"llama_cpp": library.build(), "devices": [str(device) for device in devices()]}
    with tempfile.TemporaryDirectory() as models:
        path = Path(models) / "model.gguf"
        dense(path)
        with Engine(path, threads=4, max_rows=WIDTHS) as target:
            target.allocate(2048)
            seconds = library.compute(
                target.interrupt, lambda: measure(target, WIDTHS, seconds=8.0, clock=time.perf_counter)
            )
            results["pass_milliseconds"] = {n: round(1000 * value, 3) for n, value in seconds.items()}
            right, plain, overhead = decode(target, FixedLength([], 0, time.perf_counter))
            results["plain"] = {"tokens_per_second": 1 / plain, "overhead_milliseconds": 1000 * overhead}
            for share in SHARES:
                build: dict[str, Callable[[], Controller]] = {
                    "fixed 4": lambda share=share: FixedLength([drafter(right, share)], 4, time.perf_counter),
                    "auto": lambda share=share: Adaptive(
                        [drafter(right, share)],
                        Prices(PassCosts(seconds), {}),
                        Acceptance(PRIORS),
                        time.perf_counter,
                        max_draft=8,
                    ),
                }
                for name, make in build.items():
                    said, per_token, overhead = decode(target, make())
                    parted = next((i for i, (a, b) in enumerate(zip(said, right, strict=True)) if a != b), None)
                    results[f"{name}, {share:.0%} right"] = {
                        "speedup": plain / per_token,
                        "tokens_per_second": 1 / per_token,
                        "overhead_milliseconds": 1000 * overhead,
                        "parted_at": parted,
                    }
    text = json.dumps(results, indent=1)
    print(text)
    (folder / "results.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gpu-results"))
