import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from specd.cli.prompt import clean, read_prompt
from specd.errors import UsageError


class Warnings(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def warn() -> Warnings:
    return Warnings()


@pytest.fixture
def pipe_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Make standard input a pipe with some bytes, its other end closed."""
    with ExitStack() as streams:

        def fill(data: bytes) -> None:
            read, write = os.pipe()
            os.write(write, data)
            os.close(write)
            monkeypatch.setattr(sys, "stdin", streams.enter_context(os.fdopen(read, "r")))

        yield fill


def test_piped_input_is_the_prompt(pipe_in: Callable[[bytes], None], warn: Warnings) -> None:
    pipe_in("grüße\r\n".encode())
    assert read_prompt(None, [], use_stdin=True, warn=warn) == "grüße\r\n"
    assert warn == []


def test_piped_input_is_the_document_of_a_prompt(pipe_in: Callable[[bytes], None], warn: Warnings) -> None:
    pipe_in(b"a diff")
    assert read_prompt("Review", [], use_stdin=True, warn=warn) == "Review\n\na diff"


def test_files_come_before_piped_input(pipe_in: Callable[[bytes], None], warn: Warnings, tmp_path: Path) -> None:
    pipe_in(b"piped")
    (tmp_path / "one").write_text("file one")
    assert read_prompt("P", [tmp_path / "one"], use_stdin=True, warn=warn) == "P\n\nfile one\n\npiped"


def test_ignored_input_is_not_read(monkeypatch: pytest.MonkeyPatch, warn: Warnings) -> None:
    read, write = os.pipe()  # never closed: reading it would block for ever
    with os.fdopen(read, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_prompt("P", [], use_stdin=False, warn=warn) == "P"
        os.close(write)


def test_a_device_beside_a_prompt_is_not_read(monkeypatch: pytest.MonkeyPatch, warn: Warnings) -> None:
    with open("/dev/zero") as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        assert read_prompt("P", [], use_stdin=True, warn=warn) == "P"


def test_a_byte_order_mark_is_dropped_and_bad_bytes_are_replaced_with_one_warning(
    pipe_in: Callable[[bytes], None], warn: Warnings
) -> None:
    pipe_in(b"\xef\xbb\xbfa\xff\xfeb" + "\ufffd".encode())
    assert read_prompt(None, [], use_stdin=True, warn=warn) == "a\ufffd\ufffdb\ufffd"
    assert warn == ["standard input is not valid UTF-8 in 2 places; replaced with \ufffd."]


def test_arguments_that_are_not_utf8(warn: Warnings) -> None:
    assert clean(os.fsdecode(b"a\xffb"), "--prompt", warn) == "a\ufffdb"
    assert len(warn) == 1


@pytest.mark.parametrize("prompt", [None, "", "  \n"])
def test_without_a_prompt_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, warn: Warnings, prompt: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match="--prompt TEXT"):
        read_prompt(prompt, [], use_stdin=True, warn=warn)


def test_a_file_that_cannot_be_read(warn: Warnings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_prompt("P", [tmp_path / "none"], use_stdin=False, warn=warn)
    with pytest.raises(UsageError, match="directory"):
        read_prompt("P", [tmp_path], use_stdin=False, warn=warn)
