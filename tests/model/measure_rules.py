"""Tokens per round of the four verification rules, on prompts of a file in Spec-Bench's form.

python -m tests.model.measure_rules FILE [PROMPTS [TOKENS]]

All rules are measured at the same places: the text is sampled from the target, and at the start of each of its rounds
every rule drafts and verifies there. Rules that draw drafts alike share the draft; their coins are tossed many times.
So the difference between rules shows in a few thousand tokens; it does not depend on the machine's speed.
"""

import json
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np

from specd.decoding.context import as_tokens
from specd.decoding.protocol import Draft
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, distributions_along, sampler
from specd.decoding.verify import RULES, RuleName
from specd.llama.engine import Engine
from tests.model.conftest import open_engine
from tests.model.test_lossless import draft_model, tokens_of

NUM_DRAFT = 4
TEMPERATURES = (0.7, 1.0)
LONGEST = 800  # tokens of a prompt
TOSSES = 50
SHARED_DRAFTS = [(RuleName.REJECTION, RuleName.BLOCK), (RuleName.COUPLED,), (RuleName.MATCH,)]
Rounds = dict[tuple[float, RuleName], list[float]]


def measure(target: Engine, draft: Engine, prompt: np.ndarray, temperature: float, num_tokens: int, out: Rounds) -> int:
    """Add the tokens per round of each rule along one text; how many tokens the text got."""
    params = SamplingParams(temperature=temperature)
    to_distribution = sampler(params)
    randomness = Randomness(len(prompt))
    drafters = {rules: draft_model(draft, params, rules[0], randomness) for rules in SHARED_DRAFTS}
    context = prompt
    while len(context) < len(prompt) + num_tokens and not target.vocabulary.is_end(int(context[-1])):
        following: list[int] = []
        for rules, drafter in drafters.items():
            proposal = Draft.of(list(islice(drafter.propose(context), NUM_DRAFT)))
            history = np.concatenate([context, proposal.tokens])
            logits = target.sync(history, num_rows=NUM_DRAFT + 1)
            rows = list(distributions_along(logits, history, to_distribution))
            for rule in rules:
                tosses = 1 if rule is RuleName.COUPLED else TOSSES  # its noise is that of the draft
                verdicts = [RULES[rule].verify(proposal, iter(rows), len(context), randomness) for _ in range(tosses)]
                out[temperature, rule].append(float(np.mean([verdict.num_accepted + 1 for verdict in verdicts])))
                if rule is RuleName.BLOCK:
                    following = [*proposal.tokens[: verdicts[0].num_accepted].tolist(), verdicts[0].next_token]
        context = np.concatenate([context, as_tokens(following)])
    return len(context) - len(prompt)


def main(file: Path, num_prompts: int = 26, num_tokens: int = 100) -> None:
    """Measure and print, also while it runs."""
    questions = [json.loads(line) for line in file.read_text().splitlines()]
    rounds: Rounds = defaultdict(list)
    lengths = dict.fromkeys(TEMPERATURES, 0)
    with (
        open_engine("qwen2.5-coder-1.5b", n_ctx=2048, max_rows=NUM_DRAFT + 1) as target,
        open_engine("qwen2.5-coder-0.5b", n_ctx=2048, max_rows=1) as draft,
    ):
        for index in np.linspace(0, len(questions) - 1, num_prompts).astype(int):
            prompt = tokens_of(target, questions[index]["turns"][0])[-LONGEST:]
            for temperature in TEMPERATURES:
                lengths[temperature] += measure(target, draft, prompt, temperature, num_tokens, rounds)
                report(temperature, lengths[temperature], rounds)


def report(temperature: float, length: int, rounds: Rounds) -> None:
    """Tokens per round of each rule, and its gain over `match` with the standard error of the paired difference."""
    baseline = np.array(rounds[temperature, RuleName.MATCH])
    cells = []
    for rule in RuleName:
        values = np.array(rounds[temperature, rule])
        gain, noise = values.mean() / baseline.mean() - 1, (values - baseline).std() / len(values) ** 0.5
        cells.append(f"{rule} {values.mean():.2f} ({gain:+.1%} ± {noise / baseline.mean():.1%})")
    print(f"temperature {temperature}, {length} tokens, {len(baseline)} rounds: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
