"""The status line: what is going on, in the line below the text."""

import shutil
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from specd.decoding.statistics import Statistics
from specd.terminal.text import DIM, PLAIN, Output, is_terminal

_SEPARATOR = " · "
_INTERVAL = 0.1  # seconds between two states of the line
_MAKE_ROOM, _SAVE, _RESTORE = "\x1bD\x1b[A", "\x1b7", "\x1b8"
_DOWN, _CLEAR_BELOW = "\x1b[B\r", "\x1b[J"


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
        self.write_styled([(text, "")], status)

    def write_styled(self, pieces: Iterable[tuple[str, str]], status: Callable[[], str]) -> None:
        """The same, in pieces with a style each."""
        if not self._active:
            self._write(pieces)
            return
        if self._clock() - self._last_change >= _INTERVAL:
            self._text, self._last_change = status(), self._clock()
        self.erase()
        self._write(pieces)
        self._draw()

    def erase(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._stream.write(_CLEAR_BELOW if self._output.on_terminal else f"\r{_CLEAR_BELOW}")
            self._stream.flush()
            self._drawn = False

    def _write(self, pieces: Iterable[tuple[str, str]]) -> None:
        for text, style in pieces:
            self._output.write(text, style)

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns
        line = fitting(self._text, width - 1)
        line = f"{DIM}{line}{PLAIN}" if self._color else line
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


def chat_status(statistics: Statistics, num_used: int, n_ctx: int) -> str:
    """Speed, acceptance, tokens per pass, estimated gain, context used and who proposed what, the most wanted first."""
    if statistics.num_read is not None:
        return reading_text(statistics.num_read, statistics.num_prompt_tokens)
    speed, acceptance = statistics.decode_tokens_per_second, statistics.total.acceptance_rate
    parts = [f"{speed:.1f} tokens/s" if speed else "…"]
    if acceptance is not None:
        parts += [f"{acceptance:.0%} accepted", f"{statistics.mean_acceptance_length:.2f} per pass"]
        if (gain := statistics.speedup_estimate) is not None:
            parts.append(f"~{gain:.2f}× plain")
    parts.append(f"ctx {num_used}/{n_ctx}")
    number = max(1, statistics.num_completion_tokens)
    for name, counts in statistics.by_drafter.items():
        if counts.num_accepted_tokens:
            parts.append(f"{name} {counts.num_accepted_tokens / number:.0%}")
    return _SEPARATOR.join(parts)


def reading_text(num_read: int, num_prompt_tokens: int) -> str:
    """While a long prompt is taken in."""
    return f"reading the prompt: {num_read} of {num_prompt_tokens} tokens"


def status_text(statistics: Statistics, max_tokens: int) -> str:
    """Speed, progress, acceptance and draft length in one line, the most wanted first."""
    if statistics.num_read is not None:
        return reading_text(statistics.num_read, statistics.num_prompt_tokens)
    speed, acceptance = statistics.decode_tokens_per_second, statistics.total.acceptance_rate
    parts = [f"{speed:.1f} tokens/s" if speed else "…", f"{statistics.num_completion_tokens}/{max_tokens}"]
    if acceptance is not None:
        parts.append(f"{acceptance:.0%} accepted")
        parts.append(f"draft {statistics.last_draft}")
        parts.append(f"{statistics.mean_acceptance_length:.2f} tokens per pass")
    return _SEPARATOR.join(parts)
