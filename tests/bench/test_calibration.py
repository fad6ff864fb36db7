import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from specd.bench.calibration import Calibration, measure, pair_key
from specd.decoding.acceptance import PRIORS, Acceptance
from specd.decoding.costs import PassCosts
from specd.decoding.protocol import Evidence
from tests.fakes import FakeClock, FakeEngine

STAIRCASE = [0.01, 0.018, 0.026, 0.022, 0.04, 0.04, 0.04, 0.036]


def engine(clock: FakeClock, seconds: list[float] = STAIRCASE, max_rows: int = 8) -> FakeEngine:
    fake = FakeEngine(clock=clock, seconds_per_batch=seconds, max_rows=max_rows)
    fake.identity = ["a file", 2]  # type: ignore[attr-defined]
    fake.least_tokens = 1  # type: ignore[attr-defined]
    return fake


def test_every_width_is_measured_where_time_allows_and_steps_are_kept() -> None:
    clock = FakeClock()
    fake = engine(clock)
    table = measure(fake, 8, 1.0, clock)  # type: ignore[arg-type]
    assert table == pytest.approx(dict(enumerate(STAIRCASE, start=1)))
    assert len(fake) == 0


@pytest.mark.parametrize("scale", [1, 10, 1000])
def test_measuring_takes_no_longer_than_it_may(scale: int) -> None:
    """But for the first passes, which are thrown away, and two widths without which nothing could be decided."""
    clock = FakeClock()
    seconds = [each * scale for each in STAIRCASE]
    table = measure(engine(clock, seconds), 8, 1.0, clock)  # type: ignore[arg-type]
    warm_up, least = seconds[0] + seconds[1] + 10 * seconds[0], seconds[0] + seconds[3]
    assert clock.now <= 1.0 + warm_up + (least if least > 1.0 else 0.0)
    assert {1, 4} <= set(table)


def test_a_draft_is_measured_with_the_one_row_it_has() -> None:
    clock = FakeClock()
    assert set(measure(engine(clock, max_rows=1), 8, 1.0, clock)) == set(range(1, 9))  # type: ignore[arg-type]


def test_costs_are_measured_once_and_kept_by_context_size(tmp_path: Path) -> None:
    clock = FakeClock()
    fake, calibration = engine(clock), Calibration(tmp_path)
    first = calibration.costs(fake, 8, 100, 1.0, clock)  # type: ignore[arg-type]
    measured_at = clock.now
    again = calibration.costs(fake, 8, 5000, 1.0, clock)  # type: ignore[arg-type]
    assert clock.now == measured_at
    assert again.table() == first.table()
    calibration.keep_costs(fake, 5000, PassCosts({1: 0.5, 8: 0.6}))  # type: ignore[arg-type]
    assert calibration.costs(fake, 8, 5000, 1.0, clock).seconds(1) == 0.5  # type: ignore[arg-type]
    assert calibration.costs(fake, 8, 9000, 1.0, clock).seconds(1) == 0.5  # type: ignore[arg-type]
    assert calibration.costs(fake, 8, 100, 1.0, clock).seconds(1) == pytest.approx(0.01)  # type: ignore[arg-type]


def test_a_table_of_narrow_passes_is_measured_again_for_wider_ones(tmp_path: Path) -> None:
    clock = FakeClock()
    calibration = Calibration(tmp_path)
    assert set(calibration.costs(engine(clock), 3, 0, 1.0, clock).table()) == {1, 2, 3}  # type: ignore[arg-type]
    assert set(calibration.costs(engine(clock), 8, 0, 1.0, clock).table()) == set(range(1, 9))  # type: ignore[arg-type]
    measured_at = clock.now
    calibration.costs(engine(clock), 3, 0, 1.0, clock)  # type: ignore[arg-type]
    assert clock.now == measured_at


def test_another_file_or_number_of_threads_is_measured_anew(tmp_path: Path) -> None:
    clock = FakeClock()
    calibration = Calibration(tmp_path)
    calibration.costs(engine(clock), 8, 0, 1.0, clock)  # type: ignore[arg-type]
    other = engine(clock, [10 * each for each in STAIRCASE])
    other.identity = ["a file", 4]  # type: ignore[attr-defined]
    assert calibration.costs(other, 8, 0, 1.0, clock).seconds(1) == pytest.approx(0.1)  # type: ignore[arg-type]


def test_acceptance_is_kept_by_pair(tmp_path: Path) -> None:
    calibration, evidence = Calibration(tmp_path), Evidence("draft", 0, confidence=0.4)
    acceptance = calibration.acceptance("a b greedy")
    fresh = acceptance.probability(evidence)
    for _ in range(50):
        acceptance.observe(evidence, True)
    calibration.keep_acceptance("a b greedy", acceptance)
    assert calibration.acceptance("a b greedy").probability(evidence) > fresh
    assert calibration.acceptance("a b sampled").probability(evidence) == fresh


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 99, "content": {}}',
        '{"format": 1, "content": {"x": 1}}',
        '{"format": 1, "content": {"a b": "no"}}',
        '{"format": 1, "content": {"2": 0.1}}',
        '{"format": 1, "content": [1]}',
        '{"format": 1, "content": {"1": -3}}',
        '{"format": 1, "content": {"1": 0}}',
    ],
)
def test_what_cannot_be_read_is_measured_and_learned_anew(tmp_path: Path, content: str) -> None:
    clock = FakeClock()
    calibration, fake = Calibration(tmp_path), engine(clock)
    calibration.costs(fake, 8, 0, 1.0, clock)  # type: ignore[arg-type]
    calibration.keep_acceptance("pair", Acceptance(PRIORS))
    for path in tmp_path.rglob("*.json"):
        path.write_text(content)
    assert calibration.costs(fake, 8, 0, 1.0, clock).seconds(1) == pytest.approx(0.01)  # type: ignore[arg-type]
    assert calibration.acceptance("pair").probability(Evidence("lookup", 0, 4, 1, 1)) > 0.5


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    clock = FakeClock()
    calibration = Calibration(tmp_path / "file")
    assert calibration.costs(engine(clock), 8, 0, 1.0, clock).seconds(1) == pytest.approx(0.01)  # type: ignore[arg-type]
    calibration.keep_acceptance("pair", Acceptance(PRIORS))


def test_files_are_whole_json(tmp_path: Path) -> None:
    clock = FakeClock()
    Calibration(tmp_path).costs(engine(clock), 8, 0, 1.0, clock)  # type: ignore[arg-type]
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert set(json.loads(file.read_text())["content"]) == {str(n) for n in range(1, 9)}


def test_the_key_of_a_pair_tells_sampled_from_greedy() -> None:
    target, draft = SimpleNamespace(path=Path("/x/t.gguf")), SimpleNamespace(path=Path("/y/d.gguf"))
    keys = {
        pair_key(target, draft, sampled=sampled)  # type: ignore[arg-type]
        for draft in (draft, None)
        for sampled in (True, False)
    }
    assert len(keys) == 4


def test_a_draft_is_padded_where_wider_passes_are_cheaper(tmp_path: Path) -> None:
    class Padding(FakeEngine):
        least_tokens = 1

        @property
        def identity(self) -> list[int]:
            return [self.least_tokens]

    clock = FakeClock()
    fake = Padding(clock=clock, seconds_per_batch=[0.030, 0.031, 0.033, 0.024, 0.04, 0.05, 0.05, 0.05])
    calibration = Calibration(tmp_path)
    costs = calibration.draft_costs(fake, 8, 0, 1.0, clock)  # type: ignore[arg-type]
    assert fake.least_tokens == 4
    assert [costs.seconds(n) for n in (1, 2, 4, 5)] == pytest.approx([0.024, 0.024, 0.024, 0.04])
    calibration.keep_costs(fake, 0, PassCosts({1: 0.02}))  # type: ignore[arg-type]
    again = calibration.draft_costs(fake, 8, 0, 1.0, clock)  # type: ignore[arg-type]
    assert fake.least_tokens == 4  # by what was measured without padding
    assert again.seconds(1) == pytest.approx(0.02)  # and was learned with it


def test_a_draft_whose_single_tokens_are_cheapest_is_not_padded(tmp_path: Path) -> None:
    clock = FakeClock()
    fake = engine(clock)
    assert Calibration(tmp_path).draft_costs(fake, 8, 0, 1.0, clock).seconds(1) == pytest.approx(0.01)  # type: ignore[arg-type]
    assert fake.least_tokens == 1  # type: ignore[attr-defined]
