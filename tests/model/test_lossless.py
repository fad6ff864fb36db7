"""On the real pair: greedy output with speculation is that of plain decoding."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pytest

from specd.chat.templates import Message, chat_tokens
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.context import Tokens, as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.loop import generate
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller, Drafter, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, sampler
from specd.decoding.statistics import DrafterCounts, Statistics
from specd.decoding.verify import RULES, RuleName
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.llama.engine import Engine
from tests.fakes import FakeClock, ScriptedDrafter
from tests.model.conftest import open_engine

NUM_TOKENS = 128
NEAR_TIE = 1.0  # logits
GREEDY = SamplingParams()

CODE = """
class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, count):
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if self.items.get(name, 0) < count:
            raise ValueError("not enough " + name)
        self.items[name] -= count
"""
REPORT = " ".join(
    f"On day {day} the crew of the lighthouse logged {day % 7 + 2} ships, {day % 5} of them at night, "
    f"with wind from the {('north', 'east', 'south', 'west')[day % 4]} and a sea state of {day % 3 + 1}."
    for day in range(1, 24)
)
PROMPTS = {
    "chat": "Why do cats purr?",
    "story": "Tell a short story about a clockmaker who finds a door in a clock.",
    "code edit": f"Add type hints to this class and return the whole class:\n{CODE}",
    "extraction": "Give name, age and city of each as JSON: Ann, 31, lives in Rome. Bo is 25, from Oslo. Cy, 40, Lima.",
    "long document": f"{REPORT}\n\nList the log of the days 3 to 8, a line each, in the same words.",
}


def tokens_of(engine: Engine, prompt: str) -> Tokens:
    template = engine.chat_template()
    assert template is not None
    return chat_tokens([Message("user", prompt)], template, engine.vocabulary)


def run(
    target: Engine,
    drafters: Sequence[Drafter],
    k: int,
    prompt: Tokens,
    max_tokens: int = NUM_TOKENS,
    *,
    stop: bool = False,
    params: SamplingParams = GREEDY,
    rule: RuleName = RuleName.BLOCK,
    randomness: Randomness | None = None,
    controller: Controller | None = None,
) -> tuple[list[int], Statistics]:
    """The tokens and what it took; end tokens do not stop it unless `stop`. controller: else a fixed length."""
    statistics = Statistics(time.perf_counter)
    tokens: list[int] = []
    is_end: Callable[[int], bool] = target.vocabulary.is_end if stop else lambda _: False
    for event in generate(
        target,
        controller or FixedLength(drafters, k, time.perf_counter),
        prompt,
        sampler(params),
        RULES[rule].verify,
        max_tokens=max_tokens,
        is_end=is_end,
        randomness=randomness or Randomness(0),
        clock=time.perf_counter,
    ):
        statistics.add(event)
        if isinstance(event, Round):
            tokens += event.tokens.tolist()
    return tokens, statistics


def draft_model(
    engine: Engine,
    params: SamplingParams = GREEDY,
    rule: RuleName = RuleName.BLOCK,
    randomness: Randomness | None = None,
) -> DraftModel:
    """For sampling, give it the randomness of the run: two with the same seed would not be independent."""
    draw, chance = RULES[rule].draw, randomness or Randomness(0)
    return DraftModel(
        engine, sampler(params), draw, num_shared=engine.n_vocab, randomness=chance, clock=time.perf_counter
    )


def eager(drafters: Sequence[Drafter]) -> Adaptive:
    """The controller where rows and drafts cost next to nothing: it drafts, stops and joins all the time."""
    prices = Prices(PassCosts({1: 0.02, 7: 0.022}), {"draft": PassCosts({1: 0.001})})
    return Adaptive(drafters, prices, Acceptance(PRIORS), FakeClock(), max_draft=6)


@pytest.fixture(scope="module")
def exact_pair(engines: ExitStack) -> Iterator[tuple[Engine, Engine]]:
    target = engines.enter_context(open_engine("qwen2.5-coder-1.5b", n_ctx=2048, max_rows=7, exact=True))
    draft = engines.enter_context(open_engine("qwen2.5-coder-0.5b", n_ctx=2048, max_rows=1))
    yield target, draft
    engines.close()


@pytest.mark.parametrize("name", PROMPTS)
def test_exact_mode_gives_the_ids_of_plain_decoding(exact_pair: tuple[Engine, Engine], name: str) -> None:
    """Off, lookup, the draft model at every length, and both: identical, bit for bit (user case 1)."""
    target, draft = exact_pair
    prompt = tokens_of(target, PROMPTS[name])
    if name == "long document":
        assert len(prompt) > 700
    plain, _ = run(target, [], 0, prompt)
    methods: dict[str, tuple[list[Drafter], int]] = {"lookup": ([Lookup()], 6)}
    methods |= {f"draft {k}": ([draft_model(draft)], k) for k in range(1, 7)}
    methods["hybrid"] = ([Lookup(), draft_model(draft)], 6)
    for method, (drafters, k) in methods.items():
        tokens, statistics = run(target, drafters, k, prompt)
        assert tokens == plain, f"{method} parted at token {first_difference(tokens, plain)}"
        assert statistics.longest_draft <= k
        assert statistics.total.num_draft_tokens > 0 or method == "lookup"
    tokens, statistics = run(target, [], 0, prompt, controller=eager([Lookup(), draft_model(draft)]))
    assert tokens == plain, f"the controller parted at token {first_difference(tokens, plain)}"
    assert {"draft", "lookup"} <= set(statistics.by_drafter)


def test_coupled_sampling_gives_the_same_ids_whoever_drafts(exact_pair: tuple[Engine, Engine]) -> None:
    """At temperature 0.8 in exact mode: the text depends on seed and target only."""
    target, draft = exact_pair
    prompt = tokens_of(target, PROMPTS["story"])
    params, rule = SamplingParams(temperature=0.8), RuleName.COUPLED
    for seed in (1, 2):
        noise = Randomness(seed)
        plain, _ = run(target, [], 0, prompt, params=params, rule=rule, randomness=noise)
        rng = np.random.default_rng(seed)
        guess = ScriptedDrafter(lambda context, n, rng=rng: rng.choice(context, n).tolist())  # type: ignore[misc]
        drafters: list[Drafter] = [Lookup(), draft_model(draft, params, rule, noise), guess]
        for drafter in drafters:
            tokens, statistics = run(target, [drafter], 4, prompt, params=params, rule=rule, randomness=noise)
            assert tokens == plain, f"{drafter.name} parted at token {first_difference(tokens, plain)}"
            assert statistics.total.num_draft_tokens > 0
        other_noise = Randomness(seed + 10)
        other, _ = run(target, [], 0, prompt, 32, params=params, rule=rule, randomness=other_noise)
        assert other != plain[:32]


def first_difference(a: list[int], b: list[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


@pytest.fixture(scope="module")
def fast_pair(engines: ExitStack) -> Iterator[tuple[Engine, Engine]]:
    engines.close()  # the exact pair, if it is still there
    target = engines.enter_context(open_engine("qwen2.5-coder-1.5b", n_ctx=1536, max_rows=7))
    draft = engines.enter_context(open_engine("qwen2.5-coder-0.5b", n_ctx=1536, max_rows=1))
    yield target, draft
    engines.close()


@pytest.mark.parametrize("name", PROMPTS)
def test_in_fast_mode_outputs_part_only_at_near_ties(
    fast_pair: tuple[Engine, Engine], name: str, record_property: Callable[[str, object], None]
) -> None:
    target, draft = fast_pair
    prompt = tokens_of(target, PROMPTS[name])
    plain, _ = run(target, [], 0, prompt, 64)
    for method, drafter in {"lookup": Lookup(), "draft": draft_model(draft)}.items():
        tokens, _ = run(target, [drafter], 4, prompt, 64)
        parted = first_difference(tokens, plain)
        if parted is None:
            continue
        context = np.concatenate([prompt, as_tokens(plain[:parted])])
        row = target.sync(context, num_rows=1)[0]
        gap = float(row[plain[parted]] - row[tokens[parted]])
        print(f"{name}, {method}: parted at token {parted}, where the top two are {gap:.3f} logits apart")
        record_property(f"{method} gap", gap)
        assert abs(gap) < NEAR_TIE


def test_a_file_drafting_for_itself_is_always_right_in_exact_mode() -> None:
    """User cases 4 and 17: over 200 tokens both caches stay the same, or acceptance would decay."""
    with (
        open_engine("smollm2-135m", max_rows=5, exact=True) as target,
        open_engine("smollm2-135m", max_rows=2, exact=True) as draft,
    ):
        tokens, statistics = run(target, [draft_model(draft)], 4, tokens_of(target, PROMPTS["story"]), 200)
    total = statistics.total
    assert len(tokens) == 200
    assert total.acceptance_rate == 1.0
    assert total.accepted_per_position == total.draft_per_position
    assert total.num_accepted_tokens + statistics.num_rounds == 200


def test_a_file_drafting_for_itself_keeps_its_acceptance_in_fast_mode() -> None:
    """The same over 200 tokens of three texts, but for near-ties that batches of another shape round otherwise."""
    with open_engine("smollm2-135m", max_rows=5) as target, open_engine("smollm2-135m", max_rows=1) as draft:
        halves = [DrafterCounts(), DrafterCounts()]
        for prompt in ("story", "chat", "code edit"):
            context = tokens_of(target, PROMPTS[prompt])
            for half in halves:
                tokens, statistics = run(target, [draft_model(draft)], 4, context, 100)
                half.num_draft_tokens += statistics.total.num_draft_tokens
                half.num_accepted_tokens += statistics.total.num_accepted_tokens
                context = np.concatenate([context, as_tokens(tokens)])
        rates = [half.num_accepted_tokens / half.num_draft_tokens for half in halves]
    assert np.mean(rates) >= 0.97
    assert rates[1] >= rates[0] - 0.05  # flat: a cache that slips decays


def test_a_draft_with_a_smaller_context_yields_and_the_target_goes_on(fast_pair: tuple[Engine, Engine]) -> None:
    """User case 27."""
    target, _ = fast_pair
    prompt = tokens_of(target, PROMPTS["story"])[:40]
    with open_engine("qwen2.5-coder-0.5b", n_ctx=256, max_rows=1) as draft:
        long = np.tile(prompt, 6)[:230]
        drafter = draft_model(draft)
        tokens, statistics = run(target, [drafter], 4, long, 60)
    assert len(tokens) == 60
    assert statistics.total.num_draft_tokens > 0
    assert "context of 256 tokens is full" in drafter.notices["draft"]


def test_copying_takes_far_fewer_passes_than_tokens(fast_pair: tuple[Engine, Engine]) -> None:
    """User case 13: lookup on a copy task."""
    target, _ = fast_pair
    prompt = tokens_of(target, f"Repeat this code exactly, nothing else:\n```python{CODE}```")
    tokens, statistics = run(target, [Lookup()], 6, prompt, 100, stop=True)
    assert statistics.num_rounds < 0.4 * len(tokens)
