"""Transfers on a terminal: a bar; elsewhere only what explains a wait."""

from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from specd.terminal.text import is_terminal


class TransferProgress:
    """Implements `specd.models.progress.Progress` with rich, on stderr."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._active = is_terminal(stream)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """A new bar."""
        self.finish()
        if self._active:
            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(text, *columns, console=self._console, transient=True)
            self._task = self._bar.add_task(what, total=total, completed=done)
            self._bar.start()

    def advance(self, num_bytes: int) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, num_bytes)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        """A line on a terminal; silence in a pipe, where only failure speaks."""
        if self._active:
            self._console.print(text, markup=False, soft_wrap=True)
