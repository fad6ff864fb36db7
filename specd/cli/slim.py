"""`specd models slim`: a faster draft out of one that is here."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specd import __version__
from specd.bench.calibration import Calibration
from specd.bench.slimming import GAIN, SAME, Choice, Finding, Search, Terms
from specd.bench.workloads import Workload, load_workloads, read_prompts
from specd.bench.workshop import Record, Workshop
from specd.chat.templates import Message
from specd.cli.models import located
from specd.cli.options import ModelsFileOption
from specd.cli.prompt import prompt_tokens
from specd.cli.quantize import check_name, register
from specd.decoding.context import Tokens
from specd.decoding.pricing import MAX_DRAFT
from specd.errors import EngineError, UsageError
from specd.models.cutting import Parent, Value
from specd.models.folders import state_folder
from specd.models.registry import Model, load_registry
from specd.models.store import Store, checksum, require_space
from specd.terminal.console import silent, warn
from specd.terminal.progress import TransferProgress, duration

if TYPE_CHECKING:
    from specd.llama.engine import Engine

ALL, PURE = "all", "-pure"
_CHOSEN_BY = ("code", "edit", "summary", "extraction", "chat", "story", "maths", "conversation")  # workloads
_NUM_QUICK = 3  # texts, the shortest, by which layers are ranked
_KINDS = ("q4_0", "q4_0-pure", "iq4_nl-pure", "q4_k_m", "q8_0-pure")
_NUMS = (16384, 32768, 49152, 65536, 98304)
_TOKENS = 96  # of an answer at most
_FILES = 5  # of the parent's size: what is written on the way


def command(
    draft: Annotated[str, typer.Argument(help="The draft to start from, which is here: a name or a path.")],
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="MODEL", help="What it drafts for.", show_default="the default pair's"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE|same", help="Such as q4_0, or q4_0-pure.", show_default="the best"),
    ] = None,
    vocab: Annotated[
        str | None, typer.Option("--vocab", metavar="N|all", help="Token ids below N stay.", show_default="the best")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="LIST|all", help="What stays, as in 0-9,12-23.", show_default="the best"),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="FILE", help="Prompts to choose by, as specd bench takes them."),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", metavar="M", min=0.1, help="Time for the search.")] = 15.0,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name.", show_default="DRAFT-slim")
    ] = None,
    models: ModelsFileOption = None,
) -> int:
    """Make a faster draft out of one that is here, without training, and add it to your models.toml.

    Another number format, fewer tokens, fewer layers: by the expected speed of the pair on this machine, judged on
    other texts than it was chosen by. What the target says does not change. What was measured is kept, so that the same
    command goes on where it was stopped.
    """
    from specd.llama import library
    from specd.llama.devices import usable_cores
    from specd.llama.engine import Engine
    from specd.llama.trial import TRIALS, Request, ensure_survival

    registry, store, progress = load_registry(models), Store(), TransferProgress(sys.stderr)
    source, path = located(registry, draft, store, progress)
    goal, goal_path = located(registry, target, store, progress)
    name = name or f"{source.name.removesuffix('.gguf')}-slim"
    file = store.folder / "models" / "slim" / f"{name}.gguf"
    if not (is_again := name in registry.models and registry.models[name].path == file):
        check_name(name, registry)
    chosen_by, judged_by = _texts(calibrate)
    require_space(file.parent, _FILES * path.stat().st_size, f"Making {name}")
    progress.note(f"reading {source.name}")
    parent = Parent(path)
    asked = _Asked(parent, kind.lower() if kind is not None else None, vocab, layers, minutes)
    threads, rows = usable_cores(), MAX_DRAFT + 1
    for each in (path, goal_path):
        ensure_survival(Request(str(each), threads, rows), store.folder / TRIALS)
    with ExitStack() as stack:
        work = file.with_suffix(".work")
        work.mkdir(parents=True, exist_ok=True)
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        engine = stack.enter_context(Engine(goal_path, threads=threads, max_rows=rows))
        sample = _Sample.of(engine, goal, chosen_by, judged_by)
        engine.allocate(sample.longest)
        notes = {
            "parent.sha256": checksum(source, path, progress),
            "target.sha256": checksum(goal, goal_path, progress),
        }
        record = Record.of(state_folder(), notes, sample.identity, threads, library.build())
        quantize = _quantizer(path, threads, progress)
        workshop = Workshop(engine, parent, path, record, folder=work, cache=store.folder, quantize=quantize)
        stack.callback(workshop.close)
        workshop.require_fit()
        progress.note(f"asking {goal.name}: {len(sample.prompts)} answers, and what its passes cost")
        workshop.answer(sample.prompts, sample.lengths)
        terms = workshop.terms(Calibration(state_folder()))
        choice = _choose(workshop, record, asked, sample, terms, progress)
        figures, gains = _judged(workshop, choice, sample, terms)
        if not gains and not asked.anything:
            print(f"Nothing is gained: no smaller {source.name} is worth a file here.")
            return 0
        if not gains:
            print("Nothing is gained by what was asked for.")
        made = work / file.name
        workshop.make(choice, made, _noted({**notes, **_described(choice, parent), **figures}))
        made.replace(file)
    config = register(name, source, file, replaces=is_again)
    print(f"{name}: {choice}. {file.stat().st_size / 1e9:.2f} GB, was {path.stat().st_size / 1e9:.2f} GB. {file}")
    progress.note(f"It is in {config}. Try it: specd bench --model {goal.name} --draft {name}")
    return 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What stays out of the search because it was asked for. Raises UsageError or EngineError for what cannot be."""

    parent: Parent
    kind: str | None
    vocab: str | None
    layers: str | None
    minutes: float

    def __post_init__(self) -> None:
        from specd.llama.quantize import TYPES

        if self.kind is not None and self.kind.removesuffix(PURE) not in (*TYPES, SAME):
            known = ", ".join(TYPES)
            raise UsageError(f"--type {self.kind} is none of {SAME}, {known}, or one of these with {PURE} behind it.")
        cut, shorten = self.parent.why_not_fewer_tokens(), self.parent.why_not_fewer_layers()
        if self.vocab not in (None, ALL) and cut is not None:
            raise EngineError(f"--vocab {self.vocab}: the vocabulary of this model cannot be cut: {cut}.")
        if self.layers not in (None, ALL) and shorten is not None:
            raise EngineError(f"--layers {self.layers}: no layer of this model can be left out: {shorten}.")
        self.parent.kept_tokens(self.start.num_tokens)

    @property
    def anything(self) -> bool:
        """Whether a part was asked for."""
        return (self.kind, self.vocab, self.layers) != (None, None, None)

    @property
    def start(self) -> Choice:
        """What was asked for, the rest as it is."""
        num_tokens = None if self.vocab in (None, ALL) else _number(self.vocab or "")
        layers = None if self.layers in (None, ALL) else parse_layers(self.layers or "", self.parent.num_layers)
        return Choice(self.kind or SAME, num_tokens, layers)

    @property
    def kinds(self) -> list[str]:
        """Types to try: k-quants where rows are whole blocks of theirs."""
        width = self.parent.header.of_architecture("embedding_length") or 0
        return [] if self.kind is not None else [kind for kind in _KINDS if "_k" not in kind or width % 256 == 0]

    @property
    def nums(self) -> list[int]:
        """Numbers of tokens to try."""
        if self.vocab is not None or self.parent.why_not_fewer_tokens() is not None:
            return []
        return [n for n in _NUMS if n < self.parent.num_tokens]

    @property
    def num_layers(self) -> int:
        """Layers of which some may go."""
        return 0 if self.layers is not None or self.parent.why_not_fewer_layers() else self.parent.num_layers


@dataclass(frozen=True, slots=True)
class _Sample:
    """Prompts by name, and the most tokens of their answers: some to choose by, others to judge by."""

    chosen_by: tuple[str, ...]
    judged_by: tuple[str, ...]
    prompts: Mapping[str, Tokens]
    lengths: Mapping[str, int]

    @classmethod
    def of(
        cls, target: Engine, model: Model, chosen_by: Mapping[str, Workload], judged_by: Mapping[str, Workload]
    ) -> _Sample:
        """With the tokens that the target reads."""
        texts = {**chosen_by, **judged_by}
        prompts: dict[str, Tokens] = {}
        for name, each in texts.items():
            message = Message("user", each.turns[0])
            prompts[name] = prompt_tokens(target, [message], model.name, silent if prompts else warn)
        lengths = {name: min(each.bench_tokens, _TOKENS) for name, each in texts.items()}
        return cls(tuple(chosen_by), tuple(judged_by), prompts, lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest text, and of what is measured behind none."""
        return max(len(prompt) + self.lengths[name] for name, prompt in self.prompts.items()) + 2 * _TOKENS

    @property
    def quick(self) -> list[str]:
        """The shortest texts to choose by."""
        return sorted(self.chosen_by, key=lambda name: len(self.prompts[name]) + self.lengths[name])[:_NUM_QUICK]

    @property
    def identity(self) -> list[object]:
        """What measurements on it depend on."""
        return [[name, prompt.tolist(), self.lengths[name]] for name, prompt in self.prompts.items()]


def _texts(calibrate: Path | None) -> tuple[dict[str, Workload], dict[str, Workload]]:
    """By name, texts to choose by, and others to judge by. Of the user's own, every second one judges; a single one
    does both."""
    if calibrate is None:
        ours, others = load_workloads(), load_workloads("held_out")
        return {name: ours[name] for name in _CHOSEN_BY}, {f"other {name}": each for name, each in others.items()}
    own = [(f"{number}", each) for number, each in enumerate(read_prompts(calibrate, _TOKENS), start=1)]
    return dict(own[::2]), dict(own[1::2] or own)


def _choose(
    workshop: Workshop, record: Record, asked: _Asked, sample: _Sample, terms: Terms, progress: TransferProgress
) -> Choice:
    """The best choice, or the one that was found before for the same question."""
    key = str([asked.start, asked.kinds, asked.nums, asked.num_layers, asked.minutes])
    if (known := record.choice(key)) is not None:
        progress.note("The search was done before; what it found is used.")
        return known
    end = time.monotonic() + 60 * asked.minutes
    if (reason := asked.parent.why_not_fewer_tokens()) is not None and asked.vocab is None:
        progress.note(f"The vocabulary stays whole: {reason}.")
    if asked.start != Choice():
        before = workshop.measure(Choice(), sample.chosen_by)
        _tell(Finding(Choice(), before, terms.speedup(before)), progress)
    search = Search(
        workshop.measure,
        sample.chosen_by,
        sample.quick,
        terms,
        start=asked.start,
        kinds=asked.kinds,
        nums=asked.nums,
        num_layers=asked.num_layers,
    )
    for finding in search.findings():
        _tell(finding, progress)
        if time.monotonic() > end:
            progress.note(f"The {duration(60 * asked.minutes)} are over; --minutes gives more.")
            break
    record.keep_choice(key, search.best)
    return search.best


def _tell(finding: Finding, progress: TransferProgress) -> None:
    measured = finding.measured
    if measured is None:
        progress.note(f"  {finding.choice}: {finding.reason}")
        return
    progress.note(
        f"  {finding.speedup:.2f}×  {measured.cost:.2f} steps a token, {measured.agreement:.0%} foreseen: "
        f"{finding.choice}{'  (best so far)' if finding.is_best else ''}"
    )


def _judged(workshop: Workshop, choice: Choice, sample: _Sample, terms: Terms) -> tuple[dict[str, float], bool]:
    """Figures of the parent and of a choice on texts that it was not chosen by, told; and whether it gains."""
    old, new = (workshop.measure(each, sample.judged_by) for each in (Choice(), choice))
    before, after = (terms.speedup(measured) for measured in (old, new))
    print(
        f"On texts that it was not chosen by: a drafted token costs {new.cost:.2f} plain steps (was {old.cost:.2f}), "
        f"{new.agreement:.0%} of the target's are foreseen (was {old.agreement:.0%}); expected speed {after:.2f}× "
        f"plain decoding (was {before:.2f}×)."
    )
    figures = {
        "cost": new.cost,
        "agreement": new.agreement,
        "speedup": after,
        "parent.cost": old.cost,
        "parent.agreement": old.agreement,
        "parent.speedup": before,
    }
    return {name: round(value, 4) for name, value in figures.items()}, after >= GAIN * before


def _described(choice: Choice, parent: Parent) -> dict[str, Value]:
    return {
        "version": __version__,
        "type": choice.kind,
        "tokens": len(parent.kept_tokens(choice.num_tokens)),
        "layers": list(choice.layers if choice.layers is not None else range(parent.num_layers)),
    }


def _noted(notes: Mapping[str, Value]) -> dict[str, Value]:
    return {f"specd.slim.{name}": value for name, value in notes.items()}


def _quantizer(path: Path, threads: int, progress: TransferProgress) -> Callable[[str, Path], None]:
    from specd.llama.quantize import quantize

    def write(kind: str, target: Path) -> None:
        size, done = path.stat().st_size, 0

        def show(count: int, total: int) -> None:
            nonlocal done
            progress.advance((count - done) * size // total)
            done = count

        progress.start(f"quantising to {kind}", size)
        unfinished = target.with_suffix(".part")
        try:
            pure = kind.endswith(PURE)
            quantize(path, unfinished, kind.removesuffix(PURE), pure=pure, threads=threads, progress=show)
            unfinished.replace(target)
        finally:
            progress.finish()

    return write


def parse_layers(text: str, number: int) -> tuple[int, ...]:
    """Layers of a list, as in 0-3,5. Raises UsageError for anything else, and for a layer that there is not."""
    kept: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) >= number:
            raise UsageError(f"--layers must be layers from 0 to {number - 1}, as in 0-3,5,{number - 1}, not {text!r}.")
        kept.update(range(int(first), int(last or first) + 1))
    if not kept:
        raise UsageError(f"--layers {text} keeps none.")
    return tuple(sorted(kept))


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--vocab must be a number of tokens, or {ALL}, not {text!r}.")
    return int(text)
