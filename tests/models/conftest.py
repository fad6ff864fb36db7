"""`specd models pull` as a process, with caches of its own."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Pull = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with caches and config in the test's folder, and no network but what the test adds."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PIP_", "SPECD_"))}
    folders = {"SPECD_CACHE": "cache", "SPECD_CONFIG": "config", "HF_HOME": "hf"}
    return kept | {key: str(tmp_path / name) for key, name in folders.items()} | {"PIP_NO_INDEX": "1"}


@pytest.fixture
def specd(home: dict[str, str], tmp_path: Path) -> Pull:
    """Run the command line with a models.toml of the test's own."""

    def run(*arguments: str, entry: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        models = tmp_path / "models.toml"
        models.write_text(entry)
        return subprocess.run(
            [sys.executable, "-m", "specd", *arguments, "--models", str(models)],
            capture_output=True,
            text=True,
            env=home | (env or {}),
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    return run


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A wheel of version 1.0 with the given files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path
