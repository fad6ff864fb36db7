"""`specd bench --check`: whether speculation changes what the model says here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specd.bench.check import NUM_IDS, UNFILTERED, Finding, Guess, Projection, check_greedy, check_sampled
from specd.bench.workloads import Workload
from specd.chat.templates import Message
from specd.cli.building import LoadedDraft, Plan, allocate, load_draft, load_target
from specd.cli.options import DEFAULT_RULE
from specd.cli.prompt import prompt_tokens
from specd.cli.signals import stopping
from specd.decoding.context import Tokens
from specd.decoding.protocol import Drafter
from specd.decoding.protocol import Engine as AnyEngine
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import greedy
from specd.decoding.verify import RULES, Draw, draw_most_likely
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.models.store import Store
from specd.terminal.console import silent, warn
from specd.terminal.progress import TransferProgress

if TYPE_CHECKING:
    from specd.llama.engine import Engine

NUM_PROMPTS = 4
_CHECKED_TOKENS = 48  # of each greedy answer


def check(plan: Plan, workloads: Sequence[Workload], max_tokens: int | None) -> int:
    """Print each finding as it comes; 1 when something differs."""
    from specd.llama.library import Interrupt, compute

    store, progress, interrupt = Store(), TransferProgress(sys.stderr), Interrupt()
    plan = replace(plan, exact=True, settings=replace(plan.settings, draft_max=None))
    with ExitStack() as stack:
        target = stack.enter_context(load_target(plan, store, progress, interrupt))
        prompts = {
            each.name: prompt_tokens(
                target, [Message("user", each.turns[0])], plan.target.name, warn if i == 0 else silent
            )
            for i, each in enumerate(workloads[:NUM_PROMPTS])
        }
        allocate(target, plan, max(map(len, prompts.values())) + (max_tokens or _CHECKED_TOKENS))
        draft = load_draft(target, plan, store, progress, interrupt, warn)
        if draft.engine is not None:
            stack.callback(draft.engine.close)
        findings = []

        def run() -> None:
            for finding in _findings(target, draft, prompts, max_tokens or _CHECKED_TOKENS):
                print(f"{'ok    ' if finding.passed else 'FAILED'}  {finding.name}: {finding.detail}.", flush=True)
                findings.append(finding)

        with stopping(interrupt):
            compute(interrupt, run)
    failed = sum(not finding.passed for finding in findings)
    if failed:
        print(f"{failed} of {len(findings)} checks failed: on this machine, speculation changes what these models say.")
        return 1
    print(
        f"All {len(findings)} checks passed. Greedy answers in exact mode are the same with and without speculation; "
        "sampled ones follow the target's own distribution, as far as a test can tell."
    )
    return 0


def _findings(target: Engine, draft: LoadedDraft, prompts: Mapping[str, Tokens], max_tokens: int) -> Iterator[Finding]:
    clock, chance = time.perf_counter, Randomness(0)
    drafters: dict[str, Callable[[], Drafter]] = {
        "lookup": Lookup,
        "guess": partial(Guess, target.n_vocab, draw_most_likely, chance),
    }
    if draft.model is not None:
        drafters["draft"] = partial(
            DraftModel,
            draft.model,
            greedy,
            draw_most_likely,
            num_shared=draft.num_shared,
            randomness=chance,
            clock=clock,
        )
    rule = RULES[DEFAULT_RULE]
    is_end = target.vocabulary.is_end
    yield from check_greedy(target, drafters, prompts, max_tokens=max_tokens, is_end=is_end, clock=clock, rule=rule)
    yield from check_sampled(
        target, draft.model, partial(_sampling, draft.model), next(iter(prompts.values())), clock=clock
    )


def _sampling(draft: AnyEngine | None, model: Projection, draw: Draw, randomness: Randomness) -> Drafter:
    """A drafter on the short vocabulary: the draft model; without one, a guess."""
    if draft is None:
        return Guess(model.n_vocab, draw, randomness)
    return DraftModel(model, UNFILTERED, draw, num_shared=NUM_IDS, randomness=randomness, clock=time.perf_counter)
