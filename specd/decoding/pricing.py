"""What drafts are worth: expected tokens against measured seconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specd.decoding.costs import PassCosts
from specd.decoding.protocol import Round

MAX_DRAFT = 31  # tokens; a pass over 32 rows is the last one that fits the steps of CPU kernels
GOOD = 0.97  # acceptance of a very good draft, over all but copied text
CAN_PAY = 1.08  # speed over plain decoding that a drafter must reach with it, to be used at all
RATE_MEMORY = 0.9  # weight that the speed so far keeps with each round
CATCH_UP_ROUNDS = 16  # rounds that share the price of taking an idle draft model up again
REGULAR_BACKLOG = 2  # tokens that a model takes in with its first one after a round in which it drafted


@dataclass(frozen=True, slots=True)
class Prospect:
    """A draft so far, and what it promises.

    num_draft:  tokens in it
    reach:      chance that all of them are accepted
    expected:   tokens that the pass then gives, the target's own among them
    seconds:    what drafting will still cost
    """

    num_draft: int = 0
    reach: float = 1.0
    expected: float = 1.0
    seconds: float = 0.0

    def with_token(self, acceptance: float, seconds: float = 0.0) -> "Prospect":
        """One token longer."""
        reach = self.reach * acceptance
        return Prospect(self.num_draft + 1, reach, self.expected + reach, self.seconds + seconds)


class Prices:
    """Seconds and values of drafts, from the cost tables and the speed lately.

    target:    costs of passes of the target
    drafters:  costs of passes of drafters that are not free, by name
    """

    def __init__(self, target: PassCosts, drafters: Mapping[str, PassCosts], max_draft: int = MAX_DRAFT) -> None:
        self._target = target
        self._drafters = drafters
        self._max_draft = max_draft
        self._tokens = self._seconds = 0.0  # recent ones, decayed

    @property
    def plain_seconds(self) -> float:
        """Of a plain step, as far as is known now."""
        return self._target.seconds(1)

    @property
    def are_doubtful(self) -> bool:
        """Whether a plain step is needed to know what drafts are worth."""
        return self._target.is_doubtful

    @property
    def rate(self) -> float:
        """Tokens per second lately; at least those of plain decoding."""
        plain = 1 / self.plain_seconds
        return max(plain, self._tokens / self._seconds) if self._seconds else plain

    def pass_seconds(self, num_draft: int) -> float:
        """What a pass over the pending token and some drafted ones costs."""
        return self._target.seconds(num_draft + 1)

    def seconds(self, prospect: Prospect) -> float:
        """What a draft will still cost, its pass included."""
        return prospect.seconds + self.pass_seconds(prospect.num_draft)

    def value(self, prospect: Prospect) -> float:
        """Tokens it gives more than its time would give at the present rate.

        The choices that maximise this in every round maximise the rate in the long run (Dinkelbach 1967).
        """
        return prospect.expected - self.rate * self.seconds(prospect)

    def gain(self, prospect: Prospect) -> float:
        """Expected speed over plain decoding."""
        return prospect.expected * self.plain_seconds / self.seconds(prospect)

    def token_seconds(self, name: str) -> float:
        """What one more token of a drafter costs."""
        return self._drafters[name].seconds(1) if name in self._drafters else 0.0

    def catch_up_seconds(self, name: str, backlog: int) -> float:
        """What taking in some tokens costs beside drafting the first one."""
        return self._drafters[name].seconds(backlog) - self._drafters[name].seconds(1) if backlog > 1 else 0.0

    def first_token_seconds(self, name: str, backlog: int) -> float:
        """What the first token costs with some tokens to take in; many of them are paid for by several rounds."""
        catch_up = self.catch_up_seconds(name, backlog)
        return self.token_seconds(name) + (catch_up if backlog <= REGULAR_BACKLOG else catch_up / CATCH_UP_ROUNDS)

    def bound(self, name: str) -> float:
        """The speed over plain decoding that a drafter would bring if it were always right."""
        return self._constant_gain(name, 1.0)

    def can_pay(self, name: str) -> bool:
        """Whether a drafter would gain enough if it were as good as very good ones are."""
        return self.gain_if_good(name) >= CAN_PAY

    def gain_if_good(self, name: str) -> float:
        """The speed over plain decoding that a drafter would bring if it were right GOOD of the time."""
        return self._constant_gain(name, GOOD)

    def break_even(self, name: str) -> float | None:
        """The acceptance at which a drafter costs as much as it gives; None when it never gives as much."""
        if self.bound(name) < 1:
            return None
        low, high = 0.0, 1.0
        for _ in range(10):  # to a thousandth
            middle = (low + high) / 2
            if self._constant_gain(name, middle) >= 1:
                high = middle
            else:
                low = middle
        return high

    def best_gain(self, name: str, acceptance: Callable[[int], float]) -> float:
        """The speed over plain decoding at the best length, at least 1, for acceptances by depth."""
        prospect, best = Prospect(), 0.0
        for depth in range(self._max_draft):
            prospect = prospect.with_token(acceptance(depth), self.token_seconds(name))
            best = max(best, self.gain(prospect))
        return best

    def observe_round(self, round_: Round) -> None:
        """Learn from a round what a pass of its width costs, and the speed."""
        self._target.observe(len(round_.draft) + 1, round_.seconds - round_.draft_seconds)
        self._tokens = RATE_MEMORY * self._tokens + len(round_.tokens)
        self._seconds = RATE_MEMORY * self._seconds + round_.seconds

    def observe_drafting(self, name: str, backlog: int, seconds: list[float]) -> None:
        """Learn from the times of a drafter's tokens, the first of which also took in its backlog."""
        if name in self._drafters and seconds:
            if backlog <= REGULAR_BACKLOG:
                self._drafters[name].observe(backlog, seconds[0])
            for each in seconds[1:]:
                self._drafters[name].observe(1, each)

    def tables(self) -> dict[str, dict[int, float]]:
        """The cost tables as they are now: of the target, and of each drafter that is not free."""
        return {"target": self._target.table(), **{name: costs.table() for name, costs in self._drafters.items()}}

    def _constant_gain(self, name: str, acceptance: float) -> float:
        return self.best_gain(name, lambda depth: acceptance)
