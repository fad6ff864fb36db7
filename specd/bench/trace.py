"""Recorded runs: what the target said and what a draft model would have proposed at every position.

A trace makes decisions of a controller testable without a noisy clock: the loop, the lookup and the controller run for
real over it, and only the two models answer from the record (`replay.py`). What free drafters would have proposed is
not recorded, as they are asked again in the replay.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, as_tokens
from specd.decoding.protocol import Engine
from specd.decoding.sampling import certainty, greedy
from specd.errors import SpecdError

AHEAD = 8  # tokens that a draft model is recorded to go on with after it was wrong


@dataclass(frozen=True, slots=True)
class Step:
    """One position of the output.

    token:      what the target said
    certainty:  how sure it was
    draft:      the draft model's tokens from here on, each with its confidence; only the first one when it is right,
                as the next step goes on from there
    """

    token: int
    certainty: float
    draft: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A greedy run.

    kind:             of text
    target_seconds:   of a pass of the target, by its number of tokens
    draft_seconds:    the same of the draft model
    predicted:        tokens of a text that was expected to come again; empty without one
    """

    kind: str
    target: str
    draft: str
    target_seconds: Mapping[int, float]
    draft_seconds: Mapping[int, float]
    prompt: Tokens
    steps: tuple[Step, ...]
    predicted: Tokens

    @property
    def output(self) -> Tokens:
        """What the target said."""
        return as_tokens([step.token for step in self.steps])

    def accepted(self, position: int) -> int:
        """How many tokens of the draft model, asked at this position, the target would have accepted."""
        end = position
        while end < len(self.steps) and self.steps[end].draft and self.steps[end].draft[0][0] == self.steps[end].token:
            end += 1
        return end - position

    def write(self, path: Path) -> None:
        """As JSON lines: a head, then a line per position."""
        head = {
            "kind": self.kind,
            "target": self.target,
            "draft": self.draft,
            "target_seconds": {n: round(seconds, 5) for n, seconds in self.target_seconds.items()},
            "draft_seconds": {n: round(seconds, 5) for n, seconds in self.draft_seconds.items()},
            "prompt": self.prompt.tolist(),
            "predicted": self.predicted.tolist(),
        }
        lines = [head] + [
            {
                "token": step.token,
                "certainty": round(step.certainty, 4),
                "draft": [[token, round(confidence, 4)] for token, confidence in step.draft],
                "accepted": self.accepted(position),
            }
            for position, step in enumerate(self.steps)
        ]
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Raises SpecdError for a file that is not a trace."""
        try:
            head, *lines = map(json.loads, path.read_text().splitlines())
            steps = tuple(
                Step(
                    line["token"], line["certainty"], tuple((token, confidence) for token, confidence in line["draft"])
                )
                for line in lines
            )
            return cls(
                kind=head["kind"],
                target=head["target"],
                draft=head["draft"],
                target_seconds={int(n): seconds for n, seconds in head["target_seconds"].items()},
                draft_seconds={int(n): seconds for n, seconds in head["draft_seconds"].items()},
                prompt=as_tokens(head["prompt"]),
                steps=steps,
                predicted=as_tokens(head["predicted"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecdError(f"{path} is not a trace: {error}.") from error


def record(
    target: Engine, draft: Engine, prompt: Tokens, max_tokens: int, is_end: Callable[[int], bool]
) -> tuple[Step, ...]:
    """Decode greedily, and note at each position what the draft model proposes after the target's own tokens."""
    context = TokenBuffer(prompt)
    steps: list[Step] = []
    target.sync(prompt[:-1])
    while len(steps) < max_tokens:
        row = target.advance(context.view[-1:])[-1]
        token = greedy(row, context.view).most_likely()
        proposals = [_most_likely(draft, context.view)]
        while proposals[0][0] != token and len(proposals) < AHEAD:
            proposed = as_tokens([proposal for proposal, _ in proposals])
            proposals.append(_most_likely(draft, np.concatenate([context.view, proposed])))
        steps.append(Step(token, certainty(row), tuple(proposals)))
        context.extend([token])
        if is_end(token):
            break
    return tuple(steps)


def foretold(draft: Engine, prompt: Tokens, output: Tokens, certainties: Sequence[float]) -> tuple[Step, ...]:
    """What a draft model says at each position of an output that is known, in few passes over many tokens each.

    Enough to tell how many of its tokens would have been accepted anywhere, and nothing about the others.
    """
    context = np.concatenate([prompt, output])
    draft.sync(prompt[:-1])
    rows: list[tuple[int, float]] = []
    for start in range(len(prompt) - 1, len(context) - 1, draft.max_rows):
        stop = min(start + draft.max_rows, len(context) - 1)
        rows += [(int(row.argmax()), certainty(row)) for row in draft.advance(context[start:stop])]
    return tuple(Step(*step) for step in zip(output.tolist(), certainties, ((row,) for row in rows), strict=True))


def _most_likely(draft: Engine, context: Tokens) -> tuple[int, float]:
    row = draft.sync(context, num_rows=1)[-1]
    return int(row.argmax()), certainty(row)
