"""Which models can draft for a target on this machine, and what that would gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specd.bench.calibration import Calibration, pair_key
from specd.decoding.costs import PassCosts
from specd.decoding.pricing import MAX_DRAFT, Prices
from specd.decoding.protocol import Engine as AnyEngine
from specd.drafting.translated import Translated
from specd.errors import SpecdError
from specd.models.gguf import Header, read_header

if TYPE_CHECKING:
    from specd.llama.engine import Engine
    from specd.llama.pairing import Pairing

MEASURING_SECONDS = 0.5  # per candidate
_K_QUANT_ROW = 256  # weights that a k-quant's block spans: shorter rows get another, slower type


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about one candidate.

    reason:      why it cannot draft, None when it can
    share:       what a drafted token costs, in plain steps of the target
    can_pay:     whether the controller would use it at all
    bound:       speed over plain decoding if it were always right
    expected:    the same with the acceptance seen so far, or usual for drafts
    break_even:  the acceptance at which it costs as much as it gives; None when it never does
    suggestion:  what would make it faster
    """

    name: str
    num_bytes: int
    reason: str | None
    share: float | None = None
    can_pay: bool = False
    bound: float | None = None
    expected: float | None = None
    break_even: float | None = None
    suggestion: str | None = None


def in_ids_of(target: Engine, draft: Engine, pairing: Pairing) -> tuple[AnyEngine, int]:
    """The draft, speaking the target's ids, and below which id it does: itself where its ids are the target's."""
    if not pairing.is_cut:
        return draft, pairing.num_shared
    ids = {draft.vocabulary.text(token): token for token in range(draft.n_vocab)}
    spelling = target.vocabulary.text
    return Translated(draft, pairing.num_shared, pairing.others, target.n_vocab, spelling, ids), target.n_vocab


def judge(
    name: str,
    path: Path,
    target: Engine,
    target_costs: PassCosts,
    calibration: Calibration,
    cache: Path,
    clock: Callable[[], float],
) -> Verdict:
    """Load a candidate, compare it with the target, and measure what its tokens cost.

    cache:  the folder in which comparisons of vocabularies, and what llama.cpp survives, are kept
    """
    from specd.llama.engine import Engine
    from specd.llama.pairing import pair
    from specd.llama.trial import TRIALS, Request, ensure_survival

    size = path.stat().st_size
    try:
        header = read_header(path)
        if header.is_projector:
            return Verdict(name, size, "it is the vision or audio side of a model")
        if size >= target.path.stat().st_size:
            return Verdict(name, size, "it is not smaller than the target")
        ensure_survival(Request(str(path), target.threads, 1), cache / TRIALS)
        with Engine(path, threads=target.threads, max_rows=1, interrupt=target.interrupt) as draft:
            pairing = pair(target, draft, cache / "pairs")
            if pairing.reason is not None:
                return Verdict(name, size, pairing.reason)
            draft.allocate(1024)
            costs = calibration.draft_costs(draft, MAX_DRAFT + 1, 0, MEASURING_SECONDS, clock)
            acceptance = calibration.acceptance(pair_key(target, draft, sampled=False))
    except SpecdError as error:
        return Verdict(name, size, str(error))
    prices = Prices(target_costs, {"draft": costs})
    share = prices.token_seconds("draft") / prices.plain_seconds
    expected = prices.best_gain("draft", lambda depth: acceptance.at_depth("draft", depth))
    bound, break_even = prices.bound("draft"), prices.break_even("draft")
    return Verdict(
        name, size, None, share, prices.can_pay("draft"), bound, expected, break_even, _suggestion(name, header)
    )


def _suggestion(name: str, header: Header) -> str | None:
    """A requantisation that would pay: k-quants need rows of whole blocks, and fall back to slower types."""
    width = header.of_architecture("embedding_length")
    types = {kind for kind, share in header.types() if share > 0.05}
    if width and width % _K_QUANT_ROW and any(kind.endswith("_K") or kind in ("Q5_0", "Q8_0") for kind in types):
        return f"its rows of {width} do not fit k-quants: specd models quantize {name} q4_0 --pure"
    return None


def in_order(verdicts: list[Verdict]) -> list[Verdict]:
    """The largest expected gain first, then those that cannot draft."""
    return sorted(verdicts, key=lambda verdict: (verdict.reason is not None, -(verdict.expected or 0.0), verdict.name))
