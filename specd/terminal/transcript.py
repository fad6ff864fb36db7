"""The answers of a chat on the screen."""

import shutil
import textwrap
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len

from specd.terminal.status import StatusLine
from specd.terminal.text import DIM, PLAIN, Output, is_terminal, neutralised
from specd.terminal.wrap import WordWrap

_STYLES = {"draft": "\x1b[36m", "lookup": "\x1b[32m", "predicted": "\x1b[35m"}  # the target's own tokens have none
LEGEND = {"draft": "model draft", "lookup": "lookup", "predicted": "predicted", "": "the model itself"}
_THINK, _THOUGHT = "<think>", "</think>"


class Transcript:
    """Answers, each line written once: wrapped at words on a terminal, unchanged in a pipe.

    Reasoning between think tags is dim. With `by_source`, tokens have the colour of who proposed them.

    color:  whether escape sequences for colours may be written
    """

    def __init__(self, stream: TextIO, errors: TextIO, clock: Callable[[], float], *, color: bool) -> None:
        self.by_source = False
        self._errors = errors
        self._color = color
        self._output = Output(stream)
        self._status = StatusLine(errors, self._output, clock, color=color)
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[tuple[str, str]] = []
        self._wrap = WordWrap(lambda text, style: self._pieces.append((text, style)), _width)
        self._tail = ""  # of the text, long enough for a tag
        self._thinks = False

    def write(self, text: str, source: str, status: Callable[[], str]) -> None:
        """More of the answer. source: who proposed it; empty for the target itself."""
        self._look_for_tags(text)
        style = DIM if self._thinks else _STYLES.get(source, "") if self.by_source else ""
        style = style if self._color else ""
        if self._output.on_terminal:
            self._wrap.feed(text, style)
        else:
            self._pieces.append((text, style))
        self._flush(status)

    def finish(self) -> None:
        """The answer is over."""
        self._wrap.finish()
        self._status.erase()
        for text, style in self._pieces:
            self._output.write(text, style)
        self._output.finish()
        self._begin()

    def note(self, text: str, *, is_styled: bool = False) -> None:
        """Words of ours, beside the answers. is_styled: it has escape sequences of ours already."""
        on_terminal = is_terminal(self._errors)
        if on_terminal and not is_styled:
            text = "\n".join(_wrapped(line) for line in neutralised(text).split("\n"))
        dim = self._color and on_terminal and not is_styled
        print(f"{DIM}{text}{PLAIN}" if dim else text, file=self._errors, flush=True)

    def legend(self) -> str:
        """Which colour stands for whom."""
        names = [
            f"{_STYLES[name]}{text}{PLAIN}" if self._color and name in _STYLES else text
            for name, text in LEGEND.items()
        ]
        return f"Tokens by who proposed them: {', '.join(names)}."

    def _flush(self, status: Callable[[], str]) -> None:
        self._status.write_styled(self._pieces, status)
        self._pieces.clear()

    def _look_for_tags(self, text: str) -> None:
        self._tail = (self._tail + text)[-len(text) - len(_THOUGHT) :]
        begin, end = self._tail.rfind(_THINK), self._tail.rfind(_THOUGHT)
        if begin > end:
            self._thinks = True
        elif end > begin:
            self._thinks = False


def _wrapped(line: str) -> str:
    """A line of ours, broken at blanks where it is too long; columns stay columns."""
    if cell_len(line) <= _width():
        return line
    return textwrap.fill(line, _width(), break_long_words=False, break_on_hyphens=False, replace_whitespace=False)


def _width() -> int:
    return shutil.get_terminal_size().columns - 1
