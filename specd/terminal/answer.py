"""An answer as it comes: events of the loop to text."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from specd.decoding.context import Tokens
from specd.decoding.protocol import Event, Finished, Prefilled, Prefilling, Round
from specd.decoding.statistics import Statistics
from specd.terminal.stops import StopStrings


class TextDecoder(Protocol):
    """Tokens to text as they come."""

    def decode(self, tokens: Tokens) -> str:
        """The text that is certain now."""

    def flush(self) -> str:
        """What is left at the end."""


Show = Callable[[str, Event], None]
"""(text, event): the text that is certain with this event, often none."""


def stream_answer(
    events: Iterable[Event],
    statistics: Statistics,
    decoder: TextDecoder,
    show: Show,
    *,
    stops: Sequence[str] = (),
) -> str:
    """Run the events through the statistics, show the text while it comes, and give the whole of it.

    stops:  texts that end the answer; it has nothing of them
    """
    pieces: list[str] = []
    limit = StopStrings(stops)
    for event in events:
        statistics.add(event)
        text = ""
        if isinstance(event, Round):
            text = limit.feed(decoder.decode(event.tokens))
        elif isinstance(event, Finished):
            text = limit.feed(decoder.flush()) + limit.flush()
        pieces.append(text)
        if limit.found:
            statistics.add(Finished("stop"))
        show(text, event)
        if limit.found:
            break
    return "".join(pieces)


def as_json(text: str, event: Event) -> dict[str, Any] | None:
    """An event for programs; None for the last one, which the whole result replaces."""
    match event:
        case Prefilling():
            return {"event": "reading", "num_read": event.num_held, "prompt_tokens": event.num_prompt_tokens}
        case Prefilled():
            return {
                "event": "prompt",
                "prompt_tokens": event.num_prompt_tokens,
                "num_reused": event.num_reused,
                "seconds": event.target_seconds + event.draft_seconds,
            }
        case Round():
            return {
                "event": "round",
                "text": text,
                "num_tokens": len(event.tokens),
                "num_draft_tokens": event.num_draft_tokens,
                "num_accepted_tokens": event.num_accepted,
                "seconds": event.seconds,
            }
    return None
