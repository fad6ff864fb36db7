"""`specd bench` on real files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specd.bench.report import Report
from specd.cli import app
from specd.decoding.protocol import Verdict
from specd.decoding.verify import RULES, Rule, RuleName
from specd.llama.engine import Engine
from specd.llama.runtime import Runtime
from tests.model.conftest import open_engine, path_of
from tests.model.test_pairs import specd

PAIR = ("--model", "qwen2.5-coder")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "few.jsonl"
    lines = [
        {"question_id": 1, "category": "copying", "turns": ["Repeat: one two three four five six seven eight."]},
        {"question_id": 2, "category": "talking", "turns": ["Name a river.", "And another one."]},
        {"question_id": 3, "category": "talking", "turns": ["Never asked."]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_a_report_a_page_and_a_baseline(prompts: Path, tmp_path: Path) -> None:
    small = ("bench", *PAIR, "--prompts", str(prompts), "--per-category", "1", "-n", "12", "--repeats", "1")
    files = ("--json", str(tmp_path / "new.json"), "--html", str(tmp_path / "new.html"))
    code, out, err = specd(*small, *files, "--methods", "draft:2,auto")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["plain", "draft:2", "auto", "at", "most"]
    report = Report.read(tmp_path / "new.json")
    assert report.categories == ["copying", "talking"]
    assert report.methods == ["off", "draft:2", "auto"]
    assert [cell.num_trials for cell in report.cells] == [1, 1, 1, 2, 2, 2]
    for cell in report.cells:
        total = cell.total
        assert cell.num_tokens == total.num_accepted_tokens + cell.num_rounds
        assert cell.oracle_speedup is not None
        assert cell.oracle_speedup > 0.99
    assert (tmp_path / "new.html").read_text().startswith("<!doctype html>")

    content = json.loads((tmp_path / "new.json").read_text())
    for cell in content["cells"]:
        if cell["method"] == "draft:2":
            cell["speedup"] = {key: 50 * value for key, value in cell["speedup"].items()}
    (tmp_path / "doctored.json").write_text(json.dumps(content))
    code, out, err = specd(*small, "--methods", "draft:2", "--baseline", str(tmp_path / "doctored.json"))
    assert code == 1
    assert re.search(r"specd: speed-up of draft:2 on copying fell from [\d.]+ to [\d.]+\n", err)


def test_an_interrupted_benchmark_reports_what_is_done(prompts: Path) -> None:
    command = [Path(sys.executable).with_name("specd"), "bench", *PAIR, "--prompts", prompts, "-n", "8"]
    process = subprocess.Popen(
        [*command, "--repeats", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(40)
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "geometric mean" in out


def test_the_check_passes_on_the_pair(prompts: Path) -> None:
    code, out, err = specd("bench", "--check", *PAIR, "--prompts", str(prompts), "--per-category", "1", "-n", "24")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert {line.split(":")[0].split()[1] for line in lines[:-1]} == {"greedy,", "sampled,"}
    assert lines[-1].startswith("All 10 checks passed.")


def test_the_check_finds_one_wrong_token(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted fault: once, a drafted token stands that should not."""
    real = RULES[RuleName.BLOCK]
    planted = False

    def verify(draft, probs, position, randomness):  # type: ignore[no-untyped-def]
        nonlocal planted
        verdict = real.verify(draft, probs, position, randomness)
        if not planted and verdict.num_accepted < len(draft):
            planted = True
            return Verdict(verdict.num_accepted + 1, verdict.next_token)
        return verdict

    monkeypatch.setitem(RULES, RuleName.BLOCK, Rule(verify, real.draw))
    arguments = ["bench", "--check", "-m", "smollm2-135m", "-d", "none", "--prompts", str(prompts), "-n", "16"]
    monkeypatch.setattr(sys, "argv", ["specd", *arguments])
    assert app.run() == 1
    out = capsys.readouterr().out
    assert re.search(
        r"FAILED  greedy, 1, (lookup|guess): with drafts of \d, token \d+ of the answer is another one", out
    )
    assert "speculation changes what these models say" in out.splitlines()[-1]


def test_tuning_says_what_it_tried_and_keeps_it(prompts: Path, tmp_path: Path) -> None:
    arguments = ("bench", "--tune", "--save", "-m", "smollm2-135m", "-d", "none", "--prompts", str(prompts))
    code, out, err = specd(*arguments, "--minutes", "0.3", env={"SPECD_CONFIG": str(tmp_path)})
    assert (code, err) == (0, "")
    assert re.search(r"^threads \d+ against \d+: [\d.]+×", out, re.MULTILINE) or os.cpu_count() == 1
    limit = re.search(r"^draft_max: (\d+) is enough \(simulated on \d answers", out, re.MULTILINE)
    assert limit is not None
    saved = (tmp_path / "models.toml").read_text() if (tmp_path / "models.toml").exists() else ""
    assert (f"draft_max = {limit[1]}" in saved) == (limit[1] != "31")


@pytest.mark.parametrize("runtime", [Runtime(kv_type="q8_0"), Runtime(flash_attention=False), Runtime(64, 32)])
def test_other_runtimes_say_nearly_the_same(runtime: Runtime) -> None:
    with open_engine("smollm2-135m") as engine:
        tokens = engine.vocabulary.tokenize("Once upon a time there was a", add_special=True, parse_special=False)
        before = engine.sync(tokens, num_rows=1)[-1].copy()
        identity = engine.identity
        engine.configure(engine.threads, runtime)
        engine.allocate(512)
        after = engine.sync(tokens, num_rows=1)[-1]
        assert int(before.argmax()) == int(after.argmax())
        assert abs(before - after).max() < 2.0
        assert (engine.identity != identity) == (runtime.batch == 512)  # batches are about prompts only


def test_memory_is_flat_over_ten_loads() -> None:
    """User case 53."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("tells resident memory by /proc")
    sizes = []
    for _ in range(10):
        with Engine(path_of("smollm2-135m"), threads=1, max_rows=8) as engine:
            engine.allocate(1024)
            engine.sync(engine.vocabulary.tokenize("One two", add_special=True, parse_special=False), num_rows=1)
        sizes.append(resident())
    assert sizes[-1] - sizes[2] < 20e6
