"""A benchmark on the terminal."""

from itertools import zip_longest
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specd.bench.measurement import PLAIN
from specd.bench.report import NOISY, Cell, Parting, Report
from specd.terminal.console import uses_color
from specd.terminal.progress import duration
from specd.terminal.text import is_terminal

_STYLES = {"faster": "green", "slower": "red", "same": "dim"}
_BAR = 12  # cells
_POSITIONS = 8  # of drafts, whose acceptance is listed
_PARTINGS = 6  # that are listed
NEAR_TIE = 0.5  # difference of logits that rounding in other batches can make up for, or nearly


def print_report(report: Report, stream: TextIO) -> None:
    """Tables on a terminal fit it; in a pipe lines are never cut or wrapped."""
    width = None if is_terminal(stream) else 1000
    console = Console(
        file=stream, width=width, highlight=False, markup=False, no_color=not uses_color(stream), emoji=False
    )
    console.print(_speeds(report))
    for line in (*_overall(report), "", *_why(report), "", *_remarks(report)):
        console.print(line, soft_wrap=True)


def _speeds(report: Report) -> Table:
    """Speed over plain decoding by category and method."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("plain", justify="right", no_wrap=True)
    methods = [method for method in report.methods if method != PLAIN]
    for method in methods:
        table.add_column(method, no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    top = max([1.0, *(cell.speedup.median for cell in report.cells)])
    for category in report.categories:
        plain = report.cell(category, PLAIN)
        cells = [report.cell(category, method) for method in methods]
        best = report.oracle_speedup(category)
        table.add_row(
            category,
            f"{plain.tokens_per_second.median:.1f} t/s" if plain is not None else "",
            *(_speed(cell, top) for cell in cells),
            f"{best:.2f}×" if best is not None else "",
        )
    return table


def _speed(cell: Cell | None, top: float) -> Text:
    """A number with its interval, and a bar. Dim where it may as well be plain decoding's."""
    if cell is None:
        return Text("")
    value, style = cell.speedup, _STYLES[cell.verdict]
    interval = f" {value.low:.2f}–{value.high:.2f} " if cell.has_interval else " "
    filled = max(1, round(_BAR * value.median / top))
    return Text.assemble((f"{value.median:.2f}×", style), (interval, "dim"), ("█" * filled, style))


def _overall(report: Report) -> list[str]:
    parts = []
    for method in report.methods:
        overall, share = report.overall(method), report.share_of_oracle(method)
        if method != PLAIN and overall is not None:
            parts.append(f"{method} {overall:.2f}×" + (f" ({share:.0%} of the most)" if share is not None else ""))
    num_trials = min((cell.num_trials for cell in report.cells), default=0)
    return [
        f"Over all kinds (geometric mean): {', '.join(parts)}. Median and 95 % interval of at least {num_trials} "
        f"{'trial' if num_trials == 1 else 'trials'} each. At most: with perfect foresight."
    ]


def _why(report: Report) -> list[str]:
    lines = []
    for name, table in report.pass_seconds.items():
        plain = table[1]
        steps = ", ".join(f"{n}: {table[n] / plain:.1f}" for n in (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32) if n in table)
        lines.append(f"A pass of the {name} over 1 token takes {1000 * plain:.1f} ms; over more, times that: {steps}.")
    for name, costs in report.drafters.items():
        pays = "it never pays" if costs.break_even is None else f"it pays from {costs.break_even:.0%} accepted"
        lines.append(
            f"A token of {name} costs {costs.share:.2f} plain steps; perfect drafts would give {costs.bound:.2f}× "
            f"here, and {pays}."
        )
    for method in report.methods:
        for name, accepted in _by_position(report, method).items():
            lines.append(f"{method}: {name} accepted by position {accepted}.")
    return lines


def _by_position(report: Report, method: str) -> dict[str, str]:
    """By drafter, the share of its tokens that was accepted at each position of a draft."""
    return {
        name: " ".join(
            f"{100 * hits / total:.0f}" if total else "–"
            for hits, total in zip_longest(
                counts.accepted_per_position[:_POSITIONS], counts.draft_per_position[:_POSITIONS], fillvalue=0
            )
        )
        + " %"
        for name, counts in report.counts(method).items()
        if counts.draft_per_position
    }


def _remarks(report: Report) -> list[str]:
    speculated = [cell for cell in report.cells if cell.method != PLAIN]
    same, total = sum(cell.num_identical for cell in speculated), sum(cell.num_trials for cell in speculated)
    lines = [f"{same} of {total} answers are those of plain decoding, token by token."]
    lines += _partings(report)
    lines.append(
        f"Prompts: {_range(report.prefill.values())} tokens/s. Peak memory {report.peak_memory_bytes / 1e9:.2f} GB. "
        f"Measured in {duration(report.seconds)}."
    )
    if report.noise is not None and report.noise > NOISY:
        lines.append(
            f"The machine was noisy: plain decoding of the same prompt varied by {report.noise:.0%}. Differences "
            "inside the intervals say nothing; close other programs, or give --minutes more."
        )
    return lines


def _partings(report: Report) -> list[str]:
    """Where answers part from plain decoding's, the largest gaps first."""
    places: dict[tuple[str, int], list[Parting]] = {}
    for parting in report.partings:
        places.setdefault((parting.name, parting.position), []).append(parting)
    lines = []
    for (name, position), partings in sorted(places.items(), key=lambda place: -place[1][0].gap):
        gap = max(parting.gap for parting in partings)
        what = "a near tie" if gap < NEAR_TIE else "NOT a near tie: try specd bench --check"
        methods = ", ".join(parting.method for parting in partings)
        lines.append(
            f"  {name}: {methods} part at token {position + 1}, where the two likeliest tokens differ by {gap:.3f} "
            f"({what})."
        )
    more = [f"  … and {len(lines) - _PARTINGS} more places (--json has all)."] if len(lines) > _PARTINGS else []
    return lines[:_PARTINGS] + more


def _range(values: Any) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
