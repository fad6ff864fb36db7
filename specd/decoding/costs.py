"""What decoding costs: seconds per pass by its number of tokens, as measured."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

WINDOW = 8  # passes that are near enough in time to be compared with each other
MIN_SEEN = 3  # comparisons that outweigh the table
NUM_SEEN = 9  # comparisons that are remembered
DOUBT = 1.25  # factor between expected and seen costs at which the table must be checked against a plain step


@dataclass(slots=True)
class _Pass:
    """A pass that was seen. ratio: of its seconds to the table's."""

    num_tokens: int
    ratio: float
    compared: bool = False


class PassCosts:
    """Seconds of a pass over n tokens: a table, kept true by every pass that is seen.

    The cost is a staircase (kernels work on 4, 8 or 16 rows), so each width stands for itself; between measured
    widths the cost is interpolated, beyond them it goes on with the cost per token of the widest. Two things are
    learned apart. The speed of the machine now, which applies to all widths: it changes within seconds when other
    programs run. And the table's error at a width: how its passes compare with plain steps near to them in time.
    Medians keep single slow passes out of both.

    seconds:  by number of tokens; must have an entry for 1
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        assert 1 in seconds
        self._table = dict(sorted(seconds.items()))
        self._window: deque[_Pass] = deque(maxlen=WINDOW)
        self._comparisons: dict[int, deque[float]] = {}  # by width: passes over plain steps nearby, against the table
        self._plain_speed = 1.0  # when it was last seen
        self._speed = 1.0
        self._errors: dict[int, float] = {1: 1.0}  # by width: how the table is wrong about it, against plain steps
        self._corrected: dict[int, float] = {}  # the table without these errors, as far as it was asked for

    @property
    def speed(self) -> float:
        """How much longer passes take now than the table says."""
        return self._speed

    def seconds(self, num_tokens: int) -> float:
        """Expected seconds of a pass over `num_tokens`."""
        return self._correct(num_tokens) * self._speed

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Take in what a pass cost; a clock too coarse to see it says nothing."""
        if seconds <= 0:
            return
        self._window.append(_Pass(num_tokens, seconds / self._from_table(num_tokens)))
        if plain := [each.ratio for each in self._window if each.num_tokens == 1]:
            self._plain_speed = median(plain)
            for each in self._window:
                if each.num_tokens > 1 and not each.compared:
                    self._compare(each)
        if len(self._window) >= MIN_SEEN:
            self._speed = median(self._speeds())

    @property
    def is_doubtful(self) -> bool:
        """Whether passes cost something else than expected and no plain step nearby tells whether plain ones do too."""
        if len(self._window) < MIN_SEEN or any(each.num_tokens == 1 for each in self._window):
            return False
        latest = [speed / self._plain_speed for speed in self._speeds()[-MIN_SEEN:]]
        return min(latest) > DOUBT or max(latest) < 1 / DOUBT

    def table(self) -> dict[int, float]:
        """The estimate for every width that was measured or seen."""
        return {n: self.seconds(n) for n in sorted({*self._table, *self._comparisons})}

    def _compare(self, wide: _Pass) -> None:
        """Learn the table's error at a width from a pass and plain steps near to it."""
        wide.compared = True
        seen = self._comparisons.setdefault(wide.num_tokens, deque(maxlen=NUM_SEEN))
        seen.append(wide.ratio / self._plain_speed)
        if len(seen) >= MIN_SEEN:
            self._errors[wide.num_tokens] = median(seen)
            self._errors = dict(sorted(self._errors.items()))
            self._corrected.clear()

    def _speeds(self) -> list[float]:
        """Of the passes in the window."""
        return [
            each.ratio * self._from_table(each.num_tokens) / self._correct(each.num_tokens) for each in self._window
        ]

    def _correct(self, num_tokens: int) -> float:
        if (known := self._corrected.get(num_tokens)) is None:
            known = self._from_table(num_tokens) * _interpolated(self._errors, num_tokens)
            self._corrected[num_tokens] = known
        return known

    def _from_table(self, num_tokens: int) -> float:
        if (known := self._table.get(num_tokens)) is not None:
            return known
        widest = max(self._table)
        if num_tokens > widest:
            return self._table[widest] * num_tokens / widest
        return _interpolated(self._table, num_tokens)


def _interpolated(values: Mapping[int, float], n: int) -> float:
    """Between the entries around n, which are in ascending order; the last entry beyond them."""
    places = list(values)
    right = bisect_left(places, n)
    if right == len(places):
        return values[places[-1]]
    above = places[right]
    if above == n or right == 0:
        return values[above]
    below = places[right - 1]
    share = (n - below) / (above - below)
    return (1 - share) * values[below] + share * values[above]
