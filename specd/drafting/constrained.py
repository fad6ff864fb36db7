"""Drafting under a constraint: what must follow is certain, and what may not follow is not drafted."""

from collections.abc import Iterator, Mapping

from specd.decoding.constraint import Constraint
from specd.decoding.context import TokenBuffer, Tokens
from specd.decoding.protocol import Drafter, Evidence, Proposal, Round

GRAMMAR = "grammar"


class Forced:
    """Proposes what the constraint forces: keys, punctuation and the end of a schema cost no guessing."""

    name = GRAMMAR
    is_free = True
    notices: Mapping[str, str] = {}
    counters: Mapping[str, float] = {}

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def prepare(self, context: Tokens) -> None:
        """Nothing to take in."""

    def backlog(self, context: Tokens) -> int:
        """None."""
        return 0

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """All that must follow."""
        for depth, token in enumerate(self._constraint.forced(context)):
            yield Proposal.certain(token, Evidence(GRAMMAR, depth))

    def observe(self, round_: Round) -> None:
        """Nothing to learn."""


class Constrained:
    """A free drafter, cut before the first token that is not allowed; what must follow is put in between, so that
    copied values and fixed keys make one draft.

    drafter:  proposes tokens without probabilities, and whatever it is asked to continue
    """

    is_free = True

    def __init__(self, drafter: Drafter, constraint: Constraint) -> None:
        self._drafter, self._constraint = drafter, constraint
        self._forced = Forced(constraint)
        self.name = drafter.name

    @property
    def notices(self) -> Mapping[str, str]:
        """The drafter's."""
        return self._drafter.notices

    @property
    def counters(self) -> Mapping[str, float]:
        """The drafter's."""
        return self._drafter.counters

    def prepare(self, context: Tokens) -> None:
        """The drafter takes in the prompt."""
        self._drafter.prepare(context)

    def backlog(self, context: Tokens) -> int:
        """None."""
        return self._drafter.backlog(context)

    def propose(self, context: Tokens) -> Iterator[Proposal]:
        """What must follow, then what the drafter says, by turns."""
        history = TokenBuffer(context, capacity=len(context) + 64)
        while True:
            length = len(history)
            for proposal in self._forced.propose(history.view):
                history.extend([proposal.token])
                yield proposal
            for proposal in self._drafter.propose(history.view):
                if not self._constraint.permits(history.view, proposal.token):
                    break
                history.extend([proposal.token])
                yield proposal
                if self._constraint.forced(history.view):
                    break
            if len(history) == length:
                return

    def observe(self, round_: Round) -> None:
        """The drafter may learn."""
        self._drafter.observe(round_)
