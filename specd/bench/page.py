"""A benchmark as one page: no script, nothing from the network, light and dark, readable on a phone."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from string import Template
from xml.etree.ElementTree import Element

import pygal
from pygal.style import Style

from specd.bench.measurement import PLAIN
from specd.bench.report import Cell, Report
from specd.decoding.statistics import DrafterCounts

_WIDTH = 480  # of the charts' own coordinates: a phone's, so that their text stays readable there
_ROW, _MARGIN = 17, 110  # of bar charts: height of a bar, and of all that is not bars
_COLORS = tuple(f"var(--series-{i})" for i in range(6))
_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--text)",
    foreground_strong="var(--text)",
    foreground_subtle="var(--line)",
    font_family="inherit",
    label_font_size=14,
    major_label_font_size=14,
    legend_font_size=14,
    title_font_size=15,
    colors=_COLORS,
    value_colors=_COLORS,
    guide_stroke_color="var(--line)",
    guide_stroke_dasharray="0",
    major_guide_stroke_color="var(--line)",
    major_guide_stroke_dasharray="0",
    opacity=".9",
    opacity_hover="1",
    transition="0s",
)
_POSITIONS = 16  # of drafts


def page(report: Report) -> str:
    """The whole of it, as HTML."""
    methods = [method for method in report.methods if method != PLAIN]
    target, draft = report.models["target"], report.models["draft"]
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(
        target=escape(target["name"]),
        draft=escape(draft["name"] if draft is not None else "no draft model"),
        machine=escape(f"{report.machine['processor']}, {report.machine['cores']} cores"),
        date=escape(report.settings["date"]),
        overall=_sentence(report, methods),
        speed_chart=_speed_chart(report, methods),
        speed_table=_speed_table(report, methods),
        cost_chart=_cost_chart(report),
        drafters="\n".join(_drafters(report)),
        acceptance_chart=_acceptance_chart(report, methods),
        remarks="\n".join(f"<li>{escape(remark)}</li>" for remark in _remarks(report)),
    )


def _sentence(report: Report, methods: Sequence[str]) -> str:
    parts = [
        f"{escape(method)} <strong>{overall:.2f}×</strong>"
        for method in methods
        if (overall := report.overall(method)) is not None
    ]
    return ", ".join(parts)


def _svg(chart: pygal.graph.graph.Graph) -> str:
    chart.add_xml_filter(_without_scripts)
    return str(chart.render(is_unicode=True))


def _without_scripts(root: Element) -> Element:
    for parent in root.iter():
        for script in parent.findall("script"):
            parent.remove(script)
    return root


def _common(height: int, **more: object) -> dict[str, object]:
    return {
        "width": _WIDTH,
        "height": height,
        "style": _STYLE,
        "js": [],
        "disable_xml_declaration": True,
        "explicit_size": False,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 3,
        "pretty_print": False,
        **more,
    }


def _speed_chart(report: Report, methods: Sequence[str]) -> str:
    """Bars by category, the first one on top."""
    categories = list(reversed(report.categories))
    height = _MARGIN + _ROW * len(categories) * (len(methods) + 1)
    chart = pygal.HorizontalBar(**_common(height, range=(0, None), print_values=False))
    chart.x_labels = categories
    top = max(cell.speedup.median for cell in report.cells)
    chart.y_labels = _ticks(top)
    for method in methods:
        cells = [report.cell(category, method) for category in categories]
        chart.add(method, [round(cell.speedup.median, 2) if cell is not None else None for cell in cells])
    return _svg(chart)


def _ticks(top: float) -> list[float]:
    """At most eight round numbers from 0 to at least `top`."""
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if 7 * step >= top)
    return [step * i for i in range(math.ceil(top / step) + 1)]


def _speed_table(report: Report, methods: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", "plain, t/s", *methods, "at most"))
    rows = []
    for category in report.categories:
        cells = [report.cell(category, method) for method in methods]
        plain = report.cell(category, PLAIN)
        best = report.oracle_speedup(category)
        rows.append(
            f"<tr><th>{escape(category)}</th>"
            f"<td>{f'{plain.tokens_per_second.median:.1f}' if plain is not None else ''}</td>"
            f"{''.join(map(_speed, cells))}<td>{f'{best:.2f}×' if best is not None else ''}</td></tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _speed(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    interval = cell.speedup if cell.has_interval else None
    small = f"<small>{interval.low:.2f}–{interval.high:.2f}</small>" if interval is not None else ""
    return f'<td class="{cell.verdict}">{cell.speedup.median:.2f}×{small}</td>'


def _cost_chart(report: Report) -> str:
    """What a pass costs by its tokens, in passes over one token."""
    chart = pygal.XY(**_common(320, range=(0, None), x_title="tokens in a pass", dots_size=2))
    widest = max(n for table in report.pass_seconds.values() for n in table)
    chart.x_labels, chart.y_labels = [1, *range(8, widest + 1, 8)], _ticks(widest)
    for name, table in report.pass_seconds.items():
        chart.add(name, [(n, round(seconds / table[1], 2)) for n, seconds in table.items()])
    chart.add("one by one", [(1, 1), (widest, widest)], show_dots=False)
    return _svg(chart)


def _acceptance_chart(report: Report, methods: Sequence[str]) -> str:
    """The share of drafted tokens accepted at each position."""
    chart = pygal.Line(**_common(320, range=(0, 100), x_title="position in the draft", dots_size=2))
    chart.x_labels = [str(i + 1) for i in range(_POSITIONS)]
    chart.x_labels_major = ["1", "4", "8", "12", "16"]
    chart.show_minor_x_labels = False
    for method in methods:
        total = DrafterCounts()
        for counts in report.counts(method).values():
            total.merge(counts)
        shares = [
            100 * hits / number if number else None
            for hits, number in zip_longest(
                total.accepted_per_position[:_POSITIONS], total.draft_per_position[:_POSITIONS], fillvalue=0
            )
        ]
        if any(share is not None for share in shares):
            chart.add(method, [round(share, 1) if share is not None else None for share in shares])
    return _svg(chart)


def _drafters(report: Report) -> Iterable[str]:
    for name, costs in report.drafters.items():
        pays = "never pays" if costs.break_even is None else f"pays from {costs.break_even:.0%} accepted"
        yield (
            f"<li><strong>{escape(name)}</strong>: a token costs {costs.share:.2f} plain steps; perfect drafts would "
            f"give {costs.bound:.2f}×; it {pays}.</li>"
        )


def _remarks(report: Report) -> Iterable[str]:
    speculated = [cell for cell in report.cells if cell.method != PLAIN]
    same, total = sum(cell.num_identical for cell in speculated), sum(cell.num_trials for cell in speculated)
    yield f"{same} of {total} answers are those of plain decoding, token by token."
    for parting in report.partings:
        yield (
            f"{parting.name}, {parting.method}: parts at token {parting.position + 1}, where the two likeliest tokens "
            f"differ by {parting.gap:.3f}."
        )
    if report.noise is not None:
        yield f"Plain decoding of the same prompt varied by {report.noise:.0%} between repeats."
    yield f"Peak memory {report.peak_memory_bytes / 1e9:.2f} GB."
    yield f"llama.cpp: {report.machine['llama_cpp']}"
    yield f"specd {report.settings['version']}, {report.settings['threads']} threads, in {report.seconds:.0f} s."
