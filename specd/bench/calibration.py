"""What was measured and learned on this machine, kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from specd.decoding.acceptance import Acceptance
from specd.decoding.context import as_tokens
from specd.decoding.costs import PassCosts
from specd.models.folders import write_whole

if TYPE_CHECKING:
    from specd.llama.engine import Engine

MEASURING_SECONDS = 1.0  # for all models together, once per file and machine
SHARE_OF_LOADING = 0.03  # of the time to load a big model that measuring may take instead
_FIRST_WIDTHS = (1, 4, 2, 8, 1, 16, 2, 1, 32, 3, 6, 12, 24)  # what is most worth knowing comes first, and often
_MOST_PADDED = 8  # tokens
_WORTH_PADDING = 0.95  # of what an unpadded pass costs, at most
_MUST_KNOW = 2  # of these, whatever they take: without them nothing can be decided
_Parsed = TypeVar("_Parsed")
_FORMAT = 1  # of the files; raise it when they change


class Calibration:
    """Cost tables by model file, threads and context size, and acceptance by pair of models.

    What cannot be read is measured or learned anew, and what cannot be written is lost: neither stops a run.

    folder:  where the files are
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def costs(
        self, engine: Engine, max_tokens: int, context_length: int, seconds: float, clock: Callable[[], float]
    ) -> PassCosts:
        """The costs of passes of 1 … `max_tokens` tokens behind a context of a length: kept ones, or measured now.

        seconds:  that measuring may take. It leaves the engine empty.
        """
        bucket = _bucket(context_length)
        for near in (bucket, *range(bucket - 1, -1, -1)):
            kept = self._read(_costs_file(engine, near), _costs)
            if kept is not None and 2 * max(kept.table()) >= max_tokens:  # not one of narrow passes only
                return kept
        table = measure(engine, max_tokens, seconds, clock)
        self._write(_costs_file(engine, 0), table)
        return PassCosts(table)

    def draft_costs(
        self, engine: Engine, max_tokens: int, context_length: int, seconds: float, clock: Callable[[], float]
    ) -> PassCosts:
        """The same for an engine that decodes token by token: where passes over a few tokens are cheaper than over one,
        it pads them from now on, and the costs are those."""
        engine.least_tokens = 1
        costs = self.costs(engine, max_tokens, 0, seconds, clock)
        least = min(range(1, min(_MOST_PADDED, max_tokens) + 1), key=costs.seconds)
        if costs.seconds(least) > _WORTH_PADDING * costs.seconds(1):
            return self.costs(engine, max_tokens, context_length, seconds, clock)
        engine.least_tokens = least
        for near in range(_bucket(context_length), -1, -1):
            if (kept := self._read(_costs_file(engine, near), _costs)) is not None:
                return kept
        return PassCosts(padded(costs.table(), least))

    def keep_costs(self, engine: Engine, context_length: int, costs: PassCosts) -> None:
        """Keep a table as it was at the end of a run."""
        self._write(_costs_file(engine, _bucket(context_length)), costs.table())

    def acceptance(self, pair: str) -> Acceptance:
        """What is known about a pair of models, or a target alone."""
        return self._read(_acceptance_file(pair), Acceptance.from_json) or Acceptance.from_json({})

    def keep_acceptance(self, pair: str, acceptance: Acceptance) -> None:
        """Keep what is known now."""
        self._write(_acceptance_file(pair), acceptance.as_json())

    def _read(self, name: str, parse: Callable[[Any], _Parsed]) -> _Parsed | None:
        try:
            content = json.loads((self._folder / name).read_text())
            return parse(content["content"]) if content["format"] == _FORMAT else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write(self, name: str, content: Mapping[Any, Any]) -> None:
        with contextlib.suppress(OSError):
            write_whole(self._folder / name, json.dumps({"format": _FORMAT, "content": content}))


def measure(engine: Engine, max_tokens: int, seconds: float, clock: Callable[[], float]) -> dict[int, float]:
    """Seconds of passes by their number of tokens, the median of as many repeats as fit.

    The widths most worth knowing come first; one that would not fit into the time left is left out, and again and
    again the rest are measured until the time is over. The first passes, in which llama.cpp sets itself up and weights
    are read from disk, are thrown away. Leaves the engine empty.
    """
    widths = [n for n in _FIRST_WIDTHS if n <= max_tokens]
    widths += [n for n in range(1, max_tokens + 1) if n not in widths]
    tokens = as_tokens([n % engine.n_vocab for n in range(max_tokens + 1)])
    times: dict[int, list[float]] = {}
    for n in (1, 2):
        engine.sync(tokens[:0])
        engine.sync(tokens[:n], num_rows=1)
    end = clock() + seconds
    while True:
        done = 0
        for n in widths:
            expected = median(times[n]) if n in times else max(map(median, times.values()), default=0.0)
            if clock() + expected > end and len(times) >= min(_MUST_KNOW, max_tokens):
                continue
            engine.sync(tokens[:1])
            started = clock()
            engine.sync(tokens[: n + 1], num_rows=min(n, engine.max_rows))
            times.setdefault(n, []).append(clock() - started)
            done += 1
        if not done:
            engine.sync(tokens[:0])
            return {n: median(values) for n, values in sorted(times.items())}


def padded(seconds: Mapping[int, float], least: int) -> dict[int, float]:
    """What passes cost when those over fewer tokens are padded."""
    costs = PassCosts(seconds)
    return {n: costs.seconds(max(n, least)) for n in sorted({1, *seconds})}


def pair_key(target: Engine, draft: Engine | None, *, sampled: bool) -> str:
    """What acceptance is kept under: sampled text is accepted less often than the most likely one."""
    return " ".join(
        [target.path.name, draft.path.name if draft is not None else "-", "sampled" if sampled else "greedy"]
    )


def _bucket(context_length: int) -> int:
    """Contexts of up to 1023, 2047, 4095 … tokens: attention over more costs more."""
    return (context_length // 1024).bit_length()


def _costs(content: Mapping[str, float]) -> PassCosts:
    table = {int(n): float(seconds) for n, seconds in content.items()}
    if 1 not in table or min(table.values()) <= 0:
        raise ValueError("not a table of costs")
    return PassCosts(table)


def _costs_file(engine: Engine, bucket: int) -> str:
    return f"costs/{_digest(engine.identity)}-{bucket}.json"


def _acceptance_file(pair: str) -> str:
    return f"acceptance/{_digest(pair)}.json"


def _digest(key: object) -> str:
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
