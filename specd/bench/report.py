"""What a benchmark found, as values and as JSON."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from specd.bench.measurement import PLAIN, Question, Trial
from specd.decoding.statistics import DrafterCounts
from specd.errors import UsageError

FORMAT = 1  # of the JSON; raised when a field changes its meaning or goes
CONFIDENCE = 0.95  # of all intervals
MIN_TRIALS = 3  # fewer have no interval worth showing
NOISY = 0.1  # spread of plain decoding above which small differences say nothing
_RESAMPLES = 2000
_NORMAL = 1.96  # quantile of CONFIDENCE, two-sided
_STUDENT = (  # the same of Student's t: from so many degrees of freedom on
    *((60, 2.00), (30, 2.04), (20, 2.09), (15, 2.13), (12, 2.18), (10, 2.23), (9, 2.26), (8, 2.31), (7, 2.36)),
    *((6, 2.45), (5, 2.57), (4, 2.78), (3, 3.18), (2, 4.30), (1, 12.71)),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and the bootstrap interval of it (Efron 1979) at CONFIDENCE, wider where there are few values.

    The bootstrap of few values is too sure of itself: it sees no others. Its bounds are moved out, as ratios of the
    median, by what Student's t asks for over the normal distribution, and by sqrt(n / (n - 1)) (Hesterberg 2015).
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Of at least one value above 0."""
        n, middle = len(values), float(np.median(values))
        draws = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, n))
        low, high = np.quantile(np.median(draws, axis=1), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
        if n < 2:
            return cls(middle, middle, middle)
        wider = next((t for least, t in _STUDENT if n - 1 >= least), _NORMAL) / _NORMAL * math.sqrt(n / (n - 1))
        return cls(middle, middle * (low / middle) ** wider, middle * (high / middle) ** wider)

    def widened(self, spread: float) -> "Interval":
        """With an independent uncertainty by a factor of up to 1 + `spread` to either side."""
        drift = math.log(1 + spread)
        below, above = math.log(self.median / self.low), math.log(self.high / self.median)
        low, high = math.exp(-math.hypot(below, drift)), math.exp(math.hypot(above, drift))
        return Interval(self.median, self.median * low, self.median * high)

    def overlaps(self, other: "Interval") -> bool:
        """Whether some value is in both."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Cell:
    """One method on one category of text.

    speedup:         decoding speed over that of plain decoding of the same prompt, trial by trial; see `cells_of`
    num_identical:   trials whose text is that of plain decoding, token by token
    oracle_speedup:  what perfect foresight would reach with the drafters there are; None where that is not known
    counts:          by drafter
    """

    category: str
    method: str
    num_trials: int
    num_tokens: int
    num_rounds: int
    num_identical: int
    tokens_per_second: Interval
    speedup: Interval
    oracle_speedup: float | None
    counts: Mapping[str, DrafterCounts]

    @property
    def has_interval(self) -> bool:
        """Whether there are trials enough for the intervals to mean anything."""
        return self.num_trials >= MIN_TRIALS

    @property
    def total(self) -> DrafterCounts:
        """Of all drafters."""
        total = DrafterCounts()
        for counts in self.counts.values():
            total.merge(counts)
        return total

    @property
    def verdict(self) -> Literal["faster", "slower", "same"]:
        """Against plain decoding, as far as the interval tells."""
        if not self.has_interval or self.speedup.low <= 1 <= self.speedup.high:
            return "same"
        return "faster" if self.speedup.low > 1 else "slower"

    @property
    def tokens_per_pass(self) -> float:
        """The target's own token included."""
        return self.num_tokens / self.num_rounds


@dataclass(frozen=True, slots=True)
class Parting:
    """An answer that parted from plain decoding's. gap: between the two likeliest logits at that place."""

    category: str
    name: str
    method: str
    position: int
    gap: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a drafter costs, and so can give.

    share:       a drafted token, in plain steps
    bound:       speed over plain decoding if it were always right
    break_even:  the acceptance from which it pays; None when it never does
    """

    share: float
    bound: float
    break_even: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """All of a benchmark.

    machine, models, settings:  as for JSON: what it ran on, with, and how
    prefill:                    by category, tokens of prompt per second
    pass_seconds:               by model ("target", "draft") and tokens, what a pass takes
    noise:                      how far plain decoding of the same prompt varied between repeats; None with one repeat
    """

    machine: Mapping[str, Any]
    models: Mapping[str, Any]
    settings: Mapping[str, Any]
    seconds: float
    peak_memory_bytes: int
    cells: Sequence[Cell]
    prefill: Mapping[str, float]
    pass_seconds: Mapping[str, Mapping[int, float]]
    drafters: Mapping[str, Costs]
    partings: Sequence[Parting] = field(default_factory=list)
    noise: float | None = None
    format: int = field(default=FORMAT)

    @property
    def methods(self) -> list[str]:
        """In the order in which they were asked for."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def categories(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(cell.category for cell in self.cells))

    def cell(self, category: str, method: str) -> Cell | None:
        """None when there is none."""
        return next((cell for cell in self.cells if (cell.category, cell.method) == (category, method)), None)

    def oracle_speedup(self, category: str) -> float | None:
        """Of perfect foresight; None where that is not known."""
        return next((cell.oracle_speedup for cell in self.cells if cell.category == category), None)

    def counts(self, method: str) -> dict[str, DrafterCounts]:
        """By drafter, over all categories."""
        sums: dict[str, DrafterCounts] = {}
        for cell in self.cells:
            if cell.method == method:
                for name, counts in cell.counts.items():
                    sums.setdefault(name, DrafterCounts()).merge(counts)
        return sums

    def overall(self, method: str) -> float | None:
        """The geometric mean of a method's speed-ups over all categories."""
        speedups = [cell.speedup.median for cell in self.cells if cell.method == method]
        return float(np.exp(np.mean(np.log(speedups)))) if speedups else None

    def share_of_oracle(self, method: str) -> float | None:
        """How much of the speed of perfect foresight a method reached, geometric mean over categories."""
        shares = [
            cell.speedup.median / cell.oracle_speedup
            for cell in self.cells
            if cell.method == method and cell.oracle_speedup is not None
        ]
        return float(np.exp(np.mean(np.log(shares)))) if shares else None

    def as_json(self) -> dict[str, Any]:
        """All of it, with the derived numbers."""
        content = asdict(self)
        for entry, cell in zip(content["cells"], self.cells, strict=True):
            entry["counts"] = {name: counts.as_dict() for name, counts in cell.counts.items()}
            entry["acceptance_rate"] = cell.total.acceptance_rate
            entry["tokens_per_pass"] = cell.tokens_per_pass
        content["overall_speedup"] = {method: self.overall(method) for method in self.methods}
        content["share_of_oracle"] = {method: self.share_of_oracle(method) for method in self.methods}
        return content

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Raises UsageError for what is not a report of this format."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']}, not {FORMAT}")
            return cls(
                **{name: content[name] for name in ("machine", "models", "settings", "seconds", "peak_memory_bytes")},
                cells=[_cell(entry) for entry in content["cells"]],
                prefill=content["prefill"],
                pass_seconds={
                    name: {int(n): seconds for n, seconds in table.items()}
                    for name, table in content["pass_seconds"].items()
                },
                drafters={name: Costs(**costs) for name, costs in content["drafters"].items()},
                partings=[Parting(**parting) for parting in content["partings"]],
                noise=content["noise"],
            )
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not a report of specd bench --json: {error}.") from error


def cells_of(trials: Sequence[Trial], oracles: Mapping[str, float]) -> list[Cell]:
    """Trials by category and method, each compared with the plain one of its question and repeat.

    Pairs of trials cancel how fast the machine is, but not how wide passes compare with narrow ones, which changes with
    what else it does, and more so between runs than within one. So speed-ups are uncertain by half of the spread of
    plain decoding besides: with it, more than 90 % of the cells of any two of three runs overlapped, without it 85 %.

    oracles:  by category
    """
    plain = {(id(trial.question), trial.repeat): trial for trial in trials if trial.method == PLAIN}
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        if (id(trial.question), trial.repeat) in plain:
            groups[trial.question.category, trial.method].append(trial)
    drift = (noise_of(trials) or 0.0) / 2
    methods = list(dict.fromkeys(method for _, method in groups))
    ordered = sorted(methods, key=lambda method: method != PLAIN)
    categories = list(dict.fromkeys(category for category, _ in groups))
    return [
        _summed(groups[category, method], plain, oracles.get(category), drift)
        for category in categories
        for method in ordered
        if (category, method) in groups
    ]


def noise_of(trials: Sequence[Trial]) -> float | None:
    """The median over questions of how much faster the fastest plain trial was than the slowest; None without two."""
    speeds: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.method == PLAIN:
            speeds[id(trial.question)].append(trial.tokens_per_second)
    spreads = [max(each) / min(each) - 1 for each in speeds.values() if len(each) > 1]
    return median(spreads) if spreads else None


def prefill_of(questions: Sequence[Question]) -> dict[str, float]:
    """By category, tokens of prompt per second."""
    tokens: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    for question in questions:
        tokens[question.category] += len(question.prompt)
        seconds[question.category] += question.prefill_seconds
    return {category: tokens[category] / max(seconds[category], 1e-9) for category in tokens}


def _summed(
    trials: Sequence[Trial], plain: Mapping[tuple[int, int], Trial], oracle: float | None, drift: float
) -> Cell:
    counts: dict[str, DrafterCounts] = defaultdict(DrafterCounts)
    for trial in trials:
        for name, own in trial.statistics.by_drafter.items():
            counts[name].merge(own)
    ratios = [trial.tokens_per_second / plain[id(trial.question), trial.repeat].tokens_per_second for trial in trials]
    return Cell(
        category=trials[0].question.category,
        method=trials[0].method,
        num_trials=len(trials),
        num_tokens=sum(trial.statistics.num_completion_tokens for trial in trials),
        num_rounds=sum(trial.statistics.num_rounds for trial in trials),
        num_identical=sum(not trial.has_parted for trial in trials),
        tokens_per_second=Interval.of([trial.tokens_per_second for trial in trials]),
        speedup=Interval.of(ratios).widened(drift if trials[0].method != PLAIN else 0.0),
        oracle_speedup=oracle,
        counts=dict(counts),
    )


def _cell(entry: Mapping[str, Any]) -> Cell:
    names = ("category", "method", "num_trials", "num_tokens", "num_rounds", "num_identical", "oracle_speedup")
    return Cell(
        **{name: entry[name] for name in names},
        tokens_per_second=Interval(**entry["tokens_per_second"]),
        speedup=Interval(**entry["speedup"]),
        counts={name: _counts(each) for name, each in entry["counts"].items()},
    )


def _counts(entry: Mapping[str, Any]) -> DrafterCounts:
    return DrafterCounts(**{name: value for name, value in entry.items() if name != "acceptance_rate"})
