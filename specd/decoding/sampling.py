"""From logits to distributions: penalties and filters, as small functions composed once."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specd.decoding.context import Tokens
from specd.decoding.distribution import Distribution, Probabilities
from specd.errors import EngineError, UsageError

Logits = npt.NDArray[np.float32]  # [num_rows, n_vocab]
LogitsRow = npt.NDArray[np.float32]  # [n_vocab]
Indices = npt.NDArray[np.intp]
Kept = Indices | slice  # which entries a filter keeps; ALL copies nothing
ALL = slice(None)
_BLOCK = 128  # entries whose maximum stands for them in the search for the largest
_NEGLIGIBLE = 17.0  # logits below the largest
_FIRST_NUCLEUS = 64  # tokens that top-p sorts at first; more only when they do not reach it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a distribution. The order is: logit bias, repetition, presence and frequency penalty,
    temperature, top-k, top-p, min-p.

    temperature:        0 is greedy: the most likely token, whatever the filters
    top_k:              keep the k most likely tokens; 0 keeps all
    top_p:              then the fewest tokens whose probabilities sum to top_p; 1 keeps all
    min_p:              then those at least min_p times as likely as the most likely one; 0 keeps all
    repeat_penalty:     divides positive logits of tokens seen in the window, multiplies negative ones; 1 is none
    presence_penalty:   taken off the logits of tokens seen in the window
    frequency_penalty:  the same, times how often they were seen
    penalty_window:     how many of the last tokens, prompt included, count as seen; -1 for all
    logit_bias:         added to the logits of single tokens

    Raises UsageError, with the allowed range, for a value outside it.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed, words in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and allowed(value)):
                raise UsageError(f"{name} is {value}; it must be {words}.")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise UsageError(f"The logit bias of token {token} is {bias}; it must be a number or -inf.")


_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda x: x >= 0, "0 or more"),
    ("top_k", lambda x: x >= 0, "0 (all) or more"),
    ("top_p", lambda x: 0 < x <= 1, "above 0 and at most 1"),
    ("min_p", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("repeat_penalty", lambda x: x > 0, "above 0"),
    ("presence_penalty", lambda x: True, "a number"),
    ("frequency_penalty", lambda x: True, "a number"),
    ("penalty_window", lambda x: x >= -1, "-1 (all), 0 (none) or more"),
)

ToDistribution = Callable[[LogitsRow, Tokens], Distribution]
"""Turns the logits after some tokens, and those tokens, into the distribution of the next one."""


def sampler(params: SamplingParams) -> ToDistribution:
    """The one function from logits to a distribution that drafter and verifier share.

    It never changes the logits it is given. It raises EngineError when they are not numbers.
    """

    def to_distribution(row: LogitsRow, history: Tokens) -> Distribution:
        row = penalised(biased(row, params.logit_bias), history, params)
        if params.temperature == 0:
            return greedy(row, history)
        kept = largest(row, params.top_k)
        tokens, probs = _ids(len(row))[kept], softmax(row[kept], params.temperature)
        for keep, share in ((nucleus, params.top_p), (likely_enough, params.min_p)):
            kept = keep(probs, share)
            tokens, probs = tokens[kept], probs[kept]
        return Distribution(tokens, probs / probs.sum())

    return to_distribution


def greedy(row: LogitsRow, history: Tokens) -> Distribution:
    """All probability on the largest logit; on the smallest id among equals."""
    token = int(row.argmax())
    _check(row[token])
    return Distribution.one_hot(token)


def certainty(row: LogitsRow) -> float:
    """The probability of the most likely token at temperature 1. Tokens less likely by a factor of exp(17), which sum
    to less than 1 % even over a large vocabulary that is otherwise flat, are left out: they would be most of the work.
    """
    peak = row.max()
    near = row[row > peak - _NEGLIGIBLE]
    return float(1 / np.exp(near - peak).sum()) if len(near) else 0.0


def biased(row: LogitsRow, bias: Mapping[int, float]) -> LogitsRow:
    """Add a bias to the logits of single tokens; ids that the row does not have are passed over."""
    if not bias:
        return row
    changed = row.copy()
    for token, value in bias.items():
        if 0 <= token < len(row):
            changed[token] += value
    return changed


def penalised(row: LogitsRow, history: Tokens, params: SamplingParams) -> LogitsRow:
    """Repetition penalty (Keskar et al. 2019, arXiv 1909.05858), then presence and frequency penalties, for the
    tokens among the last `penalty_window` of the history."""
    if params.repeat_penalty == 1 and params.presence_penalty == params.frequency_penalty == 0:
        return row
    window = history if params.penalty_window < 0 else history[max(0, len(history) - params.penalty_window) :]
    seen, counts = np.unique(window[window < len(row)], return_counts=True)
    logits = row[seen]
    logits = np.where(logits > 0, logits / params.repeat_penalty, logits * params.repeat_penalty)
    changed = row.copy()
    changed[seen] = logits - params.presence_penalty - params.frequency_penalty * counts
    return changed


def largest(values: npt.NDArray[Any], k: int) -> Kept:
    """The indices of the k largest values, ascending; the smaller index among equals; all when k is 0.

    The k-th largest of block maxima is a bound that at least k values reach and few others: one pass over
    150 000 values (60 µs) instead of a partition of them. Blocks are columns, whose maxima vectorise.
    """
    n = len(values)
    if not 0 < k < n:
        return ALL
    width = n // _BLOCK
    if width > k:
        columns = values[: width * _BLOCK].reshape(_BLOCK, width)
        maxima = columns.max(axis=0)
        bound = np.partition(maxima, width - k)[width - k]
        high = np.flatnonzero(maxima >= bound)
        rows, places = np.nonzero(columns[:, high] >= bound)
        rest = np.flatnonzero(values[width * _BLOCK :] >= bound) + width * _BLOCK
        candidates = np.concatenate([rows * width + high[places], rest])  # ascending
    else:
        candidates = np.arange(n)
    order = np.argsort(-values[candidates], kind="stable")[:k]
    return np.sort(candidates[order])


def softmax(logits: LogitsRow, temperature: float) -> Probabilities:
    """Probabilities at a temperature above 0, float64; -inf gives 0."""
    peak = logits.max(initial=-math.inf)
    _check(peak)
    probs: Probabilities = np.exp((logits - peak) / temperature, dtype=np.float64)
    probs /= probs.sum()
    return probs


def nucleus(probs: Probabilities, share: float) -> Kept:
    """Top-p (Holtzman et al. 2020, arXiv 1904.09751): the fewest that sum to at least `share`; ascending."""
    if share >= 1:
        return ALL
    total = probs.sum()
    candidates = _as_indices(largest(probs, _FIRST_NUCLEUS), len(probs))
    if probs[candidates].sum() < share * total:  # all that is smaller sums to less than half of what may be left out
        candidates = np.flatnonzero(probs >= (1 - share) * total / (2 * len(probs)))
    candidates = candidates[np.argsort(-probs[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(probs[candidates]), share * total)) + 1
    return np.sort(candidates[:count])


def likely_enough(probs: Probabilities, share: float) -> Kept:
    """Min-p (Nguyen et al. 2024, arXiv 2407.01082): those at least `share` times as likely as the likeliest; never
    those that cannot come at all."""
    bound = max(share * probs.max(), float(np.finfo(np.float64).tiny))
    return ALL if probs.min() >= bound else np.flatnonzero(probs >= bound)


def _as_indices(kept: Kept, n: int) -> Indices:
    return np.arange(n)[kept] if isinstance(kept, slice) else kept


@lru_cache(maxsize=8)
def _ids(n: int) -> Tokens:
    """All token ids."""
    ids = np.arange(n, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def _check(logit: float) -> None:
    if not math.isfinite(logit):
        raise EngineError(
            "The model gave logits that are not numbers: its file is damaged, or this build of llama.cpp computes "
            "it wrongly. Compare with another model, or with another build."
        )


def distributions_along(logits: Logits, history: Tokens, to_distribution: ToDistribution) -> Iterator[Distribution]:
    """One distribution per row, when asked for: the last row follows all of `history`, each other one token less.

    logits:   `[num_draft + 1, n_vocab]`
    history:  committed tokens and then the drafted ones, `[num_context + num_draft]`
    """
    first = len(history) + 1 - len(logits)
    return (to_distribution(row, history[: first + i]) for i, row in enumerate(logits))
