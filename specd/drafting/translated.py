"""A model with a smaller vocabulary, in the ids of the large one that it was cut out of.

Drafted ids are the large vocabulary's own. A token of the context that the small one lacks is read as its pieces: what
byte-pair encoding (Sennrich et al. 2016) had made of it before the merges that were cut, which depends on the token
alone.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, as_tokens, common_prefix_length
from specd.decoding.protocol import Engine
from specd.decoding.sampling import Logits

ABSENT = -1e9  # logit; a number, as a grammar may allow nothing else, and any of these then is as good a guess
_FILLER = 0  # is read in place of a token that cannot be spelled: a draft that is wrong costs little


class Translated:
    """An engine that takes and gives ids of the large vocabulary; tokens that the small one lacks are never likely.

    engine:    speaks the small vocabulary. It may be given another context, or be emptied, at any time
    same:      ids below mean the same in both
    others:    what the small one's further ids are in the large one, ascending
    n_vocab:   size of the large one
    spelling:  of a token of the large one, a character per byte
    ids:       of the small one, by spelling
    """

    def __init__(
        self,
        engine: Engine,
        same: int,
        others: Sequence[int],
        n_vocab: int,
        spelling: Callable[[int], str],
        ids: Mapping[str, int],
    ) -> None:
        self._engine = engine
        self._same, self._others = same, as_tokens(others)
        self.n_vocab = n_vocab
        self._moved = {token: same + number for number, token in enumerate(others)}
        self._spelling, self._ids = spelling, ids
        self._split = lru_cache(maxsize=None)(self._split_anew)
        self._held = TokenBuffer()
        self._read = TokenBuffer()  # the same as the engine reads it
        self._ends = [0]  # of what is read behind each number of tokens
        self._rows: dict[int, Logits] = {}

    @property
    def n_ctx(self) -> int:
        """Tokens that are read as those held now are."""
        return self._engine.n_ctx - (len(self._read) - len(self._held))

    @property
    def max_rows(self) -> int:
        """As the engine's."""
        return self._engine.max_rows

    @property
    def batch_size(self) -> int:
        """As the engine's."""
        return self._engine.batch_size

    def __len__(self) -> int:
        return len(self._held)

    def matching(self, tokens: Tokens) -> int:
        """As an engine's."""
        return common_prefix_length(self._held.view, tokens)

    def sync(self, tokens: Tokens, num_rows: int = 0) -> Logits:
        """As an engine's."""
        kept = min(self.matching(tokens), len(tokens) - num_rows)
        self.rollback(kept)
        return self._append(tokens[kept:], num_rows)

    def advance(self, tokens: Tokens) -> Logits:
        """As an engine's."""
        return self._append(tokens, len(tokens))

    def checkpoint(self) -> None:
        """As an engine's."""
        self._engine.checkpoint()

    def rollback(self, length: int) -> None:
        """As an engine's."""
        self._held.truncate(length)
        self._read.truncate(self._ends[length])
        del self._ends[length + 1 :]
        if len(self._engine) > len(self._read):
            self._engine.rollback(len(self._read))

    def _append(self, tokens: Tokens, num_rows: int) -> Logits:
        pieces = [self._pieces(token) for token in tokens.tolist()]
        ends = np.cumsum([len(each) for each in pieces])
        rows = self._buffer(num_rows)
        done, first = 0, len(tokens) - num_rows
        if not num_rows:
            self._take_in(tokens, pieces, 0)
        for start in range(first, len(tokens)):
            if start < done:
                continue
            stop = start + int(np.searchsorted(ends[start:], ends[start] + self.max_rows))
            found = self._take_in(tokens[done:stop], pieces[done:stop], int(ends[stop - 1] - ends[start]) + 1)
            chosen = found[ends[start:stop] - ends[start]]
            rows[start - first : stop - first, : self._same] = chosen[:, : self._same]
            rows[start - first : stop - first, self._others] = chosen[:, self._same : self._same + len(self._others)]
            done = stop
        return rows

    def _take_in(self, tokens: Tokens, pieces: Sequence[tuple[int, ...]], num_rows: int) -> Logits:
        """The engine's rows after the last pieces."""
        flat = as_tokens(list(chain.from_iterable(pieces)))
        rows = self._engine.sync(self._read.followed_by(flat), num_rows)
        self._read.extend(flat)
        self._held.extend(tokens)
        for each in pieces:
            self._ends.append(self._ends[-1] + len(each))
        return rows

    def _buffer(self, num_rows: int) -> Logits:
        """Rows in which what the small vocabulary lacks is ABSENT; one for each number, used again."""
        if (rows := self._rows.get(num_rows)) is None:
            rows = self._rows[num_rows] = np.full((num_rows, self.n_vocab), ABSENT, np.float32)
        return rows

    def _pieces(self, token: int) -> tuple[int, ...]:
        return (token,) if token < self._same else self._split(token)

    def _split_anew(self, token: int) -> tuple[int, ...]:
        """Join what has the lowest id, as long as anything can be joined: ids are in the order of merges."""
        if token in self._moved:
            return (self._moved[token],)
        parts = list(self._spelling(token))
        while True:
            joined = [self._ids.get(left + right, self._same) for left, right in pairwise(parts)]
            lowest = min(joined, default=self._same)
            if lowest >= self._same:
                return tuple(self._ids.get(part, _FILLER) for part in parts) or (_FILLER,)
            place = joined.index(lowest)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
