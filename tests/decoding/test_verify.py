"""Each rule keeps the target's joint distribution, by exact enumeration; rules that do not fail the same test."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from specd.decoding.context import as_tokens
from specd.decoding.distribution import Distribution
from specd.decoding.protocol import Draft, Verdict
from specd.decoding.randomness import Randomness
from specd.decoding.verify import RULES, Rule, RuleName, block, draw_coupled, rejection
from tests.enumeration import Branching, coupled_joint, every_way
from tests.fakes import draft_of

Table = Callable[[tuple[int, ...]], Distribution]
NUM_CASES = {0: 5, 1: 40, 2: 30, 3: 12}


def random_distribution(rng: np.random.Generator) -> Distribution:
    """Over up to 3 tokens: dense, with zeros, one-hot, or nearly so."""
    weights = rng.exponential(size=3) ** rng.choice([0.5, 1, 4])
    weights[rng.random(3) < 0.3] = 0
    if not weights.any():
        weights[rng.integers(3)] = 1
    tokens = np.flatnonzero(weights)
    return Distribution(as_tokens(tokens), weights[tokens] / weights.sum())


def random_table(seed: int) -> Table:
    """A distribution for every prefix."""
    known: dict[tuple[int, ...], Distribution] = {}

    def table(prefix: tuple[int, ...]) -> Distribution:
        if prefix not in known:
            known[prefix] = random_distribution(np.random.default_rng([seed, len(prefix), *prefix]))
        return known[prefix]

    return table


def one_round(rule: Rule, p: Table, q: Table, k: int, randomness: Branching) -> tuple[tuple[int, ...], int]:
    """Draft k tokens, verify, and go on without drafts to k + 1 tokens; also how many drafted ones stood."""
    tokens: list[int] = []
    probs: list[Distribution] = []
    for i in range(k):
        token, drawn_from = rule.draw(q(tuple(tokens)), i, randomness)  # type: ignore[arg-type]
        tokens.append(token)
        probs.append(drawn_from)
    rows = (p(tuple(tokens[:i])) for i in range(k + 1))
    verdict = rule.verify(draft_of(tokens, probs=probs), rows, 0, randomness)  # type: ignore[arg-type]
    output = [*tokens[: verdict.num_accepted], verdict.next_token]
    while len(output) < k + 1:
        row = iter([p(tuple(output))])
        output.append(rule.verify(draft_of([]), row, len(output), randomness).next_token)  # type: ignore[arg-type]
    return tuple(output), verdict.num_accepted


def enumerated(rule: Rule, p: Table, q: Table, k: int) -> tuple[dict[tuple[int, ...], float], float]:
    """The joint distribution of k + 1 tokens, and the expected number of accepted ones."""
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    accepted = 0.0
    for weight, (output, num_accepted) in every_way(lambda randomness: one_round(rule, p, q, k, randomness)):
        joint[output] += weight
        accepted += weight * num_accepted
    return joint, accepted


def error(joint: dict[tuple[int, ...], float], p: Table, k: int) -> float:
    """The largest difference from the target's own joint distribution."""
    expected = {(): 1.0}
    for _ in range(k + 1):
        expected = {
            (*prefix, token): weight * probability
            for prefix, weight in expected.items()
            for token, probability in zip(p(prefix).tokens.tolist(), p(prefix).probs.tolist(), strict=True)
        }
    return max(abs(joint.get(key, 0.0) - expected.get(key, 0.0)) for key in {*joint, *expected})


def one_hot_table(table: Table) -> Table:
    """As lookup drafts: certain of one token, right or wrong."""
    return lambda prefix: Distribution.one_hot(table(prefix).most_likely())


@pytest.mark.parametrize("name", RuleName)
@pytest.mark.parametrize("k", NUM_CASES)
@pytest.mark.parametrize("certain", [False, True])
def test_the_joint_distribution_is_the_targets(name: RuleName, k: int, certain: bool) -> None:
    for case in range(NUM_CASES[k]):
        p, q = random_table(2 * case), random_table(2 * case + 1)
        joint, _ = enumerated(RULES[name], p, one_hot_table(q) if certain else q, k)
        assert error(joint, p, k) < 1e-12


def accept_everything(draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    return Verdict(len(draft), randomness.draw(list(rows)[-1]))


def redraw_from_target(draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """Forgets to subtract the draft's share from the correction."""
    kept = list(rows)
    verdict = rejection(draft, iter(kept), position, randomness)
    if verdict.num_accepted == len(draft):
        return verdict
    return Verdict(verdict.num_accepted, randomness.draw(kept[verdict.num_accepted]))


def correct_one_row_late(draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """User case 5: the correction comes from the row behind the first refused one."""
    kept = list(rows)
    verdict = rejection(draft, iter(kept), position, randomness)
    return Verdict(verdict.num_accepted, randomness.draw(kept[min(verdict.num_accepted + 1, len(kept) - 1)]))


def stop_at_the_first_failure(
    draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness
) -> Verdict:
    """Block verification misread: the longest prefix counts, not the first failure."""

    class Stopping:
        failed = False

        def accept(self, probability: float) -> bool:
            self.failed = self.failed or not randomness.accept(probability)
            return not self.failed

        def draw(self, distribution: Distribution) -> int:
            return randomness.draw(distribution)

    return block(draft, rows, position, Stopping())  # type: ignore[arg-type]


def shared_noise(draft: Draft, rows: Iterator[Distribution], position: int, randomness: Randomness) -> Verdict:
    """The draft's own noise used again for the correction."""
    kept = list(rows)
    verdict = rejection(draft, iter(kept), position, randomness)
    place = verdict.num_accepted
    if place == len(draft):
        return verdict
    p = kept[place]
    return Verdict(place, randomness.coupled(p.restricted(p.excess(draft.probs[place])), position + place))


@pytest.mark.parametrize(
    "rule", [accept_everything, redraw_from_target, correct_one_row_late, stop_at_the_first_failure]
)
def test_wrong_rules_fail_the_same_test(rule: Callable[..., Verdict]) -> None:
    errors = []
    for case in range(NUM_CASES[2]):
        p, q = random_table(2 * case), random_table(2 * case + 1)
        errors.append(error(enumerated(Rule(rule, RULES[RuleName.REJECTION].draw), p, q, 2)[0], p, 2))
    assert max(errors) > 0.01


def test_noise_shared_with_rejection_fails_the_same_test() -> None:
    errors = []
    for case in range(NUM_CASES[1]):
        p, q = random_table(2 * case), random_table(2 * case + 1)
        errors.append(error(enumerated(Rule(shared_noise, draw_coupled), p, q, 1)[0], p, 1))
    assert max(errors) > 0.01


@pytest.mark.parametrize("k", [1, 2, 3])
def test_block_accepts_at_least_as_much_as_rejection(k: int) -> None:
    gains = []
    for case in range(NUM_CASES[k]):
        p, q = random_table(2 * case), random_table(2 * case + 1)
        by_block = enumerated(RULES[RuleName.BLOCK], p, q, k)[1]
        by_rejection = enumerated(RULES[RuleName.REJECTION], p, q, k)[1]
        gains.append(by_block - by_rejection)
    assert min(gains) > -1e-12
    assert max(gains) > 0.01 or k == 1  # for one token they are the same rule


def test_rejection_accepts_the_overlap_of_the_distributions() -> None:
    """alpha = sum min(p, q), and coupling at least (1 - TV) / (1 + TV)."""
    for case in range(NUM_CASES[1]):
        p, q = random_table(2 * case), random_table(2 * case + 1)
        overlap = sum(min(p(()).prob(t), q(()).prob(t)) for t in range(3))
        assert enumerated(RULES[RuleName.REJECTION], p, q, 1)[1] == pytest.approx(overlap, abs=1e-12)
        assert enumerated(RULES[RuleName.COUPLED], p, q, 1)[1] >= overlap / (2 - overlap) - 1e-12


def test_the_joint_law_of_coupled_picks_has_the_right_margins() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, q = random_distribution(rng), random_distribution(rng)
        joint = coupled_joint(p, q)
        assert joint.sum(axis=1) == pytest.approx([p.prob(t) for t in range(3)], abs=1e-12)
        assert joint.sum(axis=0) == pytest.approx([q.prob(t) for t in range(3)], abs=1e-12)


@pytest.mark.parametrize("name", RuleName)
@pytest.mark.parametrize("num_right", range(5))
def test_with_certainties_the_correction_comes_from_the_first_refused_row(name: RuleName, num_right: int) -> None:
    """User case 5, at every offset; and rows that cannot matter are not asked for."""
    drafted = [10, 11, 12, 13]
    rows = [Distribution.one_hot(t if i < num_right else 50 + i) for i, t in enumerate([*drafted, 54])]
    asked = iter(rows)
    verdict = RULES[name].verify(draft_of(drafted), asked, 7, Randomness(0))
    assert verdict == Verdict(num_right, 54 if num_right == 4 else 50 + num_right)
    assert len(list(asked)) == 4 - num_right


@pytest.mark.parametrize("name", RuleName)
def test_a_plain_step_draws_from_the_target(name: RuleName) -> None:
    p = random_table(3)(())
    ways = every_way(lambda r: RULES[name].verify(draft_of([]), iter([p]), 0, r))  # type: ignore[arg-type]
    weights = {verdict.next_token: weight for weight, verdict in ways}
    assert weights == pytest.approx({t: p.prob(t) for t in p.tokens.tolist()})


def test_coupled_output_depends_on_seed_and_target_only() -> None:
    """Whatever is drafted, and with however many tokens."""
    p = random_table(11)
    for seed in range(50):
        outputs = set()
        for k in range(4):
            for q_seed in range(3):
                rule = RULES[RuleName.COUPLED]
                output, _ = one_round(rule, p, random_table(q_seed), k, Randomness(seed))  # type: ignore[arg-type]
                while len(output) < 5:
                    row = iter([p(output)])
                    verdict = rule.verify(draft_of([]), row, len(output), Randomness(seed))
                    output = (*output, verdict.next_token)
                outputs.add(output)
        assert len(outputs) == 1
