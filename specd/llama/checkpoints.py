"""Saved states of a memory that cannot go back by itself: recurrent layers keep a state that each token changes."""

import ctypes
from typing import Any

from specd.llama.library import C

MOST = 4  # states that are kept: of the last prompts, and of the draft in the making
_PARTIAL_ONLY = 1  # the state of recurrent layers; what attention keeps is cut instead


class Checkpoints:
    """States by the number of tokens that they stand for, the latest few.

    Source: the recipe of llama.cpp's own server for such models.

    context:  a llama_context pointer, valid as long as this
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._states: dict[int, ctypes.Array[ctypes.c_uint8]] = {}

    def take(self, length: int) -> None:
        """Keep the state as it is now, after `length` tokens."""
        if length in self._states or not length:
            return
        size = C.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL_ONLY)
        state = (ctypes.c_uint8 * size)()
        if size and C.llama_state_seq_get_data_ext(self._context, state, size, 0, _PARTIAL_ONLY) == size:
            self._states[length] = state
            for old in list(self._states)[:-MOST]:
                del self._states[old]

    def restore(self, length: int) -> int:
        """Go back to the last state of at most `length` tokens; for how many it stands. 0: there was none, and the
        memory is empty now."""
        memory = C.llama_get_memory(self._context)
        for kept in sorted(self._states, reverse=True):
            if kept > length:
                del self._states[kept]
                continue
            state = self._states[kept]
            done = C.llama_state_seq_set_data_ext(self._context, state, len(state), 0, _PARTIAL_ONLY)
            if done == len(state) and C.llama_memory_seq_rm(memory, 0, kept, -1):
                return kept
            del self._states[kept]
        C.llama_memory_clear(memory, True)
        return 0
