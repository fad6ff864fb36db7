"""The speculative decoding loop."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from specd.decoding.context import TokenBuffer, Tokens, as_tokens
from specd.decoding.protocol import (
    Controller,
    Engine,
    Event,
    Finished,
    FinishReason,
    Prefilled,
    Prefilling,
    Round,
)
from specd.decoding.randomness import Randomness
from specd.decoding.sampling import ToDistribution, distributions_along
from specd.decoding.verify import Verify
from specd.errors import Interrupted


def generate(
    target: Engine,
    controller: Controller,
    prompt: Sequence[int] | Tokens,
    to_distribution: ToDistribution,
    verify: Verify,
    *,
    max_tokens: int,
    is_end: Callable[[int], bool],
    randomness: Randomness,
    clock: Callable[[], float],
) -> Iterator[Event]:
    """Decode up to `max_tokens` tokens after `prompt` (at least one token, at most `target.n_ctx`).

    Yields Prefilling before each decode of a long prompt, Prefilled, a Round per target pass, and Finished; the end
    token, if one comes, is the last token of the last round. The output follows the target's distribution whatever
    is drafted.

    Whenever a Round is yielded, the target's cache holds exactly context[:-1]: the last token is pending and
    is scored together with the next draft. So the generator may be dropped at any point.
    """
    assert len(prompt) > 0
    context = TokenBuffer(prompt, capacity=len(prompt) + max_tokens)
    remaining = max_tokens
    reason: FinishReason = "length"
    try:
        yield from _prefill(target, controller, context.view, clock)
        while remaining > 0 and len(context) <= target.n_ctx:
            started = clock()
            limit = min(remaining - 1, target.n_ctx - len(context), target.max_rows - 1)
            draft = controller.draft(context.view, limit)
            drafted = clock()
            if len(draft):
                target.checkpoint()
            logits = target.advance(np.concatenate([context.view[-1:], draft.tokens]))  # [num_draft + 1, n_vocab]
            scored = clock()
            target_probs = distributions_along(logits, context.followed_by(draft.tokens), to_distribution)
            verdict = verify(draft, target_probs, len(context), randomness)
            candidates = [*draft.tokens[: verdict.num_accepted].tolist(), verdict.next_token]
            tokens, ended = up_to_end(candidates, is_end)
            num_accepted = min(verdict.num_accepted, len(tokens))
            context.extend(tokens)
            target.rollback(len(context) - 1)  # restores the invariant, rejected or not
            remaining -= len(tokens)
            round_ = Round(
                tokens=as_tokens(tokens),
                draft=draft,
                num_accepted=num_accepted,
                num_rejected=len(draft) - verdict.num_accepted,
                num_discarded=len(draft.unscored) + verdict.num_accepted - num_accepted,
                draft_seconds=drafted - started,
                target_seconds=scored - drafted,
                seconds=clock() - started,
            )
            controller.observe(context.view, round_, logits)
            yield round_
            if ended:
                yield Finished("stop")
                return
    except Interrupted:
        reason = "interrupted"
    yield Finished(reason)


def _prefill(target: Engine, controller: Controller, prompt: Tokens, clock: Callable[[], float]) -> Iterator[Event]:
    started = clock()
    num_reused = target.matching(prompt[:-1])
    for end in range(num_reused + target.batch_size, len(prompt) - 1, target.batch_size):
        yield Prefilling(len(prompt), end - target.batch_size)
        target.sync(prompt[:end])
    target.sync(prompt[:-1])  # the common prefix is kept
    synced = clock()
    controller.prepare(prompt)
    yield Prefilled(len(prompt), num_reused, synced - started, clock() - synced)


def up_to_end(tokens: list[int], is_end: Callable[[int], bool]) -> tuple[list[int], bool]:
    """The tokens up to and including the first end token, and whether there was one."""
    for i, token in enumerate(tokens):
        if is_end(token):
            return tokens[: i + 1], True
    return tokens, False
