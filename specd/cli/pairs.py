"""`specd models pairs`: what can draft for a model."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from specd.bench.calibration import MEASURING_SECONDS, Calibration
from specd.bench.pairs import Verdict, in_order, judge
from specd.cli.models import here, located, tables
from specd.cli.options import ModelsFileOption
from specd.decoding.pricing import MAX_DRAFT
from specd.models.folders import state_folder
from specd.models.registry import Registry, load_registry
from specd.models.store import Store
from specd.terminal.progress import TransferProgress


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The target.", show_default="the default pair's")
    ] = None,
    models: ModelsFileOption = None,
) -> None:
    """List the files here that can draft for a model, with the reason for each that cannot.

    Each candidate that fits is measured (half a second, kept). GAIN is over plain decoding: with the acceptance seen
    so far in your runs, or usual for drafts; and at most, if the draft were always right.
    """
    from specd.llama.devices import usable_cores
    from specd.llama.engine import Engine
    from specd.llama.trial import TRIALS, Request, ensure_survival

    registry, store, progress = load_registry(models), Store(), TransferProgress(sys.stderr)
    chosen, path = located(registry, model, store, progress)
    calibration = Calibration(state_folder())
    ensure_survival(Request(str(path), usable_cores(), MAX_DRAFT + 1), store.folder / TRIALS)
    with Engine(path, threads=usable_cores(), max_rows=MAX_DRAFT + 1) as target:
        target.allocate(1024)
        costs = calibration.costs(target, MAX_DRAFT + 1, 0, MEASURING_SECONDS, time.perf_counter)
        verdicts = []
        for name, file in _candidates(registry, store, path).items():
            progress.note(f"looking at {name}")
            verdicts.append(judge(name, file, target, costs, calibration, store.folder, time.perf_counter))
    if not verdicts:
        print(f"No other model is here. specd models list shows what can be pulled for {chosen.name}.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("DRAFT", "SIZE", "TOKEN COST", "GAIN", "AT MOST", "VERDICT"):
        table.add_column(
            title, justify="left" if title in ("DRAFT", "VERDICT") else "right", no_wrap=title != "VERDICT"
        )
    for verdict in in_order(verdicts):
        table.add_row(*_row(verdict))
    tables().print(table)


def _candidates(registry: Registry, store: Store, target: Path) -> dict[str, Path]:
    """Every model that is here but the target, and the files beside it, by name."""
    files = {name: file for name, entry in registry.models.items() if (file := here(entry, store)) is not None}
    known = {file.resolve() for file in files.values()}
    for file in sorted(target.parent.glob("*.gguf")):
        if file.resolve() not in known:
            files[str(file)] = file
    return {name: file for name, file in files.items() if file.resolve() != target.resolve()}


def _row(verdict: Verdict) -> tuple[str, ...]:
    size = f"{verdict.num_bytes / 1e9:.2f} GB"
    if verdict.reason is not None or verdict.share is None or verdict.expected is None or verdict.bound is None:
        return verdict.name, size, "", "", "", f"no: {verdict.reason}"
    words = f"yes; pays from {verdict.break_even:.0%} accepted" if verdict.can_pay else "fits, but too slow to pay"
    if verdict.suggestion is not None:
        words += f"; {verdict.suggestion}"
    return verdict.name, size, f"{verdict.share:.2f} steps", f"{verdict.expected:.2f}×", f"{verdict.bound:.2f}×", words
