"""What drafting gained and cost against plain decoding, round by round."""

from collections import Counter
from itertools import groupby

from specd.decoding.protocol import Round

# Expected speed over plain decoding below which a round is plain. A draft is chosen for being judged well, and so was
# often judged too well. With rows 12 % dearer than the table says, answers of 128 tokens lose up to 5 % at 1.02, and
# 2 % at 1.08, which is as fast on average (replay of 20 texts).
MIN_GAIN = 1.08
DEBT_WEIGHT = 0.1  # how much more gain is asked for with each further plain step of debt, but
PATIENCE = 0.07  # no more than this, or bad luck at the start keeps a drafter out that is known to pay, unless
DEEP_DEBT = 5.0  # plain steps of debt are passed: then each further one counts again
STAKE = 3.0  # plain steps that one draft may cost before drafts have gained any
CREDIT = 6.0  # plain steps that a model which promises enough may take besides, to take in what it has not read
EXPLORED_SHARE = 0.01  # of decode time that may be lost to bad luck, and spent on trying, besides
PLAIN = "plain"


class Ledger:
    """Keeps the promise never to be slower: losses raise what the next draft must promise, and bound exploration.

    A round's gain is what its tokens would have taken in plain steps, less what drafting took and what a pass of its
    width takes: not what this very pass took, which may be slow for other reasons than the draft.
    """

    def __init__(self) -> None:
        self.rounds: Counter[str] = Counter()  # by who drafted, in order: "draft+lookup"
        self.decode_seconds = 0.0
        self.gained_seconds = 0.0  # by drafts that were expected to pay
        self.explored_seconds = 0.0  # net cost of those that were tried without

    def add(self, round_: Round, plain_seconds: float, pass_seconds: float, *, exploring: bool) -> None:
        """Enter a round. plain_seconds: of a plain step. pass_seconds: of a pass as wide as the round's."""
        self.decode_seconds += round_.seconds
        sources = [source for source, _ in groupby(evidence.source for evidence in round_.draft.evidence)]
        self.rounds["+".join(sources) or PLAIN] += 1
        if round_.num_draft_tokens:
            gain = len(round_.tokens) * plain_seconds - round_.draft_seconds - pass_seconds
            if exploring:
                self.explored_seconds -= min(gain, 0.0)
            else:
                self.gained_seconds += gain

    def min_gain(self, plain_seconds: float) -> float:
        """The speed over plain decoding that a draft must promise."""
        allowed = EXPLORED_SHARE * self.decode_seconds
        debt = max(0.0, -self.gained_seconds - allowed) / plain_seconds
        return MIN_GAIN + min(PATIENCE, DEBT_WEIGHT * debt) + DEBT_WEIGHT * max(0.0, debt - DEEP_DEBT)

    def stake(self, plain_seconds: float) -> float:
        """Seconds that a draft may cost over a plain step, all of which are lost if nothing of it is accepted."""
        return STAKE * plain_seconds + max(0.0, self.gained_seconds) + EXPLORED_SHARE * self.decode_seconds

    def catch_up_at_stake(self, seconds: float, plain_seconds: float) -> float:
        """How much of the time that a model takes to take in a text counts as staked: none of a short one's, as it is
        read once for all drafts to come."""
        return 0.0 if seconds <= CREDIT * plain_seconds else seconds

    def allows_exploring(self, price: float) -> bool:
        """Whether seconds that are expected to be lost fit into the share of time set aside for it."""
        return self.explored_seconds + max(price, 0.0) <= EXPLORED_SHARE * self.decode_seconds
