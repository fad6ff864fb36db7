"""A model's vocabulary: text to tokens and back."""

import codecs
import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from specd.decoding.context import Tokens
from specd.errors import EngineError
from specd.llama.library import C


class Vocabulary:
    """Valid as long as the model it was read from.

    model:  a llama_model pointer
    """

    def __init__(self, model: Any) -> None:
        self._vocab = C.llama_model_get_vocab(model)
        self.size: int = C.llama_vocab_n_tokens(self._vocab)
        self.kind: int = C.llama_vocab_type(self._vocab)
        self.bos: int = C.llama_vocab_bos(self._vocab)  # -1: none
        self.eos: int = C.llama_vocab_eos(self._vocab)
        self.eot: int = C.llama_vocab_eot(self._vocab)  # of a turn; -1: none
        self.adds_bos: bool = C.llama_vocab_get_add_bos(self._vocab)
        self.is_end = lru_cache(maxsize=None)(self._is_end)
        self.piece = lru_cache(maxsize=None)(self._piece)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Tokens of a text.

        add_special:    with BOS (and the like) where the model wants it; the text must not start with it
        parse_special:  control tokens written out in the text become control tokens
        """
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        tokens = np.empty(capacity, np.int32)
        n = C.llama_tokenize(
            self._vocab,
            data,
            len(data),
            ctypes.cast(tokens.ctypes.data, ctypes.POINTER(C.llama_token)),
            capacity,
            add_special,
            parse_special,
        )
        if n < 0:
            raise EngineError(f"llama.cpp could not tokenise a text of {len(data)} bytes.")
        return tokens[:n].copy()

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens too; empty for -1."""
        return self.spelling(token).decode("utf-8", "replace") if token >= 0 else ""

    def spelling(self, token: int) -> bytes:
        """The token as the file spells it, in the tokenizer's own alphabet."""
        return bytes(C.llama_vocab_get_text(self._vocab, token) or b"")

    def is_ordinary(self, token: int) -> bool:
        """Whether the token stands for text that may come anywhere, rather than for control, or for nothing."""
        return bool(C.llama_vocab_get_attr(self._vocab, token) & C.LLAMA_TOKEN_ATTR_NORMAL)

    def pieces(self) -> list[bytes]:
        """What each token stands for in a text (0.1 s for 150 000 tokens); nothing for control tokens."""
        return [self._piece(token) for token in range(self.size)]

    def ends(self) -> list[int]:
        """All tokens that end a generation, the model's usual one first."""
        ends = [token for token in range(self.size) if self._is_end(token)]
        return sorted(ends, key=lambda token: (token not in (self.eot, self.eos), token != self.eot, token))

    def _is_end(self, token: int) -> bool:
        """Whether the token ends a generation (a model may have several)."""
        return bool(C.llama_vocab_is_eog(self._vocab, token))

    def _piece(self, token: int) -> bytes:
        """The bytes that a token stands for in a text; none for control tokens. May cut a character."""
        size = 128
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n


class TextDecoder:
    """Tokens to text as they come: characters that are spread over tokens wait until they are whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, tokens: Tokens) -> str:
        """The text that is certain now."""
        return self._utf8.decode(b"".join(self._vocabulary.piece(token) for token in tokens.tolist()))

    def flush(self) -> str:
        """What an unfinished character leaves: replacement characters, or nothing."""
        return self._utf8.decode(b"", final=True)
