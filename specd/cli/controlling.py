"""Who decides about drafts, with what is known about this machine and this pair."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from specd.bench.calibration import MEASURING_SECONDS, SHARE_OF_LOADING, Calibration, pair_key
from specd.cli.building import LoadedDraft, Plan
from specd.decoding.acceptance import Acceptance
from specd.decoding.adaptive import Adaptive
from specd.decoding.controller import FixedLength
from specd.decoding.costs import PassCosts
from specd.decoding.pricing import Prices
from specd.decoding.protocol import Controller, Drafter
from specd.decoding.statistics import Statistics

if TYPE_CHECKING:
    from specd.llama.engine import Engine

_BUSY = 8.0  # times the usual seconds of a step
_DRAFT_SHARE = 0.3  # of the time for measuring


@dataclass(frozen=True, slots=True)
class Control:
    """A controller, and what it learns.

    usual_seconds:  of a plain step of the target, as it was measured before this run; None where it was not
    """

    controller: Controller
    calibration: Calibration
    pair: str
    context_length: int
    acceptance: Acceptance
    costs: Mapping[Engine, PassCosts]
    usual_seconds: float | None = None

    def complaint(self, statistics: Statistics) -> str | None:
        """What to tell the user when the machine was busy with other things: llama.cpp's threads wait for each other,
        and everything gets many times slower. None when it was not."""
        seconds = statistics.plain_step_seconds
        if self.usual_seconds is None or seconds is None or seconds < _BUSY * self.usual_seconds:
            return None
        return (
            f"A step took {seconds / self.usual_seconds:.0f} times as long as on this machine before: other programs "
            "keep its cores busy. Stop them, or leave cores free with --threads (specd doctor says how many there are)."
        )

    def keep(self) -> None:
        """Keep what was learned for the next run."""
        for engine, costs in self.costs.items():
            self.calibration.keep_costs(engine, self.context_length, costs)
        if self.costs:
            self.calibration.keep_acceptance(self.pair, self.acceptance)


def build_control(
    calibration: Calibration,
    plan: Plan,
    target: Engine,
    draft: LoadedDraft,
    drafters: Sequence[Drafter],
    *,
    context_length: int,
    load_seconds: float,
) -> Control:
    """The controller of a run. Where nothing is known about the machine yet, this measures it (a second).

    load_seconds:  what loading took; a small share of it may go into measuring big models
    """
    from specd.llama.library import compute

    settings = plan.settings
    pair = pair_key(target, draft.engine, sampled=settings.sampling.temperature > 0)
    acceptance = calibration.acceptance(pair)
    costs: dict[Engine, PassCosts] = {}
    if settings.draft_length is not None or not drafters:
        controller: Controller = FixedLength(drafters, plan.max_draft, time.perf_counter)
        return Control(controller, calibration, pair, context_length, acceptance, costs)
    seconds = max(MEASURING_SECONDS, SHARE_OF_LOADING * load_seconds)
    share = _DRAFT_SHARE if draft.engine is not None else 0.0
    for engine, measured, part in (
        (target, calibration.costs, 1 - share),
        (draft.engine, calibration.draft_costs, share),
    ):
        if engine is not None:
            table = partial(measured, engine, plan.max_draft + 1, context_length, part * seconds, time.perf_counter)
            costs[engine] = compute(target.interrupt, table)
    paid = {
        drafter.name: costs[draft.engine] for drafter in drafters if draft.engine is not None and not drafter.is_free
    }
    prices = Prices(costs[target], paid, plan.max_draft)
    controller = Adaptive(drafters, prices, acceptance, time.perf_counter, max_draft=plan.max_draft)
    return Control(controller, calibration, pair, context_length, acceptance, costs, prices.plain_seconds)
