"""Makes smaller drafts and measures them, with a record that makes it worth nothing to be stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from specd.bench.calibration import Calibration
from specd.bench.pairs import in_ids_of
from specd.bench.replay import Replay
from specd.bench.slimming import SAME, Choice, Measured, Terms
from specd.bench.trace import Step, Trace, foretold
from specd.decoding.context import TokenBuffer, Tokens, as_tokens
from specd.decoding.costs import PassCosts
from specd.errors import EngineError
from specd.models.cutting import Parent, Value
from specd.models.folders import write_whole

if TYPE_CHECKING:
    from specd.llama.engine import Engine

_FORMAT = 3  # of the record; raise it when what is measured changes
_ROWS = 64  # positions of an answer that a draft is asked about at once
_WIDTHS = (1, 2, 4, 8)  # of padded decodes
_REPEATS = 12  # of each width
_BEHIND = 64  # tokens behind which costs are measured
_MEASURING_SECONDS = 4.0  # of the target's passes


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and the target's greedy answer."""

    prompt: Tokens
    answer: Tokens


class Record:
    """What was measured, kept in a file by what it depends on.

    file:  written after each measurement
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self.content: dict[str, Any] = json.loads(file.read_text())
            assert self.content["format"] == _FORMAT
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            self.content = {
                "format": _FORMAT,
                "answers": {},
                "target_seconds": {},
                "costs": {},
                "choices": {},
                "chosen": {},
            }

    @classmethod
    def of(cls, folder: Path, *what: object) -> Record:
        """The record for these circumstances."""
        key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
        return cls(folder / "slim" / f"{key}.json")

    def choice(self, question: str) -> Choice | None:
        """What was found best for a question; None when it was not asked."""
        if (kept := self.content["chosen"].get(question)) is None:
            return None
        kind, num_tokens, layers = kept
        return Choice(kind, num_tokens, tuple(layers) if layers is not None else None)

    def keep_choice(self, question: str, choice: Choice) -> None:
        """Remember it."""
        self.content["chosen"][question] = [choice.kind, choice.num_tokens, choice.layers]
        self.keep()

    def keep(self) -> None:
        """Write it; a record that cannot be written costs time, not the result."""
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(self.content))


class Workshop:
    """Makes files for choices, and measures them against the target.

    folder:    for files in between
    quantize:  writes a file with the parent's weights in another type
    cache:     the folder in which comparisons of vocabularies, and what llama.cpp survives, are kept
    """

    def __init__(
        self,
        target: Engine,
        parent: Parent,
        path: Path,
        record: Record,
        *,
        folder: Path,
        cache: Path,
        quantize: Callable[[str, Path], None],
    ) -> None:
        self._target, self._parent, self._path, self._record = target, parent, path, record
        self._folder, self._cache, self._quantize = folder, cache, quantize
        self._texts: dict[str, Text] = {}
        self._survived: set[object] = set()
        self._yardstick: Engine | None = None

    def close(self) -> None:
        """Free the parent, if it was loaded."""
        if self._yardstick is not None:
            self._yardstick.close()

    def require_fit(self) -> None:
        """Raise EngineError, with the reason, where the parent cannot draft for the target."""
        from specd.llama.pairing import pair

        parent = self._loaded_parent()
        if (reason := pair(self._target, parent, self._cache / "pairs").reason) is not None:
            raise EngineError(f"{parent.path.name} cannot draft for {self._target.path.name}: {reason}.")

    def answer(self, prompts: Mapping[str, Tokens], lengths: Mapping[str, int]) -> None:
        """Have the target answer prompts by name, greedily, with at most so many tokens."""
        known = self._record.content["answers"]
        for name, prompt in prompts.items():
            if name not in known:
                known[name] = self._answered(prompt, lengths[name])
                self._record.keep()
            self._texts[name] = Text(prompt, as_tokens(known[name]))

    def terms(self, calibration: Calibration) -> Terms:
        """What passes of the target cost, and what lookup reaches; the same each time that the record is used."""
        kept = self._record.content["target_seconds"]
        if not kept:
            costs = calibration.costs(self._target, self._target.max_rows, 0, _MEASURING_SECONDS, time.perf_counter)
            kept |= {str(n): seconds for n, seconds in costs.table().items()}
            self._record.keep()
        seconds = {int(n): each for n, each in kept.items()}
        without = {}
        for name, text in self._texts.items():
            steps = tuple(Step(token, 1.0, ()) for token in text.answer.tolist())
            replay = Replay(Trace(name, "", "", seconds, seconds, text.prompt, steps, as_tokens([])))
            without[name] = replay.plain_seconds / replay.best_fixed("lookup")[1]
        return Terms(PassCosts(seconds), without)

    def measure(self, choice: Choice, names: Sequence[str]) -> Measured:
        """From the record as far as it goes. Raises EngineError where llama.cpp cannot work with such a file.

        What a token costs is measured in turns with the parent, as machines are seldom quiet, and the parent's in turns
        with the target.
        """
        key = json.dumps([choice.kind, choice.num_tokens, choice.layers])
        kept = self._record.content["choices"].setdefault(key, {"hits": {}})
        shape = json.dumps([choice.kind, choice.num_tokens, len(choice.layers) if choice.layers else None])
        prices = self._record.content["costs"]
        missing = [name for name in names if name not in kept["hits"]]
        if missing or shape not in prices:
            file = self._folder / "candidate.gguf"
            self.make(choice, file, {})
            try:
                cost = self._measure_file(choice, file, missing, kept["hits"], priced=shape in prices)
            finally:
                file.unlink(missing_ok=True)
            prices.setdefault(shape, cost)
            self._record.keep()
        hits = {name: tuple(digit == "1" for digit in kept["hits"][name]) for name in names}
        return Measured(prices[shape] * self._parent_cost(), hits)

    def _parent_cost(self) -> float:
        """Of a token of the parent, in plain steps of the target."""
        from specd.llama.library import compute

        costs = self._record.content["costs"]
        if "parent" not in costs:
            parent, target = self._loaded_parent(), self._target
            work = partial(ratio, parent, _WIDTHS, target, (1,), 2 * _REPEATS)
            costs["parent"] = compute(target.interrupt, work)
            self._record.keep()
        cost: float = costs["parent"]
        return cost

    def _loaded_parent(self) -> Engine:
        from specd.llama.engine import Engine

        if self._yardstick is None:
            target = self._target
            self._yardstick = Engine(self._path, threads=target.threads, max_rows=1, interrupt=target.interrupt)
            self._yardstick.allocate(2 * _BEHIND)
        return self._yardstick

    def make(self, choice: Choice, file: Path, notes: Mapping[str, Value]) -> None:
        """Write the file of a choice. The same choice and notes give the same bytes."""
        weights = self._path
        if choice.kind != SAME:
            weights = self._folder / f"{choice.kind}.gguf"
            if not weights.exists():
                self._quantize(choice.kind, weights)
        self._parent.write(file, weights, choice.num_tokens, choice.layers, notes)

    def _measure_file(
        self, choice: Choice, file: Path, names: Sequence[str], hits: dict[str, str], *, priced: bool
    ) -> float:
        from specd.llama.engine import Engine
        from specd.llama.library import compute
        from specd.llama.pairing import compare_vocabularies
        from specd.llama.trial import TRIALS, Request, ensure_survival

        kind_of_cut = (choice.kind, choice.num_tokens, choice.layers is None)
        if kind_of_cut not in self._survived:
            ensure_survival(Request(str(file), self._target.threads, _ROWS), self._cache / TRIALS)
            self._survived.add(kind_of_cut)
        target, parent = self._target, self._loaded_parent()
        with Engine(file, threads=target.threads, max_rows=_ROWS, interrupt=target.interrupt) as draft:
            pairing = compare_vocabularies(target.vocabulary, draft.vocabulary)
            if pairing.reason is not None:
                raise EngineError(f"What was cut does not fit the target any more: {pairing.reason}.")
            draft.allocate(min(target.n_ctx * 2, draft.trained_context))
            model, _ = in_ids_of(target, draft, pairing)

            def work() -> float:
                for name in names:
                    text = self._texts[name]
                    steps = foretold(model, text.prompt, text.answer, [0.0] * len(text.answer))
                    hits[name] = "".join("1" if step.draft[0][0] == step.token else "0" for step in steps)
                return 0.0 if priced else ratio(draft, _WIDTHS, parent, _WIDTHS, _REPEATS)

            return compute(target.interrupt, work)

    def _answered(self, prompt: Tokens, length: int) -> list[int]:
        from specd.llama.library import compute

        def work() -> list[int]:
            context = TokenBuffer(prompt)
            self._target.sync(prompt[:-1])
            while len(context) < len(prompt) + length:
                token = int(self._target.advance(context.view[-1:])[-1].argmax())
                context.extend([token])
                if self._target.vocabulary.is_end(token):
                    break
            return [*map(int, context.view[len(prompt) :])]

        return compute(self._target.interrupt, work)


def ratio(engine: Engine, widths: Sequence[int], other: Engine, other_widths: Sequence[int], repeats: int) -> float:
    """What one token of a model costs in those of another, decoded in turns; each padded as is best for it.

    widths, other_widths:  of padded decodes that are tried
    """
    seconds: dict[tuple[int, int], list[float]] = {}
    for _ in range(repeats + 1):
        for number, (each, tried) in enumerate(((engine, widths), (other, other_widths))):
            tokens = as_tokens([n % each.n_vocab for n in range(_BEHIND + max(tried))])
            for width in tried:
                each.sync(tokens[:_BEHIND])
                started = time.perf_counter()
                each.sync(tokens[: _BEHIND + width], num_rows=1)
                seconds.setdefault((number, width), []).append(time.perf_counter() - started)
    cheapest = [
        min(median(seconds[number, width][1:]) for width in tried)  # the first ones set llama.cpp up
        for number, tried in enumerate((widths, other_widths))
    ]
    return cheapest[0] / cheapest[1]
