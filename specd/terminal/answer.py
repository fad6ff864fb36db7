"""An answer as it comes: events of the loop to text on the screen or in a pipe."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from specd.decoding.context import Tokens
from specd.decoding.protocol import Event, Finished, Round
from specd.decoding.statistics import Statistics
from specd.terminal.status import StatusLine, status_text
from specd.terminal.stops import StopStrings


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
    stops: Sequence[str] = (),
) -> str:
    """Run the events through the statistics, write the text while it comes, and give the whole of it.

    stops:  texts that end the answer; it has nothing of them
    """
    pieces: list[str] = []
    limit = StopStrings(stops)
    try:
        for event in events:
            statistics.add(event)
            if isinstance(event, Round):
                pieces.append(limit.feed(decoder.decode(event.tokens)))
            elif isinstance(event, Finished):
                pieces.append(limit.feed(decoder.flush()) + limit.flush())
            else:
                pieces.append("")
            if limit.found:
                statistics.add(Finished("stop"))
            status.write(pieces[-1] if show_text else "", lambda: status_text(statistics, max_tokens))
            if limit.found:
                break
    finally:
        status.erase()
    return "".join(pieces)
