"""`specd doctor` from outside, on installs that are whole and broken in several ways."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SPECD = Path(sys.executable).with_name("specd")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with folders of the test's own, and no model."""
    folders = {"SPECD_CACHE": "cache", "SPECD_CONFIG": "config", "SPECD_STATE": "state", "HF_HOME": "hf"}
    return {"PATH": "/usr/bin:/bin", **{key: str(tmp_path / name) for key, name in folders.items()}}


def doctor(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPECD, "doctor", *arguments], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, timeout=120
    )


def test_a_whole_install_is_described(home: dict[str, str]) -> None:
    result = doctor(home, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["llama_cpp"]["version"].startswith("0.3.")
    assert any(device["kind"] == "cpu" for device in found["llama_cpp"]["devices"])
    assert 1 <= found["machine"]["usable_cores"] <= found["machine"]["cores"]
    assert found["models"] == []
    whats = [problem["what"] for problem in found["problems"] if not problem["what"].startswith("The machine is busy")]
    assert whats == ["Of the default qwen2.5-coder, qwen2.5-coder-1.5b and qwen2.5-coder-0.5b are not here."]
    text = doctor(home)
    assert text.returncode == 0
    assert "To mend it: specd models pull" in text.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise ModuleNotFoundError(\"No module named 'llama_cpp'\")", "do not load (No module named"),
        ("raise OSError('libllama.so: wrong ELF class: ELFCLASS32')", "wrong ELF class"),
        ("raise RuntimeError('Shared library with base name llama not found')", "not found"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "by SIGILL: it was built for another processor"),
    ],
    ids=["missing", "other architecture", "library removed", "other processor"],
)
def test_a_broken_install_is_diagnosed(content: str, words: str, home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "shadow" / "llama_cpp").mkdir(parents=True)
    (tmp_path / "shadow" / "llama_cpp" / "__init__.py").write_text(content)
    env = home | {"PYTHONPATH": str(tmp_path / "shadow")}
    result = doctor(env)
    assert (result.returncode, result.stderr) == (1, "")
    assert "llama.cpp  does not load" in result.stdout
    assert words in result.stdout
    assert "To mend it: make clean && make setup" in result.stdout
    assert doctor(env, "--json").returncode == 1


def test_a_mistake_in_the_users_models_is_told_and_the_rest_goes_on(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text('[models.x]\npath = "C:\\models\\x.gguf"\n')
    result = doctor(home)
    assert result.returncode == 1
    assert "WRONG  " in result.stdout
    assert "To mend it: correct " in result.stdout
    assert "llama.cpp  0.3" in result.stdout


def test_a_model_that_is_not_what_its_entry_says_is_told(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    (tmp_path / "config" / "models.toml").write_text(
        f'[models.x]\npath = "{tmp_path}/x.gguf"\nbytes = 5\n[models.y]\npath = "{tmp_path}/y.gguf"\n'
    )
    result = doctor(home)
    assert result.returncode == 0
    assert "has 4 bytes, 5 were expected" in result.stdout
    assert f"There is no model file {tmp_path}/y.gguf" in result.stdout


def test_folders_that_cannot_be_used_are_told(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = doctor(home | {"SPECD_CACHE": str(tmp_path / "file" / "x")})
    assert result.returncode == 1
    assert "To mend it: give another with SPECD_CACHE" in result.stdout
