"""The command line without any model: help, versions, models.toml, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SPECD = Path(sys.executable).with_name("specd")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Caches and config of the test's own."""
    folders = {"SPECD_CACHE": "cache", "SPECD_CONFIG": "config", "HF_HOME": "hf"}
    return os.environ | {key: str(tmp_path / name) for key, name in folders.items()} | {"HF_HUB_OFFLINE": "1"}


def specd(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SPECD, *arguments], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["generate", "--help"], ["models", "--help"]])
def test_help_is_on_stdout(arguments: list[str]) -> None:
    result = specd(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: specd" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["genrate"], "No such command 'genrate'"),
        (["--bogus"], "No such option: --bogus"),
        (["models", "show"], "Missing argument"),
        (["generate", "--format", "xml"], "xml"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], words: str) -> None:
    result = specd(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_known_models_are_listed(home: dict[str, str]) -> None:
    result = specd("models", "list", env=home)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["NAME", "SIZE", "HERE", "LICENCE", "SOURCES", "ROLE"]
    assert ["smollm2-135m", "0.10", "GB", "no", "Apache-2.0", "mirror"] in lines
    assert all("\x1b" not in line for line in result.stdout)


def test_a_model_is_shown_without_its_file(home: dict[str, str]) -> None:
    result = specd("models", "show", "qwen2.5-coder", env=home)
    assert result.returncode == 0
    assert "not here: specd models pull qwen2.5-coder" in result.stdout
    assert "target of qwen2.5-coder" in result.stdout


def test_pull_offline_tells_what_to_do(home: dict[str, str]) -> None:
    result = specd("models", "pull", env=home)
    assert (result.returncode, result.stdout) == (3, "")
    assert "qwen2.5-coder-1.5b is not on this machine" in result.stderr


def test_an_unknown_model(home: dict[str, str]) -> None:
    for command in (["models", "show", "smolm"], ["models", "pull", "smolm"], ["generate", "-p", "x", "-m", "smolm"]):
        result = specd(*command, env=home)
        assert result.returncode == 3
        assert "smollm2-135m" in result.stderr


def test_a_mistake_in_the_users_own_file_names_it(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text("[models.x]\nfil = 'y'\n")
    result = specd("models", "list", env=home)
    assert result.returncode == 2
    assert str(tmp_path / "config" / "models.toml") in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["models", "list"]])
def test_a_reader_that_is_gone(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([SPECD, *arguments], stdout=write, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["--version"], ["models", "list"]])
def test_a_full_disk(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([SPECD, *arguments], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert result.returncode == 1
    assert result.stderr == b"specd: No space left on device.\n"


def test_output_is_utf8_whatever_the_locale(home: dict[str, str], tmp_path: Path) -> None:
    """User case 45."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text("[models.'grün']\npath = '/x.gguf'\n", encoding="utf-8")
    env = home | {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    result = subprocess.run([SPECD, "models", "list"], capture_output=True, env=env)
    assert result.returncode == 0
    assert "grün" in result.stdout.decode("utf-8")


def test_completion_is_there() -> None:
    env = os.environ | {"_SPECD_COMPLETE": "complete_bash", "COMP_WORDS": "specd gen", "COMP_CWORD": "1"}
    assert specd(env=env).stdout.split() == ["generate"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_accident(closed: str, home: dict[str, str]) -> None:
    command = f"exec {SPECD} models list {closed}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=home)
    assert result.returncode == (1 if ">&-" in closed.split() else 0)
    if closed == ">&-":
        assert result.stderr == "specd: Standard output is closed, so the answer can go nowhere.\n"
    else:
        assert result.stderr == ""


def test_only_a_shell_that_asks_for_completions_gets_them(home: dict[str, str]) -> None:
    result = specd("models", "list", env=home | {"_SPECD_COMPLETE": "nonsense"})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("NAME")
