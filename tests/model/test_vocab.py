"""Vocabularies of real files, and which pairs fit."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from specd.llama import pairing
from specd.llama.engine import Engine
from specd.llama.pairing import compare_vocabularies, pair, too_large
from specd.llama.vocab import TextDecoder
from tests.model.conftest import open_engine

TEXT = "Grüße, 世界! 👩‍👩‍👧 — naïve café\n\tdef f(x):\n\t\treturn x ** 2  # ∑\n"


@pytest.fixture(scope="module")
def qwen(engines: ExitStack) -> tuple[Engine, Engine]:
    return (
        engines.enter_context(open_engine("qwen2.5-coder-1.5b", n_ctx=256)),
        engines.enter_context(open_engine("qwen2.5-coder-0.5b", n_ctx=256)),
    )


@pytest.fixture(scope="module")
def gemma(engines: ExitStack) -> Iterator[Engine]:
    return engines.enter_context(open_engine("gemma3-270m", n_ctx=256))  # type: ignore[return-value]


def test_text_survives_tokens_one_by_one(smollm2: Engine, gemma: Engine, qwen: tuple[Engine, Engine]) -> None:
    for engine in (smollm2, gemma, *qwen):
        tokens = engine.vocabulary.tokenize(TEXT, add_special=False, parse_special=False)
        decoder = TextDecoder(engine.vocabulary)
        pieces = [decoder.decode(tokens[i : i + 1]) for i in range(len(tokens))]
        assert "".join(pieces) + decoder.flush() == TEXT
        assert "\ufffd" not in "".join(pieces)  # no half character ever leaves


def test_an_unfinished_character_is_replaced_at_the_end(smollm2: Engine) -> None:
    tokens = smollm2.vocabulary.tokenize("👩", add_special=False, parse_special=False)
    decoder = TextDecoder(smollm2.vocabulary)
    assert decoder.decode(tokens[:-1]) == ""
    assert decoder.flush() == "\ufffd"


def test_end_tokens_are_several_and_write_nothing(qwen: tuple[Engine, Engine]) -> None:
    vocabulary = qwen[0].vocabulary
    ends = [token for token in range(151_600, vocabulary.size) if vocabulary.is_end(token)]
    assert len(ends) >= 2
    assert vocabulary.eos in ends
    assert {vocabulary.piece(token) for token in ends} == {b""}
    assert not vocabulary.is_end(100)


def test_control_strings_are_tokens_only_when_asked(qwen: tuple[Engine, Engine]) -> None:
    vocabulary = qwen[0].vocabulary
    assert len(vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)) == 1
    assert len(vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=False)) > 1


def test_bos_where_the_model_wants_one(gemma: Engine, smollm2: Engine) -> None:
    with_bos = gemma.vocabulary.tokenize("a", add_special=True, parse_special=False)
    assert gemma.vocabulary.adds_bos
    assert with_bos.tolist().count(gemma.vocabulary.bos) == 1
    assert not smollm2.vocabulary.adds_bos


def test_a_text_with_a_lone_surrogate_or_a_nul_does_no_harm(smollm2: Engine) -> None:
    for text in ("a\udcffb", "a\0b"):
        assert len(smollm2.vocabulary.tokenize(text, add_special=False, parse_special=False)) > 1


def test_the_default_pair_fits(qwen: tuple[Engine, Engine]) -> None:
    verdict = compare_vocabularies(qwen[0].vocabulary, qwen[1].vocabulary)
    assert verdict.reason is None
    assert verdict.num_shared == 151_936


class PaddedVocabulary:
    """A vocabulary with extra rows behind the real ones, as some models of one family have."""

    def __init__(self, real: object, extra: int) -> None:
        self._real, self.size = real, real.size + extra  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def is_ordinary(self, token: int) -> bool:
        return False

    def spelling(self, token: int) -> bytes:
        return b"[PAD]" if token >= self._real.size else self._real.spelling(token)  # type: ignore[attr-defined]


@pytest.mark.parametrize("extra", [1, 128, 400])
def test_padding_rows_do_not_matter(smollm2: Engine, extra: int) -> None:
    """User case 20."""
    real = smollm2.vocabulary
    padded = PaddedVocabulary(real, extra)
    for target, draft in ((real, padded), (padded, real)):
        verdict = compare_vocabularies(target, draft)  # type: ignore[arg-type]
        assert (verdict.num_shared, verdict.reason) == (real.size, None)


def test_other_vocabularies_are_refused_with_the_reason(
    smollm2: Engine, gemma: Engine, qwen: tuple[Engine, Engine]
) -> None:
    """User case 18."""
    reasons = {
        compare_vocabularies(qwen[0].vocabulary, smollm2.vocabulary).reason,
        compare_vocabularies(qwen[0].vocabulary, gemma.vocabulary).reason,
    }
    assert None not in reasons
    assert "their tokenizers are of different kinds" in reasons


def test_one_token_spelt_differently_is_found(smollm2: Engine) -> None:
    class Changed(PaddedVocabulary):
        def spelling(self, token: int) -> bytes:
            return b"changed" if token == 40_000 else super().spelling(token)

    reason = compare_vocabularies(smollm2.vocabulary, Changed(smollm2.vocabulary, 0)).reason  # type: ignore[arg-type]
    assert reason is not None
    assert "token 40000" in reason
    assert "changed" in reason


def test_the_verdict_is_kept_by_file(
    qwen: tuple[Engine, Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pair(*qwen, tmp_path)
    monkeypatch.setattr(pairing, "compare_vocabularies", None)
    assert pair(*qwen, tmp_path) == first
    (note,) = tmp_path.iterdir()
    assert json.loads(note.read_text()) == {"num_shared": 151_936, "reason": None, "is_cut": False, "others": []}


def test_a_draft_that_is_not_clearly_smaller_is_warned_of(qwen: tuple[Engine, Engine]) -> None:
    """User case 21."""
    target, draft = qwen
    assert too_large(target, draft) is None
    assert "swapped" in str(too_large(draft, target))
    assert "not clearly smaller" in str(too_large(target, target))


def test_pieces_fit_any_buffer(gemma: Engine) -> None:
    longest = max((gemma.vocabulary.piece(token) for token in range(0, gemma.n_vocab, 7)), key=len)
    assert len(longest) >= 16
    assert np.frombuffer(longest, np.uint8).size == len(longest)
