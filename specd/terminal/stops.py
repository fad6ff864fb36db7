"""Texts that end an answer."""

from collections.abc import Sequence


class StopStrings:
    """Cuts a streamed text before the first stop string; what may become one is held back until that is known.

    stops:  not empty, each
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops)
        self._stops = stops
        self._held = ""
        self.length = 0  # characters that were given out
        self.found = False

    def feed(self, text: str) -> str:
        """More text in; what of it is certain to stay out of a stop string."""
        if self.found:
            return ""
        self._held += text
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            self.found = True
            return self._give(min(places), keep=False)
        return self._give(len(self._held) - self._num_held(), keep=True)

    def flush(self) -> str:
        """No more text comes: what was held back was no stop string."""
        return self._give(len(self._held), keep=False)

    def _give(self, number: int, *, keep: bool) -> str:
        text, rest = self._held[:number], self._held[number:]
        self._held = rest if keep else ""
        self.length += len(text)
        return text

    def _num_held(self) -> int:
        """The length of the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._stops), default=1) - 1
        for number in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-number:]) for stop in self._stops):
                return number
        return 0
