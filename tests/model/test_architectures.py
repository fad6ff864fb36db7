"""Memories of all kinds: what is said does not depend on what is drafted, on real files and generated ones."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.loop import generate
from specd.decoding.protocol import Drafter, Round
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import SamplingParams, sampler
from specd.decoding.verify import RULES, draw_most_likely
from specd.drafting.lookup import Lookup
from specd.drafting.model import DraftModel
from specd.errors import CannotRewind
from specd.llama.engine import Engine
from specd.models.gguf import read_header
from tests.fakes import ScriptedDrafter
from tests.model.conftest import path_of
from tests.model.test_lossless import REPORT
from tests.model.tiny import ARCHITECTURES

GEMMA = "gemma3-270m"  # a window of 512 tokens
LENGTH = 48
RECURRENT = ("mamba", "hybrid")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file per architecture, and one with other weights, which drafts wrongly."""
    folder = tmp_path_factory.mktemp("tiny")
    files = {GEMMA: path_of(GEMMA)}
    for name, build in ARCHITECTURES.items():
        for seed, suffix in ((0, ""), (1, " other")):
            files[name + suffix] = folder / f"{name}{suffix}.gguf"
            build(files[name + suffix], seed)
    return files


def engine(path: Path, *, exact: bool = False, max_rows: int = 6) -> Engine:
    engine = Engine(path, threads=1, max_rows=max_rows, exact=exact)
    engine.allocate(1024)
    return engine


def prompt_of(name: str) -> list[int]:
    """Across the window's edge, with text that comes again."""
    if name == GEMMA:
        with Engine(path_of(GEMMA), threads=1, max_rows=1) as model:
            tokens = model.vocabulary.tokenize(REPORT, add_special=True, parse_special=False)
        return [int(token) for token in tokens[:490]]
    rng = np.random.default_rng(3)
    part = rng.integers(10, 250, 25).tolist()
    return [2, *part, *part, *part[:20]]


def plain(path: Path, prompt: list[int], *, exact: bool = False) -> list[int]:
    """Greedy, token by token, without any of the loop."""
    context = list(prompt)
    with engine(path, exact=exact) as target:
        target.sync(as_tokens(prompt[:-1]))
        for _ in range(LENGTH):
            context.append(int(target.advance(as_tokens(context[-1:]))[0].argmax()))
    return context[len(prompt) :]


def scripted(prompt: list[int], right: list[int], n_vocab: int) -> ScriptedDrafter:
    """Right for as many tokens as the place in the text says, then wrong."""

    def script(context: list[int], _: int) -> list[int]:
        place = len(context) - len(prompt)
        following = [*right[place : place + 6], *[5] * 6][:6]
        wrong = place % 7
        return [*following[:wrong], *[(token + 1) % n_vocab for token in following[wrong:]]]

    return ScriptedDrafter(script)


def drafters(files: dict[str, Path], name: str, right: list[int]) -> Iterator[tuple[str, Drafter]]:
    """One after the other, as each may own an engine."""
    greedy = sampler(SamplingParams())
    yield "lookup", Lookup()
    yield "partly right", scripted(prompt_of(name), right, 260)
    for draft in (name, f"{name} other") if name != GEMMA else (name,):
        with engine(files[draft], max_rows=1) as own:
            yield (
                draft,
                DraftModel(
                    own, greedy, draw_most_likely, num_shared=own.n_vocab, randomness=Randomness(0), clock=lambda: 0.0
                ),
            )


def said(target: Engine, drafter: Drafter | None, prompt: list[int], k: int) -> tuple[list[int], list[Round]]:
    events = generate(
        target,
        FixedLength([drafter] if drafter is not None else [], k, lambda: 0.0, plain_every=5),
        prompt,
        sampler(SamplingParams()),
        RULES["match"].verify,
        max_tokens=LENGTH,
        is_end=lambda token: False,
        randomness=Randomness(0),
        clock=lambda: 0.0,
    )
    rounds = [event for event in events if isinstance(event, Round)]
    return [token for round_ in rounds for token in round_.tokens.tolist()], rounds


@pytest.mark.parametrize(
    ("name", "exact"),
    [*((name, False) for name in ARCHITECTURES), *((name, True) for name in (*ARCHITECTURES, GEMMA))],
)
def test_greedy_text_is_that_of_plain_decoding(name: str, exact: bool, files: dict[str, Path]) -> None:
    """User case 24."""
    if exact and name in RECURRENT:
        with pytest.raises(CannotRewind, match="Exact mode needs a memory that can go back"):
            engine(files[name], exact=True)
        return
    prompt = prompt_of(name)
    right = plain(files[name], prompt, exact=exact)
    assert len(set(right)) > 5
    with engine(files[name], exact=exact) as target:
        assert said(target, None, prompt, 0)[0] == right
        for drafter_name, drafter in drafters(files, name, right):
            for k in (1, 4, 5):
                text, rounds = said(target, drafter, prompt, k)
                assert text == right, f"{drafter_name}, {k}"
            if drafter_name == name:  # the same file
                assert sum(round_.num_accepted for round_ in rounds) > 0.9 * sum(len(round_.draft) for round_ in rounds)
            if drafter_name == "partly right":
                assert sum(round_.num_accepted for round_ in rounds) > 10
                assert sum(round_.num_rejected for round_ in rounds) > 10


@pytest.mark.parametrize("name", RECURRENT)
def test_later_turns_and_shorter_prompts_work(name: str, files: dict[str, Path]) -> None:
    """User case 25."""
    prompt = prompt_of(name)
    with engine(files[name]) as target:
        first, _ = said(target, Lookup(), prompt, 4)
        second = [*prompt, *first, 7, 8, 9]
        assert said(target, scripted(second, first, 260), second, 4)[0] == plain(files[name], second)
        shorter = prompt[:30]
        assert said(target, Lookup(), shorter, 4)[0] == plain(files[name], shorter)
        assert said(target, Lookup(), prompt, 4)[0] == first


@pytest.mark.parametrize("name", RECURRENT)
def test_rows_after_going_back_are_those_of_a_fresh_memory(name: str, files: dict[str, Path]) -> None:
    rng = np.random.default_rng(5)
    tokens = rng.integers(10, 250, 200).astype(np.int32)
    with engine(files[name]) as target, engine(files[name]) as fresh:
        target.sync(tokens[:20])
        for _ in range(40):
            length = int(rng.integers(max(1, len(target) - 12), len(target) + 1))
            if rng.random() < 0.3:  # in two steps
                target.rollback(int(rng.integers(length, len(target) + 1)))
            target.rollback(length)
            if rng.random() < 0.7:
                target.checkpoint()
            number = int(rng.integers(1, 6))
            rows = target.advance(tokens[length : length + number]).copy()
            fresh.allocate(1024)
            expected = fresh.sync(tokens[: length + number], num_rows=number)
            assert np.abs(rows - expected).max() < 1e-3
            assert len(target) == length + number


def test_headers_say_which_memory_is_a_state(files: dict[str, Path]) -> None:
    assert [name for name in ARCHITECTURES if read_header(files[name]).is_recurrent] == list(RECURRENT)
