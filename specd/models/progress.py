"""How a long transfer is shown; the terminal has the real one."""

from typing import Protocol


class Progress(Protocol):
    """Told what happens while a model is fetched or checked."""

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """A step begins: `total` bytes, `done` of them already there."""

    def advance(self, num_bytes: int) -> None:
        """That many more bytes are done (fewer when negative)."""

    def finish(self) -> None:
        """The step is over, whether or not it was completed."""

    def note(self, text: str) -> None:
        """Something that explains a wait or a detour, one line."""


class NoProgress:
    """Shows nothing."""

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """Nothing."""

    def advance(self, num_bytes: int) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
