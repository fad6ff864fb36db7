"""Files that make llama.cpp abort cost a line, not the process."""

import os
from pathlib import Path

import pytest

from specd.errors import EngineError
from specd.llama import trial
from specd.llama.trial import Request, ensure_survival
from tests.model import tiny
from tests.model.conftest import path_of
from tests.model.test_generate import specd


def with_value(key: bytes, value: bytes, file: Path) -> Path:
    """SmolLM2 with another value of four bytes in its metadata."""
    content = bytearray(path_of("smollm2-135m").read_bytes())
    place = content.index(key) + len(key) + 4
    content[place : place + 4] = value
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"llama.block_count", bytes(4)), (b"llama.attention.layer_norm_rms_epsilon", b"\x00\x00\xc0\xff")],
    ids=["while loading", "while decoding"],
)
def test_a_file_that_llama_cpp_aborts_on_is_told(key: bytes, value: bytes, tmp_path: Path) -> None:
    file = with_value(key, value, tmp_path / "x.gguf")
    with pytest.raises(EngineError, match=r"llama\.cpp crashes with .*x\.gguf, by SIGABRT \(it checks that"):
        ensure_survival(Request(str(file), 1, 1), tmp_path / "trials")
    assert not (tmp_path / "trials").exists()
    code, out, err = specd("-p", "hi", "-n", "2", "--model", str(file))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("specd: llama.cpp crashes with ")
    code, out, err = specd("-p", "hi", "-n", "2", "--draft", str(file))
    assert (code, err.startswith("specd: warning: llama.cpp crashes with ")) == (0, True)


def test_a_vocabulary_that_llama_cpp_cannot_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "TOKENS", [f"byte{i}" for i in range(256)])
    tiny.experts(tmp_path / "x.gguf")
    code, out, err = specd("-p", "hi", "-n", "2", "--model", str(tmp_path / "x.gguf"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("specd: llama.cpp crashes with ")


def test_what_passed_is_not_tried_again_and_what_changed_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_value(b"tokenizer.ggml.padding_token_id", bytes(4), tmp_path / "x.gguf")
    request = Request(str(file), 1, 1)
    ensure_survival(request, tmp_path / "trials")
    monkeypatch.setattr(trial.subprocess, "run", lambda *_, **__: pytest.fail("it was tried again"))
    ensure_survival(request, tmp_path / "trials")
    os.utime(file, (1, 1))
    with pytest.raises(pytest.fail.Exception):
        ensure_survival(request, tmp_path / "trials")


def test_a_file_that_is_refused_in_order_is_left_to_who_loads_it(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(path_of("smollm2-135m").read_bytes()[:3_000_000])
    ensure_survival(Request(str(file), 1, 1), tmp_path / "trials")
    assert not (tmp_path / "trials").exists()


def test_a_file_that_takes_for_ever_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MOST_SECONDS", 0.05)
    monkeypatch.setattr(trial, "_BYTES_PER_SECOND", 1e12)
    with pytest.raises(EngineError, match=r"did not get .* to work within 0 s"):
        ensure_survival(Request(str(path_of("smollm2-135m")), 1, 1), tmp_path / "trials")
