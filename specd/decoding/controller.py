"""How far to draft in each round."""

from specd.decoding.protocol import Round

PLAIN_EVERY = 32  # rounds; 3 % of them, so that the estimate of plain speed follows the machine
EARLY_PLAIN = 5  # a second one soon, so that a short answer has an estimate too


class FixedLength:
    """The same draft length every round, but for a plain step now and then.

    The plain steps (the second round and the sixth, then one in `plain_every`) measure what decoding without
    speculation costs in the same run: without them there would be nothing honest to compare with.
    """

    def __init__(self, num_draft: int, *, plain_every: int = PLAIN_EVERY) -> None:
        self._num_draft = num_draft
        self._plain_every = plain_every
        self._num_rounds = 0

    def budget(self, limit: int) -> int:
        """The fixed length, or 0 in a round that measures a plain step."""
        if self._num_rounds == EARLY_PLAIN or self._num_rounds % self._plain_every == 1:
            return 0
        return min(self._num_draft, limit)

    def observe(self, round_: Round) -> None:
        """Counts rounds."""
        self._num_rounds += 1
