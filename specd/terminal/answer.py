"""An answer as it comes: events of the loop to text on the screen or in a pipe."""

from collections.abc import Iterable
from typing import Protocol

from specd.decoding.context import Tokens
from specd.decoding.protocol import Event, Finished, Round
from specd.decoding.statistics import Statistics
from specd.terminal.status import StatusLine, status_text


class TextDecoder(Protocol):
    """Tokens to text as they come."""

    def decode(self, tokens: Tokens) -> str:
        """The text that is certain now."""

    def flush(self) -> str:
        """What is left at the end."""


def stream_answer(
    events: Iterable[Event],
    statistics: Statistics,
    decoder: TextDecoder,
    status: StatusLine,
    *,
    max_tokens: int,
    show_text: bool,
) -> str:
    """Run the events through the statistics, write the text while it comes, and give the whole of it."""
    pieces: list[str] = []
    try:
        for event in events:
            statistics.add(event)
            if isinstance(event, Round):
                pieces.append(decoder.decode(event.tokens))
            elif isinstance(event, Finished):
                pieces.append(decoder.flush())
            else:
                continue
            status.write(pieces[-1] if show_text else "", lambda: status_text(statistics, max_tokens))
    finally:
        status.erase()
    return "".join(pieces)
