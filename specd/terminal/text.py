"""Model text on its way out."""

import os
import re
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.cells import cell_len

PLAIN, DIM = "\x1b[0m", "\x1b[2m"  # escape sequences
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def neutralised(text: str) -> str:
    """The text with control characters made visible, so that it cannot drive a terminal."""
    return _CONTROL.sub(lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 32 else "\ufffd", text)


def is_terminal(stream: TextIO) -> bool:
    """Whether escape sequences may be written to a stream."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


class Output:
    """The answer, streamed: unchanged into a pipe, neutralised on a terminal; one newline at the end.

    On a terminal a status line may follow the text (see `status`). Each piece of text is written once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.on_terminal = is_terminal(stream)
        self.column = 0  # of the cursor, on a terminal: an estimate
        self._last = ""

    def write(self, text: str, style: str = "") -> None:
        """Write and flush. style: an escape sequence that holds for this text, used on a terminal only."""
        if not text:
            return
        self._last = text[-1]
        if self.on_terminal:
            text = neutralised(text)
            _, newline, line = text.rpartition("\n")
            self.column = cell_len(line.expandtabs(8)) + (0 if newline else self.column)
            text = f"{style}{text}{PLAIN}" if style else text
        self._stream.write(text)
        self._stream.flush()

    def finish(self) -> None:
        """End the text with a newline if it lacks one. Nothing when nothing was written."""
        if self._last not in ("", "\n"):
            self.write("\n")


@contextmanager
def without_echo(stream: TextIO) -> Iterator[None]:
    """What is typed meanwhile into a terminal is not shown in the middle of the text, and waits to be read as typed."""
    if not is_terminal(stream):
        yield
        return
    before = termios.tcgetattr(stream)
    quiet = [*before]
    quiet[0] &= ~termios.ICRNL  # of the input modes: Enter stays Enter, for the line editor that reads it later
    quiet[3] &= ~(termios.ECHO | termios.ICANON)  # of the local modes: so does Ctrl-D; Ctrl-C is still a signal
    termios.tcsetattr(stream, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSANOW, before)
