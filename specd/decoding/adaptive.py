"""The controller that prices every width and every drafter, plain decoding among them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specd.decoding.acceptance import Acceptance
from specd.decoding.context import Tokens
from specd.decoding.controller import DraftBuilder
from specd.decoding.ledger import PLAIN, Ledger
from specd.decoding.pricing import GOOD, Prices, Prospect
from specd.decoding.protocol import Draft, Drafter, Proposal, Round
from specd.decoding.sampling import Logits, certainty

VERDICT_ROUNDS = 16  # for which it stands whether a drafter can pay
CERTAINTY_EVERY = 4  # rounds between two looks at how sure the target is: each takes a pass over the vocabulary
MIN_REACH = 0.02  # chance to be reached below which no further token is looked at
_Continuation = tuple[Prospect, list[Proposal]]


class Adaptive:
    """Each round the draft that is expected to give the most tokens per second, or none.

    The cost of every width is looked up, never fitted, so that the steps of the kernels are used. Free drafters are
    asked in every round and scored on every committed token, used or not. A model is drafted with token by token:
    before each one, all lengths ahead are looked at with the acceptance usual at that depth; its evidence then corrects
    that. Where it stops, a free drafter may go on, and a model where a free drafter stops.

    Where passes cost something else than expected, a plain step is taken to learn whether plain ones do too.

    A token that was drawn stays in the draft, whatever comes behind it: to drop it because of that would bias sampled
    text. It is left out only for what was known before it was drawn.

    drafters:    all there are
    prices:      what passes and drafts cost
    acceptance:  what is known about the drafters
    max_draft:   the most tokens of a draft
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        prices: Prices,
        acceptance: Acceptance,
        clock: Callable[[], float],
        *,
        max_draft: int,
    ) -> None:
        self._free = [drafter for drafter in drafters if drafter.is_free]
        self._paid = [drafter for drafter in drafters if not drafter.is_free]
        self._prices = prices
        self._acceptance = acceptance
        self._clock = clock
        self._max_draft = max_draft
        self._ledger = Ledger()
        self._exploring = False
        self._verdicts: dict[str, bool] = {}  # whether each paid drafter can pay, as of some rounds ago
        self._verdicts_until = 0  # rounds
        self._backlog: dict[str, int] = {}  # of each paid drafter that can pay, this round
        self._guesses: dict[str, list[Proposal]] = {}  # of each free drafter, this round

    @property
    def notices(self) -> Mapping[str, str]:
        """Why a drafter is not used, by its name."""
        notices = {name: text for drafter in self._drafters for name, text in drafter.notices.items()}
        for drafter in self._paid:
            if not self._can_pay(drafter):
                notices.setdefault(drafter.name, self._why_not(drafter.name))
        if set(self._ledger.rounds) == {PLAIN}:
            for drafter in self._drafters:
                notices.setdefault(drafter.name, "nothing that it proposed was expected to pay")
        return notices

    @property
    def plain_seconds(self) -> float:
        """Seconds of a plain step, as far as is known now."""
        return self._prices.plain_seconds

    def prepare(self, context: Tokens) -> None:
        """Free drafters take in the prompt; a model only if it is expected to be used."""
        for drafter in self._free:
            drafter.prepare(context)
        for drafter in self._paid:
            if self._can_pay(drafter) and self._worth(self._best_ahead(drafter, Prospect(), self._max_draft)):
                drafter.prepare(context)

    def draft(self, context: Tokens, limit: int) -> Draft:
        """The draft that is worth most."""
        builder = DraftBuilder(context, self._clock)
        limit = min(limit, self._max_draft)
        self._exploring = False
        self._backlog = {drafter.name: drafter.backlog(context) for drafter in self._paid if self._can_pay(drafter)}
        self._guesses = {drafter.name: [] for drafter in self._free}
        if limit > 0 and not self._prices.are_doubtful:
            free, proposals = self._best_free(builder, Prospect(), limit, self._guesses)
            if not self._worth(free):
                free, proposals = Prospect(), []
            drafter, ahead = self._best_paid(limit)
            catch_up = (
                self._prices.catch_up_seconds(drafter.name, self._backlog[drafter.name]) if drafter is not None else 0.0
            )
            better = self._worth(ahead) and self._prices.value(ahead) > self._prices.value(free)
            if drafter is not None and better and self._affordable(ahead, catch_up):
                self._draft_with(drafter, builder, Prospect(), limit, otherwise=(free, proposals))
            elif proposals:
                builder.proposals += proposals
                self._extend(builder, free, limit)
            elif drafter is not None and self._may_explore(ahead, catch_up):
                self._exploring = True
                self._draft_with(drafter, builder, Prospect(), limit, at_least=ahead.num_draft)
        for name, backlog in self._backlog.items():
            self._prices.observe_drafting(name, backlog, builder.seconds.get(name, []))
        return builder.draft()

    def observe(self, context: Tokens, round_: Round, logits: Logits) -> None:
        """Learn costs and acceptance from a round."""
        if self._backlog and sum(self._ledger.rounds.values()) % CERTAINTY_EVERY == 0:
            self._acceptance.observe_target(certainty(logits[0]))
        self._prices.observe_round(round_)
        pass_seconds = self._prices.pass_seconds(len(round_.draft))
        self._ledger.add(round_, self.plain_seconds, pass_seconds, exploring=self._exploring)
        self._score_paid(round_)
        self._score_free(context, round_)
        for drafter in self._drafters:
            drafter.observe(round_)

    def report(self) -> dict[str, Any]:
        """What it decided and why, for the statistics."""
        names = [drafter.name for drafter in self._drafters]
        return {
            "plain_seconds": self.plain_seconds,
            "pass_seconds": self._prices.tables(),
            "draft_token_seconds": {name: self._prices.token_seconds(name) for name in names},
            "max_speedup": {name: self._prices.bound(name) for name in names},
            "break_even_acceptance": {name: self._prices.break_even(name) for name in names},
            "rounds": dict(self._ledger.rounds),
            "gained_seconds": self._ledger.gained_seconds,
            "explored_seconds": self._ledger.explored_seconds,
        }

    @property
    def _drafters(self) -> list[Drafter]:
        return [*self._free, *self._paid]

    def _can_pay(self, drafter: Drafter) -> bool:
        """Whether a model would gain enough if it were very good; looked at again now and then, as costs change."""
        if sum(self._ledger.rounds.values()) >= self._verdicts_until:
            self._verdicts = {each.name: self._prices.can_pay(each.name) for each in self._paid}
            self._verdicts_until = sum(self._ledger.rounds.values()) + VERDICT_ROUNDS
        return self._verdicts[drafter.name]

    def _why_not(self, name: str) -> str:
        share = self._prices.token_seconds(name) / self.plain_seconds
        return (
            f"cannot pay here: a drafted token costs {share:.2f} of a plain step, so drafts that are right {GOOD:.0%} "
            f"of the time would give {self._prices.gain_if_good(name):.2f}× plain decoding, and perfect ones "
            f"{self._prices.bound(name):.2f}×"
        )

    def _worth(self, prospect: Prospect) -> bool:
        """Whether a draft is expected to be faster than plain decoding by enough."""
        return self._prices.gain(prospect) >= self._ledger.min_gain(self.plain_seconds)

    def _affordable(self, prospect: Prospect, catch_up: float = 0.0) -> bool:
        """Whether it would not be too much to lose all that it costs over a plain step, a long catching up included."""
        at_stake = self._prices.seconds(prospect) - self.plain_seconds
        at_stake += self._ledger.catch_up_at_stake(catch_up, self.plain_seconds)
        return at_stake <= self._ledger.stake(self.plain_seconds)

    def _best_free(
        self,
        builder: DraftBuilder,
        start: Prospect,
        limit: int,
        guesses: Mapping[str, list[Proposal]] | None = None,
    ) -> _Continuation:
        """The best continuation of a draft by one free drafter, perhaps none; all that was looked at in `guesses`."""
        best, best_value = start, self._prices.value(start)
        best_proposals: list[Proposal] = []
        for drafter in self._free:
            prospect = start
            proposals: list[Proposal] = [] if guesses is None else guesses[drafter.name]
            for proposal in itertools.islice(builder.continuation(drafter), limit - start.num_draft):
                proposals.append(proposal)
                prospect = prospect.with_token(self._acceptance.probability(proposal.evidence))
                if (value := self._prices.value(prospect)) > best_value and self._affordable(prospect):
                    best, best_value, best_proposals = prospect, value, proposals
                if prospect.reach < MIN_REACH:
                    break
        return best, best_proposals[: best.num_draft - start.num_draft]

    def _best_paid(self, limit: int) -> tuple[Drafter | None, Prospect]:
        """The paid drafter that promises most, and the best length ahead with it."""
        best, best_ahead = None, Prospect()
        for drafter in self._paid:
            if (backlog := self._backlog.get(drafter.name)) is not None:
                ahead = self._best_ahead(drafter, Prospect(), limit, backlog=backlog)
                if best is None or self._prices.value(ahead) > self._prices.value(best_ahead):
                    best, best_ahead = drafter, ahead
        return best, best_ahead

    def _best_ahead(
        self,
        drafter: Drafter,
        start: Prospect,
        limit: int,
        *,
        backlog: int = 1,
        depth: int = 0,
    ) -> Prospect:
        """The best length, at least 1, to draft on with a model, as far as can be told beforehand.

        backlog:  tokens that the model has to take in
        depth:    tokens of it that are in the draft already
        """
        seconds = self._prices.first_token_seconds(drafter.name, backlog)
        prospect = best = start
        best_value = -math.inf
        for ahead in range(limit - start.num_draft):
            chance = self._acceptance.at_depth(drafter.name, depth + ahead)
            prospect = prospect.with_token(chance, seconds)
            if (value := self._prices.value(prospect)) > best_value and (not ahead or self._affordable(prospect)):
                best, best_value = prospect, value
            if prospect.reach < MIN_REACH:
                break
            seconds = self._prices.token_seconds(drafter.name)
        return best

    def _draft_with(
        self,
        drafter: Drafter,
        builder: DraftBuilder,
        start: Prospect,
        limit: int,
        *,
        otherwise: _Continuation | None = None,
        at_least: int = 0,
    ) -> None:
        """Draft with a model for as long as that pays, then go on with a free drafter if that pays.

        otherwise:  what a free drafter would put in place of the model's first token
        at_least:   tokens that are drafted whatever they promise
        """
        value = self._prices.value
        prospect = start
        stop, tail = otherwise or (start, [])
        for depth, proposal in enumerate(builder.continuation(drafter)):
            longer = prospect.with_token(self._acceptance.probability(proposal.evidence))
            ahead = self._best_ahead(drafter, longer, limit, depth=depth + 1)
            if len(builder) >= at_least and value(stop) >= max(value(longer), value(ahead)):
                builder.unscored.append(proposal.evidence)
                break
            builder.proposals.append(proposal)
            prospect = longer
            stop, tail = self._best_free(builder, prospect, limit)
            enough = len(builder) >= at_least and value(ahead) <= value(stop)
            if enough or prospect.num_draft >= limit:
                break
        builder.proposals += tail

    def _extend(self, builder: DraftBuilder, free: Prospect, limit: int) -> None:
        """After a free head, go on with a model if that pays."""
        for drafter in self._paid:
            if free.num_draft < limit and drafter.name in self._backlog:
                backlog = drafter.backlog(builder.context)
                ahead = self._best_ahead(drafter, free, limit, backlog=backlog)
                catch_up = self._prices.catch_up_seconds(drafter.name, backlog)
                if self._prices.value(ahead) > self._prices.value(free) and self._affordable(ahead, catch_up):
                    self._backlog[drafter.name] = backlog  # the head is taken in with the first token
                    self._draft_with(drafter, builder, free, limit)
                    return

    def _may_explore(self, ahead: Prospect, catch_up: float) -> bool:
        """Whether the price of trying what is not expected to pay fits into the share of time set aside for it."""
        seconds = self._prices.seconds(ahead) + catch_up
        return self._ledger.allows_exploring(seconds - ahead.expected * self.plain_seconds)

    def _score_paid(self, round_: Round) -> None:
        """The accepted tokens and the first refused one; what came behind is censored."""
        ended = round_.num_accepted + round_.num_rejected < len(round_.draft)  # inside the draft, by an end token
        known = round_.num_accepted + (0 if ended else 1)
        for i, evidence in enumerate(round_.draft.evidence[:known]):
            if evidence.source in self._backlog:
                self._acceptance.observe(evidence, i < round_.num_accepted)

    def _score_free(self, context: Tokens, round_: Round) -> None:
        """Each committed token is compared with what each free drafter would have proposed there."""
        tokens = round_.tokens.tolist()
        start = len(context) - len(tokens)
        for drafter in self._free:
            guesses = iter(self._guesses[drafter.name])
            for i, token in enumerate(tokens):
                guess = next(guesses, None)
                if guess is None and i:
                    guesses = drafter.propose(context[: start + i])
                    guess = next(guesses, None)
                if guess is not None:
                    self._acceptance.observe(guess.evidence, guess.token == token)
                if guess is None or guess.token != token:
                    guesses = iter(())
