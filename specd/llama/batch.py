"""Tokens on their way into llama.cpp."""

import ctypes
from typing import Any

import numpy as np

from specd.decoding.context import Tokens
from specd.llama.library import C


class Batch:
    """A llama_batch over numpy arrays that are filled in place (5 µs for any size)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._sequence_counts = np.ones(capacity, np.int32)
        self._wants_row = np.zeros(capacity, np.int8)
        self._range = np.arange(capacity, dtype=np.int32)
        self._pointers = (self._sequences.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        pointer, cast = ctypes.POINTER, ctypes.cast
        self._batch = C.llama_batch()
        self._batch.token = cast(self._tokens.ctypes.data, pointer(C.llama_token))
        self._batch.pos = cast(self._positions.ctypes.data, pointer(C.llama_pos))
        self._batch.n_seq_id = cast(self._sequence_counts.ctypes.data, pointer(ctypes.c_int32))
        self._batch.seq_id = cast(self._pointers.ctypes.data, pointer(pointer(C.llama_seq_id)))
        self._batch.logits = cast(self._wants_row.ctypes.data, pointer(ctypes.c_int8))

    def filled(self, tokens: Tokens, position: int, num_rows: int, *, num_unread: int = 0) -> Any:
        """The batch of `tokens` from `position` on, with rows of logits for the last `num_rows`, but for `num_unread`
        behind them."""
        n = len(tokens) - num_unread
        self._tokens[: len(tokens)] = tokens
        np.add(self._range[: len(tokens)], position, out=self._positions[: len(tokens)])
        self._wants_row[: n - num_rows] = 0
        self._wants_row[n - num_rows : n] = 1
        self._wants_row[n : n + num_unread] = 0
        self._batch.n_tokens = len(tokens)
        return self._batch
