"""The status line: what is going on, in the line below the text."""

import shutil
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from specd.decoding.statistics import Statistics
from specd.terminal.text import Output, is_terminal

_SEPARATOR = " · "
_INTERVAL = 0.1  # seconds between two states of the line
_MAKE_ROOM, _SAVE, _RESTORE = "\x1bD\x1b[A", "\x1b7", "\x1b8"
_DOWN, _CLEAR_BELOW, _DIM, _PLAIN = "\x1b[B\r", "\x1b[J", "\x1b[2m", "\x1b[0m"


class StatusLine:
    """A line on stderr that never mixes with the answer.

    When the answer goes to the same terminal, the line lies below the text and is taken away before more text
    is written, so that no state of it reaches the scrollback. Draws nothing when stderr is not a terminal.
    """

    def __init__(self, stream: TextIO, output: Output, clock: Callable[[], float], *, color: bool) -> None:
        self._stream = stream
        self._output = output
        self._clock = clock
        self._active = is_terminal(stream)
        self._color = color
        self._text = ""
        self._drawn = False
        self._last_change = float("-inf")

    def write(self, text: str, status: Callable[[], str]) -> None:
        """Write text of the answer, with the status below it; `status` is asked ten times a second."""
        if not self._active:
            self._output.write(text)
            return
        if self._clock() - self._last_change >= _INTERVAL:
            self._text, self._last_change = status(), self._clock()
        self.erase()
        self._output.write(text)
        self._draw()

    def erase(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._stream.write(_CLEAR_BELOW if self._output.on_terminal else f"\r{_CLEAR_BELOW}")
            self._stream.flush()
            self._drawn = False

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns
        line = fitting(self._text, width - 1)
        line = f"{_DIM}{line}{_PLAIN}" if self._color else line
        if not self._output.on_terminal:
            self._stream.write(f"\r{line}")
        elif self._output.column == 0 or self._output.column % width:
            self._stream.write(f"{_MAKE_ROOM}{_SAVE}{_DOWN}{line}{_RESTORE}")
        else:
            return  # the cursor waits behind the last column; moving it would lose that state
        self._stream.flush()
        self._drawn = True


def fitting(text: str, width: int) -> str:
    """A status cut to a width in cells: whole parts where one of them fits, as half a number misleads."""
    parts = text.split(_SEPARATOR)
    while len(parts) > 1 and cell_len(_SEPARATOR.join(parts)) > width:
        parts.pop()
    return set_cell_size(_SEPARATOR.join(parts), width).rstrip()


def status_text(statistics: Statistics, max_tokens: int) -> str:
    """Speed, progress, acceptance and draft length in one line, the most wanted first."""
    speed, acceptance = statistics.decode_tokens_per_second, statistics.total.acceptance_rate
    parts = [f"{speed:.1f} tokens/s" if speed else "…", f"{statistics.num_completion_tokens}/{max_tokens}"]
    if acceptance is not None:
        parts.append(f"{acceptance:.0%} accepted")
        parts.append(f"draft {statistics.last_draft}")
        parts.append(f"{statistics.mean_acceptance_length:.2f} tokens per pass")
    return _SEPARATOR.join(parts)
