"""`specd bench` as a process, as far as it gets without a model."""

import json
from pathlib import Path

import pytest

from tests.cli.test_app import specd


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--save"], "--save keeps what --tune finds"),
        (["--check", "--tune"], "--check and --tune are two jobs"),
        (["--prompts", "none.jsonl"], "--prompts none.jsonl cannot be read: No such file"),
        (["--baseline", "none.json"], "none.json cannot be read: No such file"),
        (["--json", "none/report.json"], "none/report.json cannot be written"),
        (["--html", "."], "cannot be written: it is a folder"),
        (["--methods", "draft:0"], "--methods has 'draft:0': give some of auto, draft, lookup, hybrid"),
        (["--methods", "fast"], "--methods has 'fast'"),
        (["--methods", "off"], "--methods 'off' names nothing to compare"),
        (["--methods", "draft", "--draft", "none"], "but there is no draft model"),
        (["--kv-type", "q5_9"], "q5_9"),
        (["--minutes", "0"], "--minutes"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = specd("bench", "--models", str(models_file(tmp_path)), "--model", "nothing", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = specd("bench", "--models", str(models_file(tmp_path)), "--model", "nothing", "--repeats", "1")
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1


def test_a_flash_attention_that_a_cache_needs(tmp_path: Path) -> None:
    result = specd(
        "bench", "--models", str(models_file(tmp_path)), "--kv-type", "q8_0", "--flash-attn", "off", "-m", "nothing"
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "--kv-type q8_0 needs flash attention" in result.stderr


def models_file(folder: Path) -> Path:
    file = folder / "models.toml"
    path = json.dumps(str(folder / "nothing.gguf"))
    file.write_text(f"[models.nothing]\npath = {path}\n")
    return file
