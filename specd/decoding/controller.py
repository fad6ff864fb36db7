"""Who drafts in each round, and how far."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specd.decoding.context import Tokens
from specd.decoding.protocol import Draft, Drafter, Evidence, Proposal, Round
from specd.decoding.sampling import Logits

PLAIN_EVERY = 32  # rounds; 3 % of them, so that the estimate of plain speed follows the machine
EARLY_PLAIN = 5  # a second one soon, so that a short answer has an estimate too


class DraftBuilder:
    """A draft in the making: tokens taken from drafters, and what taking them cost.

    proposals:  what will be scored
    unscored:   what was drafted and left out
    """

    def __init__(self, context: Tokens, clock: Callable[[], float]) -> None:
        self._context = context
        self._clock = clock
        self.proposals: list[Proposal] = []
        self.unscored: list[Evidence] = []
        self.seconds: dict[str, list[float]] = {}  # by drafter, of each token taken

    def __len__(self) -> int:
        return len(self.proposals)

    @property
    def context(self) -> Tokens:
        """The context and the tokens drafted so far."""
        if not self.proposals:
            return self._context
        return np.concatenate([self._context, np.array([p.token for p in self.proposals], np.int32)])

    def continuation(self, drafter: Drafter) -> Iterator[Proposal]:
        """What a drafter proposes behind the draft as it is now; nothing of it is in the draft yet."""
        proposals = drafter.propose(self.context)
        seconds = self.seconds.setdefault(drafter.name, [])
        while True:
            started = self._clock()
            if (proposal := next(proposals, None)) is None:
                return
            seconds.append(self._clock() - started)
            yield proposal

    def draft(self) -> Draft:
        """The draft."""
        return Draft.of(self.proposals, self.unscored, {name: sum(each) for name, each in self.seconds.items()})


class FixedLength:
    """The same draft length every round, from the first drafter that proposes anything, but for plain steps.

    The plain steps (the second round and the sixth, then one in `plain_every`) measure what decoding without
    speculation costs in the same run: without them there would be nothing honest to compare with.

    drafters:  in the order in which they are asked
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        num_draft: int,
        clock: Callable[[], float],
        *,
        plain_every: int = PLAIN_EVERY,
    ) -> None:
        self._drafters = drafters
        self._num_draft = num_draft
        self._clock = clock
        self._plain_every = plain_every
        self._num_rounds = 0
        self.plain_seconds = None

    @property
    def notices(self) -> Mapping[str, str]:
        """What the drafters have to say."""
        return {name: text for drafter in self._drafters for name, text in drafter.notices.items()}

    def report(self) -> dict[str, Any]:
        """Nothing was decided."""
        return {}

    def prepare(self, context: Tokens) -> None:
        """All drafters take in the prompt."""
        for drafter in self._drafters:
            drafter.prepare(context)

    def draft(self, context: Tokens, limit: int) -> Draft:
        """The fixed length, or nothing in a round that measures a plain step."""
        builder = DraftBuilder(context, self._clock)
        num_draft = min(self._num_draft, limit)
        if self._num_rounds == EARLY_PLAIN or self._num_rounds % self._plain_every == 1:
            num_draft = 0
        for drafter in self._drafters if num_draft else ():
            for proposal in builder.continuation(drafter):
                builder.proposals.append(proposal)
                if len(builder) == num_draft:
                    break
            if builder.proposals:
                break
        return builder.draft()

    def observe(self, context: Tokens, round_: Round, logits: Logits) -> None:
        """Counts rounds."""
        self._num_rounds += 1
        for drafter in self._drafters:
            drafter.observe(round_)
