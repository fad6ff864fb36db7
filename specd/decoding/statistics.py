"""What a generation did and cost, gathered from the loop's events. Metric names follow vLLM's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from specd.decoding.protocol import Event, Finished, FinishReason, Prefilled, Prefilling, Round

ENOUGH_PLAIN_ROUNDS = 8  # that outweigh what is known otherwise
MIN_PLAIN_ROUNDS = 2  # fewer say nothing: one step of a shared machine can be far off


Fate = Literal["accepted", "rejected", "discarded"]


@dataclass(slots=True)
class DrafterCounts:
    """What one drafter did. drafted = accepted + rejected + discarded."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_rejected_tokens: int = 0
    num_discarded_tokens: int = 0
    draft_seconds: float = 0.0
    draft_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, fates: Sequence[tuple[int, Fate]], seconds: float) -> None:
        """Count what became of tokens of one draft, by their places in it, and what drafting them cost."""
        self.num_drafts += 1 if fates else 0
        self.draft_seconds += seconds
        for place, fate in fates:
            self.num_draft_tokens += 1
            self.num_accepted_tokens += fate == "accepted"
            self.num_rejected_tokens += fate == "rejected"
            self.num_discarded_tokens += fate == "discarded"
            _count(self.draft_per_position, place, 1)
            _count(self.accepted_per_position, place, fate == "accepted")

    def merge(self, other: "DrafterCounts") -> None:
        """Add what was counted elsewhere."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self.num_rejected_tokens += other.num_rejected_tokens
        self.num_discarded_tokens += other.num_discarded_tokens
        self.draft_seconds += other.draft_seconds
        for place, number in enumerate(other.draft_per_position):
            _count(self.draft_per_position, place, number)
        for place, number in enumerate(other.accepted_per_position):
            _count(self.accepted_per_position, place, number)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens per drafted token; None when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    def as_dict(self) -> dict[str, Any]:
        """The counts under the names of the JSON contract."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_rejected_tokens": self.num_rejected_tokens,
            "num_discarded_tokens": self.num_discarded_tokens,
            "acceptance_rate": self.acceptance_rate,
            "draft_per_position": self.draft_per_position,
            "accepted_per_position": self.accepted_per_position,
            "draft_seconds": self.draft_seconds,
        }


def _count(counts: list[int], place: int, number: int) -> None:
    if number:
        counts.extend([0] * (place + 1 - len(counts)))
        counts[place] += number


def _fates(round_: Round) -> list[tuple[str, int, Fate]]:
    """Of each drafted token its drafter, its place in the draft, and what became of it."""
    draft, num_accepted = round_.draft, round_.num_accepted
    first_rejected = len(draft) - round_.num_rejected
    scored: list[tuple[str, int, Fate]] = []
    for i, evidence in enumerate(draft.evidence):
        fate: Fate = "accepted" if i < num_accepted else "discarded" if i < first_rejected else "rejected"
        scored.append((evidence.source, i, fate))
    return scored + [(evidence.source, len(draft) + i, "discarded") for i, evidence in enumerate(draft.unscored)]


class Statistics:
    """Add every event as it comes; ask at any time.

    plain_seconds:  what a plain step takes now, where somebody keeps track of it; asked when few steps were plain
    """

    def __init__(self, clock: Callable[[], float], plain_seconds: Callable[[], float | None] = lambda: None) -> None:
        self._clock = clock
        self._known_plain_seconds = plain_seconds
        self._started = clock()
        self._prefilled_at: float | None = None
        self._last_at = self._started
        self._plain_seconds: list[float] = []
        self._drafted_seconds: list[float] = []
        self._drafted_tokens = 0
        self.num_prompt_tokens = 0
        self.num_read: int | None = None  # of them, while a long prompt is taken in
        self.num_completion_tokens = 0
        self.num_rounds = 0
        self.longest_draft = 0
        self.last_draft = 0
        self.prefill_seconds = 0.0
        self.target_seconds = 0.0
        self.time_to_first_token_seconds: float | None = None
        self.finish_reason: FinishReason | None = None
        self.total = DrafterCounts()
        self.by_drafter: dict[str, DrafterCounts] = {}

    def add(self, event: Event) -> None:
        """Count an event."""
        now = self._clock()
        match event:
            case Prefilling():
                self.num_prompt_tokens, self.num_read = event.num_prompt_tokens, event.num_held
            case Prefilled():
                self.num_prompt_tokens = event.num_prompt_tokens
                self.prefill_seconds = event.target_seconds + event.draft_seconds
                self.num_read = None
                self._prefilled_at = self._last_at = now
            case Round():
                self._add_round(event)
                self._last_at = now
                if self.time_to_first_token_seconds is None:
                    self.time_to_first_token_seconds = now - self._started
            case Finished():
                self.finish_reason = event.reason
                if self.num_rounds:
                    self._last_at = now

    def _add_round(self, round_: Round) -> None:
        self.num_rounds += 1
        self.num_completion_tokens += len(round_.tokens)
        self.target_seconds += round_.target_seconds
        self.last_draft = round_.num_draft_tokens
        self.longest_draft = max(self.longest_draft, round_.num_draft_tokens)
        fates = _fates(round_)
        self.total.add([(place, fate) for _, place, fate in fates], round_.draft_seconds)
        for name in {*round_.draft.seconds, *(source for source, _, _ in fates)}:
            own = [(place, fate) for source, place, fate in fates if source == name]
            self.by_drafter.setdefault(name, DrafterCounts()).add(own, round_.draft.seconds.get(name, 0.0))
        if round_.num_draft_tokens == 0:
            self._plain_seconds.append(round_.seconds - round_.draft_seconds)
        else:
            self._drafted_seconds.append(round_.seconds)
            self._drafted_tokens += len(round_.tokens)

    @property
    def decode_seconds(self) -> float:
        """From the end of the prefill to the last event, whoever consumes the events included."""
        return self._last_at - self._prefilled_at if self._prefilled_at is not None else 0.0

    @property
    def decode_tokens_per_second(self) -> float | None:
        """None before the first token."""
        return self.num_completion_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def plain_step_seconds(self) -> float | None:
        """The median plain step of this run; None when there were too few."""
        return median(self._plain_seconds) if len(self._plain_seconds) >= ENOUGH_PLAIN_ROUNDS else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per target pass, the target's own token included."""
        return self.num_completion_tokens / self.num_rounds if self.num_rounds else None

    @property
    def plain_tokens_per_second_estimate(self) -> float | None:
        """From the median plain step of this run; where few steps were plain, from what is known of their cost.

        None when neither tells.
        """
        if len(self._plain_seconds) >= ENOUGH_PLAIN_ROUNDS:
            return 1 / median(self._plain_seconds)
        if (known := self._known_plain_seconds()) is not None:
            return 1 / known
        return 1 / median(self._plain_seconds) if len(self._plain_seconds) >= MIN_PLAIN_ROUNDS else None

    @property
    def speedup_estimate(self) -> float | None:
        """This run's speed over the estimate of plain decoding in the same run."""
        speed, plain = self.decode_tokens_per_second, self.plain_tokens_per_second_estimate
        return speed / plain if speed is not None and plain is not None else None

    @property
    def tokens_per_drafted_round(self) -> float | None:
        """Tokens that a round with a draft gave on average; None without such rounds."""
        return self._drafted_tokens / len(self._drafted_seconds) if self._drafted_seconds else None

    @property
    def round_cost_estimate(self) -> float | None:
        """Seconds of an average round with a draft over those of a plain step: the tokens needed to break even."""
        plain = self.plain_tokens_per_second_estimate
        if plain is None or not self._drafted_seconds:
            return None
        return plain * sum(self._drafted_seconds) / len(self._drafted_seconds)

    def as_dict(
        self, notices: Mapping[str, str], counters: Mapping[str, Mapping[str, float]] | None = None
    ) -> dict[str, Any]:
        """The `stats` object of the JSON contract.

        notices:   by drafter, why it does not propose; when no drafter proposed anything, they are the reason
                   why speculation was off
        counters:  by drafter, what it counted by itself
        """
        drafters = {name: counts.as_dict() for name, counts in self.by_drafter.items()}
        for name, reason in notices.items():
            drafters.setdefault(name, DrafterCounts().as_dict())["yielded"] = reason
        for name, counted in (counters or {}).items():
            if counted:
                drafters.setdefault(name, DrafterCounts().as_dict()).update(counted)
        stats: dict[str, Any] = {
            "prefill_seconds": self.prefill_seconds,
            "time_to_first_token_seconds": self.time_to_first_token_seconds,
            "decode_seconds": self.decode_seconds,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "num_rounds": self.num_rounds,
            "mean_acceptance_length": self.mean_acceptance_length,
            "longest_draft": self.longest_draft,
            **self.total.as_dict(),
            "target_seconds": self.target_seconds,
            "drafters": drafters,
            "plain_tokens_per_second_estimate": self.plain_tokens_per_second_estimate,
            "speedup_estimate": self.speedup_estimate,
            "round_cost_estimate": self.round_cost_estimate,
            "tokens_per_drafted_round": self.tokens_per_drafted_round,
        }
        if (off_reason := self.off_reason(notices)) is not None:
            stats["speculation_off_reason"] = off_reason
        return stats

    def off_reason(self, notices: Mapping[str, str]) -> str | None:
        """Why nothing was drafted; None when something was."""
        if self.total.num_draft_tokens:
            return None
        reasons = [f"{name}: {reason}" for name, reason in notices.items()]
        return "; ".join(reasons) or "no drafter had anything to propose"
