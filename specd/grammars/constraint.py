"""A grammar over the tokens of a model, by llguidance."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specd.decoding.constraint import Mask
from specd.decoding.context import Tokens, common_prefix_length
from specd.errors import EngineError

_MOST_FORCED = 64  # tokens that are looked for at once


class Vocabulary(Protocol):
    """What a grammar needs of a model's vocabulary."""

    eos: int

    def pieces(self) -> list[bytes]:
        """What each token stands for in a text; nothing for control tokens."""

    def ends(self) -> list[int]:
        """The tokens that end an answer."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Tokens of a text."""


class Grammar:
    """A grammar compiled for a vocabulary (about a second for 150 000 tokens); gives a constraint per answer.

    source:      in llguidance's own format
    vocabulary:  must outlive this

    Raises EngineError for a model without end token, and when the grammar is too large.
    """

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self._ends = vocabulary.ends()
        if not self._ends:
            raise EngineError("This model has no token that ends an answer, so no grammar can.")
        tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary, self._ends)), eos_token=self._ends, slices=LLTokenizer.json_slices()
        )
        self._n_vocab = tokenizer.vocab_size
        self._matcher = LLMatcher(tokenizer, source, log_level=0)
        _check(self._matcher)

    def constraint(self, start: int) -> "GrammarConstraint":
        """For an answer that begins behind `start` tokens of prompt."""
        return GrammarConstraint(self._matcher.deep_copy(), self._n_vocab, self._ends[0], start)


class GrammarConstraint:
    """Follows the context it is asked about: tokens are taken in and back as it changes (microseconds each)."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, end: int, start: int) -> None:
        self._matcher, self._n_vocab, self._end, self._start = matcher, n_vocab, end, start
        self._held = np.empty(0, np.int32)
        self._bits = np.zeros((n_vocab + 31) // 32, np.uint32)

    def allowed(self, context: Tokens) -> Mask | None:
        """The tokens that may follow; None when the context itself breaks the grammar."""
        if not self._follow(context):
            return None
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        _check(self._matcher)
        return np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little").view(np.bool_)

    def permits(self, context: Tokens, token: int) -> bool:
        """Whether one token may follow."""
        return self._follow(context) and self._matcher.validate_tokens([token]) == 1

    def forced(self, context: Tokens) -> list[int]:
        """Tokens that must follow; with the end token where nothing but an end may come."""
        if not self._follow(context):
            return []
        if self._matcher.is_stopped():
            return [] if len(self._held) and self._is_over(context) else [self._end]
        tokens = self._matcher.compute_ff_tokens()[:_MOST_FORCED]
        _check(self._matcher)
        return tokens

    def _is_over(self, context: Tokens) -> bool:
        return bool(context[-1] == self._end)

    def _follow(self, context: Tokens) -> bool:
        """Whether the grammar accepts the context."""
        wanted = context[self._start :]
        kept = common_prefix_length(self._held, wanted)
        if kept < len(self._held):
            self._matcher.rollback(len(self._held) - kept)
        taken = self._matcher.try_consume_tokens(wanted[kept:].tolist()) if kept < len(wanted) else 0
        self._held = wanted[: kept + taken].copy()
        _check(self._matcher)
        return len(self._held) == len(wanted)


class _Tokens:
    """A vocabulary as llguidance wants it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._pieces = vocabulary.pieces()
        self._longest: dict[bytes, int] = {}
        self.eos_token_id = ends[0]
        self.tokens = [piece or b"<control %d>" % i for i, piece in enumerate(self._pieces)]
        self.special_token_ids = [i for i, piece in enumerate(self._pieces) if not piece or i in ends]

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a part of a text. Vocabularies that put a blank in front of a text are asked for a text that
        begins otherwise; what they still change is spelled with the longest tokens there are."""
        data = text.encode() if isinstance(text, str) else text
        for before in ("", "\n"):
            tokens = self._vocabulary.tokenize(
                before + data.decode("utf-8", "replace"), add_special=False, parse_special=False
            ).tolist()
            skipped = next((i for i in range(len(tokens) + 1) if self._spelled(tokens[i:]) == data), None)
            if skipped is not None:
                return [int(token) for token in tokens[skipped:]]
        return self._with_longest(data)

    def _spelled(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._pieces[token] for token in tokens)

    def _with_longest(self, text: bytes) -> list[int]:
        if not self._longest:
            self._longest = {piece: i for i, piece in reversed(list(enumerate(self._pieces))) if piece}
        tokens, start, limit = [], 0, max(map(len, self._longest), default=0)
        while start < len(text):
            for end in range(min(start + limit, len(text)), start, -1):
                if (token := self._longest.get(text[start:end])) is not None:
                    tokens.append(token)
                    start = end
                    break
            else:
                return []
        return tokens


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise EngineError(f"The grammar cannot be followed: {matcher.get_error().splitlines()[0]}.")
