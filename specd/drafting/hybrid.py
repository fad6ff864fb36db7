"""Several drafters as one, and none at all."""

from collections.abc import Mapping, Sequence

from specd.decoding.context import Tokens
from specd.decoding.protocol import Draft, Drafter, Round


class NoDrafter:
    """Never proposes: decoding is plain.

    reasons:  by drafter, why it is not there
    """

    name = "none"

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.notices = reasons

    def prepare(self, context: Tokens) -> None:
        """Nothing to take in."""

    def propose(self, context: Tokens, max_tokens: int) -> Draft:
        """Nothing."""
        return Draft.certain(self.name, [])

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


class FirstWith:
    """Asks drafters in order and takes the first proposal that is not empty.

    Put the cheap ones first. At the end a NoDrafter may carry reasons why others are missing.
    """

    name = "hybrid"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        assert drafters
        self._drafters = drafters

    @property
    def notices(self) -> Mapping[str, str]:
        """What any of them has to say."""
        return {name: text for drafter in self._drafters for name, text in drafter.notices.items()}

    def prepare(self, context: Tokens) -> None:
        """Passed on to all."""
        for drafter in self._drafters:
            drafter.prepare(context)

    def propose(self, context: Tokens, max_tokens: int) -> Draft:
        """The first proposal that is not empty; all are asked until then, so that each sees the context."""
        for drafter in self._drafters:
            draft = drafter.propose(context, max_tokens)
            if len(draft):
                break
        return draft

    def observe(self, round_: Round) -> None:
        """Passed on to all."""
        for drafter in self._drafters:
            drafter.observe(round_)
