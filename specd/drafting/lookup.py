"""Prompt lookup: text that was seen before is proposed again."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping

from specd.decoding.context import TokenBuffer, Tokens, common_prefix_length
from specd.decoding.protocol import Evidence, Proposal, Round

MATCH_LENGTHS = (16, 8, 4, 2, 1)  # tokens, longest first: of these, places are indexed
LONGEST_MATCH = 32  # tokens; longer matches count as this long
MOST_PLACES = 16  # that are compared, the most recent ones
TOKENS_PER_MATCH = 4  # a match of n tokens is followed for at most this many times n
_TOKEN_BYTES = 4  # of an int32


class Lookup:
    """Proposes what followed the place that matches the end of the context longest.

    Of places that match equally long, those win whose next token is the most frequent among all places looked at,
    then the most recent. For each of a few match lengths, an index maps an n-gram to the position behind its last
    occurrence, and each position to the one before it: places, their exact match lengths and counts come from
    walking such a chain. The index follows the context: tokens are added as they are committed (microseconds each)
    and taken back when the context changes, so any context may follow any other.

    Source: prompt lookup decoding (A. Saxena, 2023); counts as in suffix decoding (arXiv 2411.04975).
    """

    name = "lookup"
    is_free = True
    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(self) -> None:
        self._tokens = TokenBuffer()  # the context; of its n-grams, those that end before its end are indexed
        self._num_indexed = 0  # positions 1 … num_indexed have their n-grams in the index
        # By match length: hash of an n-gram -> position behind its last occurrence, and per position (from 1 on)
        # the one behind the occurrence before, 0 for none. A hash may mislead; matches are compared in full.
        self._last: tuple[dict[int, int], ...] = tuple({} for _ in MATCH_LENGTHS)
        self._before: tuple[array[int], ...] = tuple(array("i") for _ in MATCH_LENGTHS)

    def prepare(self, context: Tokens) -> None:
        """Index the prompt."""
        self._follow(context)

    def backlog(self, context: Tokens) -> int:
        """None: indexing is free."""
        return 0

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """Copies from the best place on; past the end of the context, from the copy itself (a repeating text)."""
        data = self._follow(context)
        places, length = self._longest(data)
        if not places:
            return
        tokens = memoryview(data).cast("i")
        position = places[0]
        drafted: list[int] = []
        for depth in range(TOKENS_PER_MATCH * length):
            source = position + depth
            token = tokens[source] if source < len(tokens) else drafted[source - len(tokens)]
            total = len(places)
            places = [place for place in places if place + depth < len(tokens) and tokens[place + depth] == token]
            match_length = min(length + depth, LONGEST_MATCH)
            evidence = Evidence(self.name, depth, match_length, max(len(places), 1), max(total, 1))
            drafted.append(token)
            yield Proposal.certain(token, evidence)

    def observe(self, round_: Round) -> None:
        """Nothing to learn: `propose` sees the committed tokens in the context."""

    def _longest(self, data: bytes) -> tuple[list[int], int]:
        """Places that the end of the context was at before, the best first, and how many tokens match there."""
        for length, last, before in zip(MATCH_LENGTHS, self._last, self._before, strict=True):
            place = last.get(hash(data[-_TOKEN_BYTES * length :]), 0)
            places: list[int] = []
            while place and len(places) < MOST_PLACES:
                places.append(place)
                place = before[place - 1]
            lengths = [_match_length(data, place) for place in places]
            longest = max(lengths, default=0)
            if longest >= length:
                followers = Counter(data[_TOKEN_BYTES * place : _TOKEN_BYTES * (place + 1)] for place in places)
                best = [place for place, n in zip(places, lengths, strict=True) if n == longest]
                first = max(best, key=lambda p: (followers[data[_TOKEN_BYTES * p : _TOKEN_BYTES * (p + 1)]], p))
                return [first, *(place for place in places if place != first)], longest
        return [], 0

    def _follow(self, context: Tokens) -> bytes:
        """Bring the index to the context; the bytes of the context's tokens."""
        known = common_prefix_length(self._tokens.view, context)
        if self._num_indexed >= max(known, 1):  # n-grams that end at or behind the end of what is common
            self._take_back(max(known, 1) - 1)
        self._tokens.truncate(known)
        self._tokens.extend(context[known:])
        data = context.tobytes()
        for length, last, before in zip(MATCH_LENGTHS, self._last, self._before, strict=True):
            for position in range(self._num_indexed + 1, len(context)):
                if position < length:
                    before.append(0)
                    continue
                ngram = hash(data[_TOKEN_BYTES * (position - length) : _TOKEN_BYTES * position])
                before.append(last.get(ngram, 0))
                last[ngram] = position
        self._num_indexed = max(self._num_indexed, len(context) - 1)
        return data

    def _take_back(self, num_indexed: int) -> None:
        """Forget the n-grams that end behind the first `num_indexed` positions, the last first."""
        data = self._tokens.view.tobytes()
        for length, last, before in zip(MATCH_LENGTHS, self._last, self._before, strict=True):
            for position in range(self._num_indexed, num_indexed, -1):
                previous = before.pop()
                if position >= length:
                    ngram = hash(data[_TOKEN_BYTES * (position - length) : _TOKEN_BYTES * position])
                    if previous:
                        last[ngram] = previous
                    else:
                        del last[ngram]
        self._num_indexed = num_indexed


def _match_length(data: bytes, place: int) -> int:
    """How many tokens in front of a place equal the last ones of the context, at most LONGEST_MATCH."""
    low, high = 0, min(LONGEST_MATCH, place)  # bisection: if n tokens match, fewer do
    while low < high:
        n = (low + high + 1) // 2
        if data[_TOKEN_BYTES * (place - n) : _TOKEN_BYTES * place] == data[-_TOKEN_BYTES * n :]:
            low = n
        else:
            high = n - 1
    return low
