"""What a generation cost and gained, in plain words."""

from specd.decoding.statistics import Statistics


def summary(statistics: Statistics, off_reason: str | None) -> str:
    """A few lines for people; every number was measured in this run or is called an estimate.

    off_reason:  why nothing was drafted, None when something was
    """
    s = statistics
    lines = [
        f"{s.num_completion_tokens} tokens in {s.decode_seconds:.1f} s"
        + (f": {s.decode_tokens_per_second:.1f} tokens/s" if s.decode_tokens_per_second else "")
        + f" (prompt: {s.num_prompt_tokens} tokens in {s.prefill_seconds:.1f} s)"
    ]
    if off_reason is not None:
        return "\n".join([*lines, f"speculation was off: {off_reason}"])
    for name, counts in s.by_drafter.items():
        if counts.acceptance_rate is not None:
            lines.append(
                f"{name}: {counts.num_accepted_tokens} of {counts.num_draft_tokens} drafted tokens accepted "
                f"({counts.acceptance_rate:.0%})"
            )
    plain, speedup = s.plain_tokens_per_second_estimate, s.speedup_estimate
    if plain is None or speedup is None:
        lines.append("too short to estimate what plain decoding would have done")
        return "\n".join(lines)
    lines.append(
        f"{speedup:.2f}× plain decoding (an estimate: {plain:.1f} tokens/s, from the cost of passes in this run)"
    )
    if (cost := s.round_cost_estimate) is not None and (gain := s.tokens_per_drafted_round) is not None:
        verdict = "so drafting paid" if gain > cost else "so drafting did not pay"
        lines.append(f"a round with a draft cost {cost:.2f} plain steps and gave {gain:.2f} tokens, {verdict}")
    return "\n".join(lines)
