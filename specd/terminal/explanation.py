"""Why drafting paid, or did not, in plain words."""

from collections.abc import Mapping
from typing import Any

from specd.decoding.ledger import PLAIN
from specd.decoding.statistics import Statistics


def explanation(statistics: Statistics, report: Mapping[str, Any], notices: Mapping[str, str]) -> str:
    """Lines for people: what passes cost, what each drafter could give and gave, and what was chosen.

    report:   the controller's; empty when nothing was decided
    notices:  by drafter, why it was not used
    """
    if not report:
        reasons = [f"{name}: {text}." for name, text in notices.items()]
        return "\n".join(reasons or ["Nothing was decided here: every round drafted the same number of tokens."])
    plain = report["plain_seconds"]
    lines = [f"A plain step takes {1000 * plain:.0f} ms here ({1 / plain:.1f} tokens/s)."]
    passes = {n: seconds / plain for n, seconds in report["pass_seconds"]["target"].items() if n > 1}
    if passes:
        shown = [n for n in (2, 4, 8, 16, 32, 64) if n in passes] or [max(passes)]
        lines.append(f"A pass over {_listed([f'{n} tokens costs {passes[n]:.1f}' for n in shown])} of it.")
    for name, bound in report["max_speedup"].items():
        lines.append(_drafter(name, bound, report, statistics))
    lines += [f"{name}: {text}." for name, text in notices.items() if name not in report["max_speedup"]]
    rounds = report["rounds"]
    total = sum(rounds.values())
    if total:
        shares = sorted(rounds.items(), key=lambda item: -item[1])
        chosen = _listed([f"{_named(choice)} in {count / total:.0%}" for choice, count in shares])
        lines.append(f"Of {total} rounds: {chosen}.")
    gained, explored = report["gained_seconds"], report["explored_seconds"]
    if set(rounds) - {PLAIN}:
        verb = "saved" if gained >= 0 else "lost"
        lines.append(f"Drafting {verb} {abs(gained):.2f} s against plain decoding (an estimate).")
    if explored > 0:
        lines.append(f"Trying whether a drafter pays cost {explored:.2f} s.")
    return "\n".join(lines)


def _drafter(name: str, bound: float, report: Mapping[str, Any], statistics: Statistics) -> str:
    """What one drafter costs, needs and gave."""
    share = report["draft_token_seconds"][name] / report["plain_seconds"]
    cost = f"costs {share:.2f} of a plain step per token" if share else "costs nothing"
    line = f"{name} {cost}; perfect drafts would give {bound:.2f}× here"
    if (needed := report["break_even_acceptance"][name]) is None:
        line += ", so it cannot pay"
    else:
        line += f", and it pays from {needed:.0%} accepted"
    counts = statistics.by_drafter.get(name)
    if counts is None or counts.acceptance_rate is None:
        return f"{line}. It was not used."
    return f"{line}. It had {counts.acceptance_rate:.0%} of {counts.num_draft_tokens} tokens accepted."


def _named(choice: str) -> str:
    return "no draft" if choice == PLAIN else choice


def _listed(parts: list[str]) -> str:
    return ", ".join(parts)
