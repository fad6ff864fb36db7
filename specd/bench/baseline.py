"""Whether something became worse than in an earlier benchmark."""

from dataclasses import dataclass
from math import sqrt

from specd.bench.measurement import PLAIN
from specd.bench.report import Cell, Report

LEAST_SPEED = 0.03  # share of a speed-up that must be lost to count, whatever the intervals say
LEAST_PLAIN_SPEED = 0.15  # the same for tokens per second, which depend on what else the machine does
LEAST_ACCEPTANCE = 0.05  # of the rate, in points
_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Fall:
    """A metric that fell beyond noise."""

    metric: str
    category: str
    method: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.metric} of {self.method} on {self.category} fell from {self.before:.2f} to {self.after:.2f}"


def falls(before: Report, after: Report) -> list[Fall]:
    """What fell, of all that both have measured.

    A speed fell when its interval lies wholly below the earlier one, and by enough to matter. Acceptance counts tokens,
    so its noise is that of the counts; the tokens of one draft share their fate, so that drafts are what is counted.
    How much is drafted depends on the machine: only rates are compared, and only where both drafted.
    """
    found = []
    for new in after.cells:
        old = before.cell(new.category, new.method)
        if old is not None:
            found += _speed(old, new) + _acceptance(old, new)
    return found


def num_compared(before: Report, after: Report) -> int:
    """Cells that both have."""
    return sum(before.cell(cell.category, cell.method) is not None for cell in after.cells)


def _speed(old: Cell, new: Cell) -> list[Fall]:
    plain = old.method == PLAIN
    metric, least = ("tokens/s", LEAST_PLAIN_SPEED) if plain else ("speed-up", LEAST_SPEED)
    was, now = (old.tokens_per_second, new.tokens_per_second) if plain else (old.speedup, new.speedup)
    if now.high < was.low and now.median < (1 - least) * was.median:
        return [Fall(metric, old.category, old.method, was.median, now.median)]
    return []


def _acceptance(old: Cell, new: Cell) -> list[Fall]:
    found = []
    for name, counts in new.counts.items():
        earlier = old.counts.get(name)
        was, now = earlier.acceptance_rate if earlier is not None else None, counts.acceptance_rate
        if earlier is None or was is None or now is None:
            continue
        pooled = (earlier.num_accepted_tokens + counts.num_accepted_tokens) / (
            earlier.num_draft_tokens + counts.num_draft_tokens
        )
        noise = _SIGMAS * sqrt(pooled * (1 - pooled) * (1 / earlier.num_drafts + 1 / counts.num_drafts))
        if now < was - max(LEAST_ACCEPTANCE, noise):
            found.append(Fall(f"acceptance of {name}'s tokens", old.category, old.method, was, now))
    return found
