"""Prompt lookup: text that was seen before is proposed again."""

from collections.abc import Mapping

from specd.decoding.context import TokenBuffer, Tokens, common_prefix_length
from specd.decoding.protocol import Draft, Round

MATCH_LENGTHS = (12, 8, 6, 4, 3, 2)  # tokens, longest first
_TOKEN_BYTES = 4  # of an int32


class Lookup:
    """Proposes what followed the most recent occurrence of the longest known suffix of the context.

    For each match length an index maps an n-gram to the position behind its last occurrence. The index follows
    the context: tokens are added as they are committed (microseconds each) and taken back when the context
    changes, so any context may follow any other. Source: prompt lookup decoding (A. Saxena, 2023).
    """

    name = "lookup"

    def __init__(self) -> None:
        self._tokens = TokenBuffer()  # the context; of its n-grams, those that end before its end are indexed
        self._positions: dict[bytes, int] = {}  # n-gram (its length is the key's) -> position behind it
        self._replaced: list[list[int | None]] = []  # per position: what its n-grams pointed to before

    @property
    def notices(self) -> Mapping[str, str]:
        """None: lookup is always there."""
        return {}

    def prepare(self, context: Tokens) -> None:
        """Index the prompt."""
        self._follow(context)

    def propose(self, context: Tokens, max_tokens: int) -> Draft:
        """As many tokens as the match is long, at most `max_tokens`."""
        data = self._follow(context)
        if max_tokens > 0:
            for ngram in _ngrams(data, len(context)):
                position = self._positions.get(ngram)
                if position is not None:
                    num_tokens = min(len(ngram) // _TOKEN_BYTES, max_tokens)
                    return Draft.certain(self.name, self._copy(position, num_tokens))
        return Draft.certain(self.name, [])

    def observe(self, round_: Round) -> None:
        """Nothing to learn: `propose` sees the committed tokens in the context."""

    def _follow(self, context: Tokens) -> bytes:
        """Bring the index to the context; the bytes of the context's tokens."""
        known = common_prefix_length(self._tokens.view, context)
        if len(self._replaced) >= max(known, 1):  # n-grams that end at or behind the end of what is common
            self._take_back(known)
        self._tokens.truncate(known)
        self._tokens.extend(context[known:])
        data, positions = context.tobytes(), self._positions
        for position in range(len(self._replaced) + 1, len(context)):
            ngrams = _ngrams(data, position)
            self._replaced.append([positions.get(ngram) for ngram in ngrams])
            positions.update(dict.fromkeys(ngrams, position))
        return data

    def _take_back(self, known: int) -> None:
        data, positions = self._tokens.view.tobytes(), self._positions
        while len(self._replaced) >= max(known, 1):
            ngrams = _ngrams(data, len(self._replaced))
            for ngram, before in zip(ngrams, self._replaced.pop(), strict=True):
                if before is None:
                    del positions[ngram]
                else:
                    positions[ngram] = before

    def _copy(self, position: int, num_tokens: int) -> list[int]:
        """Copy from `position` on; past the end of the context, from the copy itself (a repeating text)."""
        tokens: list[int] = self._tokens.view[position : position + num_tokens].tolist()
        for i in range(num_tokens - len(tokens)):
            tokens.append(tokens[i])
        return tokens


def _ngrams(data: bytes, position: int) -> list[bytes]:
    """The n-grams that end at a position, as slices of the tokens' bytes (three times faster than of arrays)."""
    end = _TOKEN_BYTES * position
    return [data[end - _TOKEN_BYTES * n : end] for n in MATCH_LENGTHS if n <= position]
