"""A text that is expected to come again, such as the old version of a file that is being rewritten."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, common_prefix_length
from specd.decoding.protocol import Evidence, Proposal, Round

LONGEST_MATCH = 32  # tokens; longer matches count as this long


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the output is in the predicted text.

    position:      of the token that should come next
    match_length:  how many tokens in front of it equal the last ones of the output
    left_at:       where the output last left the text
    """

    position: int
    match_length: int
    left_at: int


class Predicted:
    """Follows a predicted text, and finds its place again after a deviation.

    While the output agrees, the place moves with it. After a token that differs, the place is searched where the
    end of the output matches: a long match may be far away, a short one must be near to where the text was left or
    would have gone on. Until it is found, each output token is taken to replace one token of the text. An answer
    is expected to begin where the text begins, so its first token can already be drafted.

    text:  the tokens of the predicted text
    """

    name = "predicted"
    is_free = True
    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(self, text: Tokens) -> None:
        self._text = text
        self._context = TokenBuffer()
        self._places = [_Place(0, 0, 0)]  # after the prompt, and after each token of the output
        self._prompt_length = 0

    def prepare(self, context: Tokens) -> None:
        """A new answer begins behind this context, and with it the text."""
        self._begin(context)

    def backlog(self, context: Tokens) -> int:
        """None: following is free."""
        return 0

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """The text from its place on, to its end."""
        place = self._follow(context)
        for depth, token in enumerate(self._text[place.position :].tolist()):
            match_length = min(place.match_length + depth, LONGEST_MATCH)
            yield Proposal.certain(token, Evidence(self.name, depth, match_length, 1, 1))

    def observe(self, round_: Round) -> None:
        """Nothing to learn: `propose` sees the committed tokens in the context."""

    def _begin(self, prompt: Tokens) -> None:
        self._context = TokenBuffer(prompt)
        self._prompt_length = len(prompt)
        self._places = [_Place(0, 0, 0)]

    def _follow(self, context: Tokens) -> _Place:
        known = common_prefix_length(self._context.view, context)
        if known < self._prompt_length:
            self._begin(context)
        else:
            del self._places[known - self._prompt_length + 1 :]
            self._context.truncate(known)
            for i in range(known, len(context)):
                self._context.extend(context[i : i + 1])
                self._places.append(self._next(self._places[-1], self._context.view[self._prompt_length :]))
        return self._places[-1]

    def _next(self, place: _Place, output: Tokens) -> _Place:
        """The place after one more token of the output, its last."""
        position = place.position
        if position < len(self._text) and self._text[position] == output[-1]:
            return _Place(position + 1, min(place.match_length + 1, LONGEST_MATCH), place.left_at)
        left_at = position if place.match_length else place.left_at
        found = self._search(output, (left_at, position + 1))
        return found or _Place(min(position + 1, len(self._text)), 0, left_at)

    def _search(self, output: Tokens, near: tuple[int, int]) -> _Place | None:
        """The place that matches the output best: one token of match outweighs four times the distance."""
        positions = np.flatnonzero(self._text == output[-1]) + 1
        best, best_score = None, 0.0
        length = 1
        while len(positions):
            distance = np.minimum(np.abs(positions - near[0]), np.abs(positions - near[1]))
            nearest = int(distance.argmin())
            score = length - log2(1 + distance[nearest]) / 2
            if score > best_score:
                best_score, best = score, _Place(int(positions[nearest]), length, near[0])
            if length == min(LONGEST_MATCH, len(output)):
                break
            positions = positions[positions > length]
            positions = positions[self._text[positions - length - 1] == output[-length - 1]]
            length += 1
        return best
