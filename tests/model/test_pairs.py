"""`specd models pairs` and `specd models quantize`, as processes on real files."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.cli.quantize import default_name
from specd.models.gguf import read_header
from specd.models.store import Store
from tests.model.conftest import path_of

SPECD = Path(sys.executable).with_name("specd")


def specd(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = subprocess.run(
        [SPECD, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | (env or {})
    )
    return result.returncode, result.stdout, result.stderr


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A config folder of the tests' own, with a models.toml that somebody wrote by hand."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "models.toml").write_text('# mine\ndefault = "smollm2-135m"   # small\n')
    return {"SPECD_CONFIG": str(folder)}


@pytest.fixture(scope="module")
def small(config: dict[str, str]) -> Iterator[str]:
    """SmolLM2 in two bits: smaller than itself, same vocabulary."""
    name = "smollm2-test-q2"
    assert specd("models", "quantize", "smollm2-135m", "q2_k", "--name", name, env=config)[0] == 0
    yield name
    (Store().folder / "models" / "quantized" / f"{name}.gguf").unlink()


def rows(out: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()[1:]}


def test_every_candidate_has_a_verdict(config: dict[str, str], small: str) -> None:
    """User cases 20, 21 and 23: a reason for each that cannot draft, padded vocabularies are fine."""
    code, out, err = specd("models", "pairs", "qwen2.5-coder-1.5b", env=config)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["DRAFT", "SIZE", "TOKEN", "COST", "GAIN", "AT", "MOST", "VERDICT"]
    verdicts = rows(out)
    assert next(iter(verdicts)).startswith("qwen")  # those that can draft come first
    assert " steps " in verdicts["qwen2.5-coder-0.5b"]
    assert "rows of 896 do not fit k-quants: specd models quantize qwen2.5-coder-0.5b q4_0 --pure" in out
    assert "no: their tokenizers are of different kinds" in verdicts["gemma3-270m"]
    assert "no: their BOS tokens differ: 151643 and 1" in verdicts["smollm2-135m"]
    assert "qwen2.5-coder-1.5b" not in verdicts


def test_files_beside_a_model_are_candidates_and_projectors_are_named(
    tmp_path: Path, config: dict[str, str], small: str
) -> None:
    """User case 23."""
    shutil.copy(path_of("smollm2-135m"), tmp_path / "target.gguf")
    shutil.copy(Store().folder / "models" / "quantized" / f"{small}.gguf", tmp_path / "draft.gguf")
    key = b"general.architecture"
    kind = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + (4).to_bytes(8, "little") + b"clip"
    header = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    (tmp_path / "mmproj.gguf").write_bytes(header + kind)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not for long")
    code, out, _ = specd("models", "pairs", str(tmp_path / "target.gguf"), env=config)
    assert code == 0
    verdicts = rows(out)
    assert " steps " in verdicts[str(tmp_path / "draft.gguf")]
    assert "no: it is the vision or audio side of a model" in verdicts[str(tmp_path / "mmproj.gguf")]
    assert "is not a usable GGUF file" in verdicts[str(tmp_path / "broken.gguf")]
    assert "no: it is not smaller than the target" in verdicts["qwen2.5-coder-1.5b"]


def test_a_quantised_model_is_registered_and_runs(config: dict[str, str], small: str) -> None:
    text = (Path(config["SPECD_CONFIG"]) / "models.toml").read_text()
    assert text.startswith('# mine\ndefault = "smollm2-135m"   # small\n')
    entry = tomllib.loads(text)["models"][small]
    path = Path(entry["path"])
    assert entry["bytes"] == path.stat().st_size < path_of("smollm2-135m").stat().st_size
    assert entry["license"] == "Apache-2.0"
    code, out, _ = specd("generate", "--model", small, "-p", "The capital of France is", "--raw", "-n", "8", env=config)
    assert code == 0
    assert len(out.split()) > 2
    drafted = specd(
        *("generate", "-m", "smollm2-135m", "-d", small, "--draft-length", "3", "--method", "draft"),
        *("-p", "Count from 1 to 50.", "-n", "30", "--stats"),
        env=config,
    )
    assert drafted[0] == 0
    assert "drafted tokens accepted" in drafted[2]


def test_pure_puts_every_matrix_into_one_type(config: dict[str, str]) -> None:
    name = default_name("smollm2-135m", "q4_0", pure=True)
    path = Store().folder / "models" / "quantized" / f"{name}.gguf"
    path.unlink(missing_ok=True)
    code, out, err = specd("models", "quantize", "smollm2-135m", "Q4_0", "--pure", env=config)
    assert (code, err) == (0, "")
    assert out.startswith(f"{name}: 0.08 GB, was 0.10 GB. ")
    assert [kind for kind, _ in read_header(path).types()] == ["Q4_0", "F32"]
    path.unlink()


def test_names_keep_their_dots() -> None:
    assert default_name("qwen2.5-coder-0.5b", "q4_0", pure=True) == "qwen2.5-coder-0.5b-q4_0-pure"
    assert default_name("my.model.gguf", "q8_0", pure=False) == "my.model-q8_0"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["smollm2-135m", "q9"], 2, "There is no type 'q9'. Known: q2_k"),
        (["smollm3", "q4_0"], 3, "Nearest: smollm2-135m"),
        (["qwen3-8b", "q4_0"], 3, "is not here: specd models pull qwen3-8b"),
        (["smollm2-135m", "q4_0", "--name", "gemma3-270m"], 2, "already: take another name with --name"),
        (["smollm2-135m", "q4_0", "--name", "a b"], 2, "cannot be a name"),
        (["/nowhere.gguf", "q4_0"], 3, "/nowhere.gguf"),
    ],
)
def test_mistakes_are_one_clear_line(config: dict[str, str], arguments: list[str], code: int, words: str) -> None:
    found, out, err = specd("models", "quantize", *arguments, env=config)
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_broken_file_is_refused_and_leaves_nothing(tmp_path: Path, config: dict[str, str]) -> None:
    whole = path_of("smollm2-135m").read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) // 2])
    code, out, err = specd("models", "quantize", str(tmp_path / "half.gguf"), "q8_0", env=config)
    assert (code, out) == (1, "")
    assert "cannot write half.gguf as q8_0" in err
    assert err.count("\n") == 1
    assert not list((Store().folder / "models" / "quantized").glob("half*"))
    assert "half" not in (Path(config["SPECD_CONFIG"]) / "models.toml").read_text()
