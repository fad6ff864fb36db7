import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from specd.bench.baseline import falls, num_compared
from specd.bench.measurement import PLAIN
from specd.bench.page import page
from specd.bench.report import Interval, Parting, Report
from specd.bench.text import print_report
from specd.errors import UsageError
from tests.bench.conftest import FakeBench

CHEAP_ROWS = (1.0, 1.1, 1.2, 1.3, 1.4)
RIGHT = 3 * 1.4 + 1.0 + 1.3  # seconds of 20 tokens: five at a time, but for a plain step and the last four
WRONG = 14 * 1.4 + 2 * 1.0 + 1.3 + 1.2 + 1.1 + 1.0  # one at a time; two plain steps, and fewer rows at the end


@pytest.fixture(scope="module")
def report() -> Report:
    bench = FakeBench(CHEAP_ROWS)
    bench.run()
    return bench.report()


def test_an_interval_holds_the_median_of_most_new_samples() -> None:
    rng = np.random.default_rng(1)
    for size in (3, 4, 6, 15):
        intervals = [Interval.of(rng.lognormal(sigma=0.1, size=size)) for _ in range(300)]
        assert np.mean([each.low <= 1.0 <= each.high for each in intervals]) > 0.92
        assert all(each.low <= each.median <= each.high for each in intervals)
        assert np.mean([each.low <= 1.3 <= each.high for each in intervals]) < 0.6


def test_ratios_are_those_of_the_costs(report: Report) -> None:
    right, wrong = report.cell("copy", "right"), report.cell("copy", "wrong")
    assert right is not None
    assert wrong is not None
    assert right.speedup.median == pytest.approx(20 / RIGHT, rel=0.01)
    assert wrong.speedup.median == pytest.approx(20 / WRONG, rel=0.01)
    plain = report.cell("copy", PLAIN)
    assert plain is not None
    assert plain.speedup == Interval(1.0, 1.0, 1.0)
    assert plain.tokens_per_second.median == pytest.approx(1.0)
    assert report.overall("right") == pytest.approx(right.speedup.median, rel=0.01)


def test_counts_reconcile(report: Report) -> None:
    """User case 17: drafted is accepted, rejected and discarded; completion tokens are the sum over passes."""
    for cell in report.cells:
        total = cell.total
        assert total.num_draft_tokens == sum(
            (total.num_accepted_tokens, total.num_rejected_tokens, total.num_discarded_tokens)
        )
        assert cell.num_tokens == total.num_accepted_tokens + cell.num_rounds
        assert sum(total.accepted_per_position) == total.num_accepted_tokens
        assert sum(total.draft_per_position) == total.num_draft_tokens
        assert cell.num_identical == cell.num_trials


def test_it_is_read_as_it_was_written(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report.as_json()))
    again = Report.read(file)
    assert again.as_json() == report.as_json()
    assert again.cells == report.cells


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "cells": 3}', "\x00"])
def test_what_is_not_a_report_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"report\.json is not a report of specd bench --json"):
        Report.read(file)
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        Report.read(tmp_path / "none.json")


def doctored(report: Report, category: str, method: str, *, speed: float = 1.0, acceptance: float = 1.0) -> Report:
    cells = []
    for cell in report.cells:
        if (cell.category, cell.method) == (category, method):
            value = cell.speedup
            value = Interval(*(speed * each for each in (value.median, value.low, value.high)))
            counts = {
                name: replace(each, num_accepted_tokens=round(acceptance * each.num_accepted_tokens))
                for name, each in cell.counts.items()
            }
            cell = replace(cell, speedup=value, counts=counts)
        cells.append(cell)
    return replace(report, cells=cells)


def test_nothing_falls_against_itself(report: Report) -> None:
    assert falls(report, report) == []
    assert num_compared(report, report) == 6


def test_a_fall_is_named(report: Report) -> None:
    """User case 55: an update that cuts acceptance or speed is flagged."""
    better = doctored(report, "copy", "right", speed=1.3)
    (speed,) = falls(better, report)
    assert str(speed) == "speed-up of right on copy fell from 4.00 to 3.08"
    (acceptance,) = falls(report, doctored(report, "talk", "right", acceptance=0.4))
    assert str(acceptance).startswith("acceptance of scripted's tokens of right on talk fell from 1.00 to 0.40")
    assert falls(report, better) == []  # a rise is none


def test_noise_is_not_a_fall(report: Report) -> None:
    assert falls(report, doctored(report, "copy", "right", speed=0.98)) == []
    assert falls(report, doctored(report, "copy", "right", acceptance=0.97)) == []
    wide = doctored(report, "copy", "right", speed=0.9)
    cells = [replace(c, speedup=replace(c.speedup, high=9.0)) if c.method == "right" else c for c in wide.cells]
    assert falls(report, replace(wide, cells=cells)) == []


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]


def test_the_page_is_whole_and_needs_nothing(report: Report) -> None:
    parting = Parting("copy", "copy", "right", 4, 0.002)
    text = page(replace(report, partings=[parting]))
    collector = Collector()
    collector.feed(text)
    assert collector.tags.count("svg") == 3
    assert not {"script", "link", "img", "iframe"} & set(collector.tags)
    assert collector.links == []
    assert "@import" not in text
    assert "url(" not in text
    assert "big &amp; good" in text
    assert "a &lt;fast&gt; one" in text
    assert "parts at token 5" in text
    assert "$" not in re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    assert "prefers-color-scheme: dark" in text


def test_the_report_in_a_pipe(report: Report) -> None:
    stream = io.StringIO()
    print_report(replace(report, noise=0.3, partings=[Parting("talk", "talk", "wrong", 2, 0.5)]), stream)
    lines = stream.getvalue().splitlines()
    assert lines[0].split() == ["plain", "right", "wrong", "at", "most"]
    assert lines[1].split()[:5] == ["copy", "1.0", "t/s", "3.08×", "3.08–3.08"]
    assert lines[1].endswith("2.50×")
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "geometric mean): right 3.08× (123% of the most), wrong" in text
    assert "times that: 2: 1.1, 8: 2.0." in text
    assert "lookup costs 0.00 plain steps; perfect drafts would give 3.00× here, and it pays from 40% accepted" in text
    assert "right: scripted accepted by position 100 100 100 100 %." in text
    assert "talk: wrong part at token 3, where the two likeliest tokens differ by 0.500 (NOT a near tie" in text
    assert "varied by 30%" in text


def test_one_trial_has_no_interval() -> None:
    bench = FakeBench(CHEAP_ROWS, repeats=1)
    bench.run()
    stream = io.StringIO()
    print_report(bench.report(), stream)
    assert "–" not in stream.getvalue().splitlines()[1]


def test_a_drift_of_the_machine_widens_an_interval() -> None:
    assert Interval(2.0, 2.0, 2.0).widened(0.1) == Interval(2.0, pytest.approx(2 / 1.1), pytest.approx(2.2))  # type: ignore[arg-type]
    assert Interval(2.0, 1.0, 4.0).widened(0.0) == Interval(2.0, pytest.approx(1.0), pytest.approx(4.0))  # type: ignore[arg-type]
    wide = Interval(2.0, 1.9, 2.1).widened(0.02)
    assert 1.87 < wide.low < 1.9
    assert 2.1 < wide.high < 2.13
