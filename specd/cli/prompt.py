"""What the user asked: from options, files and standard input."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specd.chat.templates import Message, chat_tokens, raw_tokens
from specd.decoding.context import Tokens
from specd.errors import UsageError

if TYPE_CHECKING:
    from specd.llama.engine import Engine

Warn = Callable[[str], None]


def read_prompt(prompt: str | None, files: Sequence[Path], *, use_stdin: bool, warn: Warn) -> str:
    """The prompt, with each document (`files`, then piped standard input) behind it.

    Without `prompt`, the documents are the prompt. Standard input is read to its end when it is a pipe or a
    regular file, or when there is nothing else to work on. Raises UsageError when there is no prompt.
    """
    parts = [clean(prompt, "--prompt", warn)] if prompt is not None else []
    parts += [read_document(file, "--file", warn) for file in files]
    if use_stdin and (_is_piped() if parts else not sys.stdin.isatty()):
        parts.append(decoded(sys.stdin.buffer.read(), "standard input", warn))
    if not parts:
        raise UsageError("There is no prompt: give --prompt TEXT, --file FILE, or pipe a text in.")
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UsageError("The prompt is empty: give --prompt TEXT, --file FILE, or pipe a text in.")
    return text


def decoded(data: bytes, source: str, warn: Warn) -> str:
    """UTF-8 text: a byte order mark is dropped, bad bytes are replaced with one warning."""
    text = data.decode("utf-8-sig", "replace")
    bad = text.count("\ufffd") - data.count("\ufffd".encode())
    if bad > 0:
        warn(f"{source} is not valid UTF-8 in {bad} place{'s' if bad > 1 else ''}; replaced with \ufffd.")
    return text


def clean(argument: str, source: str, warn: Warn) -> str:
    """An argument of the command line; the system passes bytes that are not UTF-8 as lone surrogates."""
    return decoded(os.fsencode(argument), source, warn) if not argument.isascii() else argument


def read_document(file: Path, option: str, warn: Warn) -> str:
    """The text of a file. Raises UsageError, with the option that names it, when it cannot be read."""
    try:
        return decoded(file.read_bytes(), str(file), warn)
    except OSError as error:
        raise UsageError(f"{option} {file} cannot be read: {error.strerror}.") from error


def _is_piped() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def checked_stops(stops: Sequence[str] | None) -> tuple[str, ...]:
    """The texts of --stop. Raises UsageError for an empty one."""
    if stops and not all(stops):
        raise UsageError("--stop is empty: give the text at which an answer is to end.")
    return tuple(stops or ())


def prompt_tokens(
    target: Engine,
    messages: Sequence[Message],
    name: str,
    warn: Warn,
    *,
    raw: bool = False,
    template: str | None = None,
) -> Tokens:
    """The tokens to continue: through the model's chat template, or as they are."""
    template = None if raw else template or target.chat_template()
    if template is not None:
        return chat_tokens(messages, template, target.vocabulary)
    if not raw:
        warn(f"{name} has no chat template: it continues the prompt as plain text (--raw says that this is meant).")
    return raw_tokens("\n\n".join(message.content for message in messages), target.vocabulary)
