"""How likely a drafted token is to be accepted, by what its drafter knows about it."""

from collections.abc import Iterable, Mapping

from specd.decoding.protocol import Evidence

PRIOR_WEIGHT = 4.0  # tokens that a prior counts for
EARLIER_WEIGHT = 40.0  # tokens that a built-in prior counts for against what earlier runs saw
MOST_EARLIER = 100.0  # tokens of a kind that are remembered from earlier runs
MOST_PER_RUN = 10.0  # of them from one run
MEMORY = 0.97  # weight that what was seen keeps with each further token of its kind
UNKNOWN = 0.05  # acceptance of a drafter that nothing is known about: it must show first what it is worth

CERTAINTY_MEMORY = 0.9  # weight that earlier certainties of the target keep with each one
ENOUGH_CERTAINTIES = 2.5  # so many, decayed, tell what kind of text it is
_NOTHING = (0.0, 0.0)
_ANY = "any"  # kind of text

Kind = tuple[str, ...]
"""What evidence has in common that is counted together."""


def kind_of(evidence: Evidence) -> Kind:
    """By source; then by confidence and depth, or by match length and how unanimous the places are."""
    if evidence.confidence is not None:
        return (evidence.source, f"c{_step(evidence.confidence, _CONFIDENCES)}", f"d{_step(evidence.depth, _DEPTHS)}")
    agreement = "new" if evidence.total == 1 else "all" if evidence.count == evidence.total else "some"
    return (evidence.source, f"m{_step(evidence.match_length, _MATCHES)}", agreement)


_CONFIDENCES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_DEPTHS = (1, 2, 4, 8)
_MATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_CERTAINTIES = (0.6, 0.7, 0.8, 0.86, 0.92, 0.97)  # of the target


def _step(value: float, bounds: Iterable[float]) -> int:
    return sum(value >= bound for bound in bounds)


class Acceptance:
    """The chance that a drafted token is accepted when those before it were, learned while decoding.

    For each kind of evidence, decayed counts of accepted and refused tokens; a prior stands for some tokens, so
    that few observations do not decide. What earlier runs saw moves the prior. Only tokens whose fate is known may
    be told: the accepted ones and the first refused one. What came behind is censored.

    A model is asked only where it is expected to pay. What to expect of it without asking, the target tells: the mean
    certainty of its own tokens lately is nearly the share of them that a good draft model gets right (measured on 30
    texts, from 0.64 for stories to 0.99 for copied code).

    priors:   by kind (or its first parts: the most detailed one counts), acceptance
    earlier:  by kind, tokens accepted and tokens in all, in earlier runs
    """

    def __init__(self, priors: Mapping[Kind, float], earlier: Mapping[Kind, tuple[float, float]] | None = None) -> None:
        self._priors = priors
        self._earlier = earlier or {}
        self._recent: dict[Kind, tuple[float, float]] = {}  # accepted, all; decayed
        self._seen: dict[Kind, tuple[float, float]] = {}  # the same, not decayed
        self._certainty = _NOTHING  # of the target: sum and number, decayed

    def probability(self, evidence: Evidence) -> float:
        """The chance that the token is accepted."""
        kind = kind_of(evidence)
        return self._estimate(kind, self._prior(kind))

    def at_depth(self, source: str, depth: int) -> float:
        """The chance for a token that is not drafted yet: by its depth alone."""
        return self._estimate_at(source, _step(depth, _DEPTHS))

    def observe(self, evidence: Evidence, accepted: bool) -> None:
        """Take in a token's fate."""
        step = _step(evidence.depth, _DEPTHS)
        for kind in {
            kind_of(evidence),
            _at_depth(evidence.source, _ANY, step),
            _at_depth(evidence.source, self._text, step),
        }:
            hits, total = self._recent.get(kind, (0.0, 0.0))
            self._recent[kind] = (MEMORY * hits + accepted, MEMORY * total + 1)
            hits, total = self._seen.get(kind, (0.0, 0.0))
            self._seen[kind] = (hits + accepted, total + 1)

    def observe_target(self, certainty: float) -> None:
        """Take in how sure the target was of a token: the probability of its most likely one."""
        total, number = self._certainty
        self._certainty = (CERTAINTY_MEMORY * total + certainty, CERTAINTY_MEMORY * number + 1)

    def as_json(self) -> dict[str, tuple[float, float]]:
        """What was seen, now and earlier. One run counts no more than some tokens of a kind, or a long copied text
        would make every match look sure; and old runs make room for new ones."""
        counts = {}
        for kind in {*self._earlier, *self._seen}:
            hits, total = self._seen.get(kind, _NOTHING)
            old_hits, old_total = self._earlier.get(kind, _NOTHING)
            share = min(1.0, MOST_PER_RUN / total) if total else 0.0
            keep = min(1.0, (MOST_EARLIER - share * total) / old_total) if old_total else 0.0
            counts[" ".join(kind)] = (
                round(share * hits + keep * old_hits, 2),
                round(share * total + keep * old_total, 2),
            )
        return counts

    @classmethod
    def from_json(cls, counts: Mapping[str, tuple[float, float]]) -> "Acceptance":
        """With the built-in priors and what earlier runs saw. Raises ValueError or TypeError for other things."""
        return cls(PRIORS, {tuple(name.split()): (float(hits), float(total)) for name, (hits, total) in counts.items()})

    @property
    def _text(self) -> str:
        """The kind of text lately, by how sure the target was."""
        total, number = self._certainty
        return f"t{_step(total / number, _CERTAINTIES)}" if number > ENOUGH_CERTAINTIES else _ANY

    def _estimate_at(self, source: str, step: int) -> float:
        """Depths that were not reached yet are taken to be like those before them."""
        kind = _at_depth(source, self._text, step)
        if not step:
            return self._estimate(kind, self._prior(kind))
        return self._estimate(kind, self._with_earlier(kind, self._estimate_at(source, step - 1)))

    def _estimate(self, kind: Kind, prior: float) -> float:
        hits, total = self._recent.get(kind, _NOTHING)
        return (PRIOR_WEIGHT * prior + hits) / (PRIOR_WEIGHT + total)

    def _prior(self, kind: Kind) -> float:
        known = (self._priors.get(kind[:length]) for length in range(len(kind), 0, -1))
        return self._with_earlier(kind, next((prior for prior in known if prior is not None), UNKNOWN))

    def _with_earlier(self, kind: Kind, prior: float) -> float:
        hits, total = self._earlier.get(kind, _NOTHING)
        return (EARLIER_WEIGHT * prior + hits) / (EARLIER_WEIGHT + total)


def _at_depth(source: str, text: str, step: int) -> Kind:
    return (source, text, f"d{step}")


# Measured greedily with Qwen2.5-Coder 1.5B and 0.5B over 3500 tokens of many kinds of text (the recorded runs of
# tests/traces, and questions of Spec-Bench), smoothed: by match length for places that are new (one place), unanimous
# or divided; by the draft model's confidence; and by the target's, where the draft model was not asked.
_LOOKUP = {
    "new": (0.05, 0.30, 0.52, 0.58, 0.70, 0.80, 0.83, 0.93, 0.94, 0.97),
    "all": (0.05, 0.47, 0.80, 0.82, 0.88, 0.93, 0.94, 0.96, 0.97, 0.98),
    "some": (0.05, 0.16, 0.18, 0.25, 0.30, 0.35, 0.40, 0.50, 0.60, 0.70),
}
_PREDICTED = (0.15, 0.5, 0.7, 0.8, 0.87, 0.91, 0.94, 0.96, 0.97, 0.985)
_DRAFT_UNSEEN = (0.66, 0.70, 0.76, 0.83, 0.88, 0.93, 0.985)  # by the target's certainty
_DRAFT = (0.32, 0.53, 0.69, 0.83, 0.93, 0.97, 0.98, 0.99, 0.998)
PRIORS: Mapping[Kind, float] = {
    **{("lookup", f"m{i}", how): p for how, ps in _LOOKUP.items() for i, p in enumerate(ps)},
    **{("predicted", f"m{i}"): p for i, p in enumerate(_PREDICTED)},
    **{("draft", f"c{i}"): p for i, p in enumerate(_DRAFT)},
    **{("draft", f"t{i}"): p for i, p in enumerate(_DRAFT_UNSEEN)},
    ("draft", _ANY): 0.75,
    ("grammar",): 0.999,  # what must follow
}
