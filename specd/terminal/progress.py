"""Transfers on a terminal: a bar; elsewhere only what explains a wait."""

from typing import Self, TextIO

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


class StepProgress:
    """What is being done and how much time is left, in one line on stderr; nothing when it is not a terminal."""

    def __init__(self, stream: TextIO) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[left]}"))
        console = Console(file=stream, highlight=False)
        self._bar = Progress(*columns, console=console, transient=True, disable=not is_terminal(stream))
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str, seconds_left: float) -> None:
        """After each step."""
        done = self._bar.tasks[0].elapsed or 0.0
        self._bar.update(
            self._task,
            description=what,
            left=f"{duration(seconds_left)} left",
            completed=done,
            total=done + seconds_left,
        )


def duration(seconds: float) -> str:
    """In the unit that people would use."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
