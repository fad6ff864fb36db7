"""The search for a faster draft, on measurements that are made up."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specd.bench.slimming import MAX_LENGTH, SAME, Choice, Finding, Measured, Search, Terms
from specd.bench.workshop import Record
from specd.decoding.costs import PassCosts
from specd.errors import EngineError

TARGET = PassCosts({n: 1 + 0.1 * (n - 1) for n in range(1, MAX_LENGTH + 2)})
TEXTS = ("code", "chat")
TERMS = Terms(TARGET, {})
KINDS = ("small", "large", "broken")
NUMS = (100, 200, 400)


def hits(share: float, number: int = 60) -> tuple[bool, ...]:
    """Wrong at even distances."""
    return tuple(int((i + 1) * (1 - share)) == int(i * (1 - share)) for i in range(number))


class Bench:
    """Costs and agreement that follow from a choice, and what was looked at."""

    def __init__(self, layer_loss: Sequence[float] = (0.2,) * 4, token_loss: float = 0.0) -> None:
        self.layer_loss, self.token_loss = layer_loss, token_loss
        self.looked: list[tuple[Choice, tuple[str, ...]]] = []

    def measure(self, choice: Choice, names: Sequence[str]) -> Measured:
        self.looked.append((choice, tuple(names)))
        if choice.kind == "broken":
            raise EngineError("no such rows")
        layers = choice.layers if choice.layers is not None else range(len(self.layer_loss))
        gone = sum(loss for i, loss in enumerate(self.layer_loss) if i not in layers)
        tokens = choice.num_tokens or 800
        share = 0.95 - gone - self.token_loss * (800 - tokens) / 800 - (0.01 if choice.kind == "small" else 0.0)
        cost = {SAME: 0.5, "small": 0.3, "large": 0.7}[choice.kind] * len(layers) / len(self.layer_loss)
        return Measured(cost * (0.7 + 0.3 * tokens / 800), {name: hits(share) for name in names})


def search(bench: Bench, start: Choice | None = None, **changes: object) -> tuple[Search, list[Finding]]:
    options = {"kinds": KINDS, "nums": NUMS, "num_layers": len(bench.layer_loss), **changes}
    one = Search(bench.measure, TEXTS, TEXTS[:1], TERMS, start=start or Choice(), **options)  # type: ignore[arg-type]
    return one, list(one.findings())


def test_the_speed_is_that_of_the_best_fixed_length_along_each_text() -> None:
    measured = Measured(0.5, {"a": (True, True, False, True, True, False)})
    # drafts of two: two rounds of three tokens, each a pass of three rows and two drafted tokens
    assert TERMS.speedup(measured) == pytest.approx(6 / (2 * (1.2 + 2 * 0.5)))
    nothing = Measured(0.5, {"a": (False,) * 6})
    assert TERMS.speedup(nothing) == 1.0  # nothing is drafted then
    assert TERMS.speedup(Measured(0.5, {**measured.hits, "b": (False,) * 6})) == pytest.approx((6 / 4.4) ** 0.5)


def test_where_lookup_is_faster_the_draft_does_not_count() -> None:
    terms = Terms(TARGET, {"a": 3.0})
    assert terms.speedup(Measured(0.5, {"a": (True, True, False) * 9})) == pytest.approx(3.0)


def test_agreement_counts_tokens() -> None:
    assert Measured(1.0, {"a": (True,), "b": (False, True, True)}).agreement == 0.75


def test_the_fastest_parts_are_found() -> None:
    bench = Bench()
    one, findings = search(bench)
    assert one.best == Choice("small", 100, None)
    assert one.speedup == max(finding.speedup for finding in findings if finding.is_best)
    assert [finding.reason for finding in findings if finding.measured is None] == ["no such rows"]


def test_tokens_that_are_needed_stay() -> None:
    one, _ = search(Bench(token_loss=0.3))
    assert one.best.num_tokens is None or one.best.num_tokens >= 400


def test_agreement_is_not_given_for_speed_beyond_a_limit() -> None:
    def measure(choice: Choice, names: Sequence[str]) -> Measured:
        cost, share = (0.5, 0.95) if choice.kind == SAME else (0.05, 0.89)
        return Measured(cost, {name: hits(share) for name in names})

    one = Search(measure, TEXTS, TEXTS, TERMS, start=Choice(), kinds=["small"], nums=(), num_layers=0)
    first, second = one.findings()
    assert second.speedup > first.speedup
    assert one.best == Choice()


def test_layers_that_matter_little_go_one_by_one() -> None:
    bench = Bench(layer_loss=(0.3, 0.0, 0.3, 0.001, 0.3))
    one, _ = search(bench, nums=(), kinds=())
    assert one.best.layers == (0, 2, 4)
    assert all(names == TEXTS[:1] for choice, names in bench.looked if choice.layers == (1, 2, 3, 4))


def test_what_was_asked_for_stays() -> None:
    one, findings = search(Bench(), Choice("large", 400, (0, 1, 2)), kinds=(), nums=(), num_layers=0)
    assert (one.best, len(findings)) == (Choice("large", 400, (0, 1, 2)), 1)


def test_a_search_may_end_at_any_time() -> None:
    bench = Bench()
    one = Search(bench.measure, TEXTS, TEXTS, TERMS, start=Choice(), kinds=KINDS, nums=NUMS, num_layers=4)
    findings = one.findings()
    next(findings)
    assert one.best == Choice()
    next(findings)
    assert one.best == Choice("small")


def test_choices_are_told_in_words() -> None:
    assert str(Choice()) == "weights as they are, all tokens, all layers"
    assert str(Choice("q4_0-pure", 4096, (0, 1))) == "q4_0-pure, 4096 tokens, 2 layers"


def test_a_record_is_kept_and_a_broken_one_begun_anew(tmp_path: Path) -> None:
    record = Record.of(tmp_path, "a", [1, 2])
    record.content["answers"]["x"] = [1]
    record.keep_choice("q", Choice("q4_0", 5, (0, 2)))
    again = Record.of(tmp_path, "a", [1, 2])
    assert again.content["answers"] == {"x": [1]}
    assert again.choice("q") == Choice("q4_0", 5, (0, 2))
    assert again.choice("other") is None
    assert Record.of(tmp_path, "a", [1, 3]).content["answers"] == {}
    (file,) = (tmp_path / "slim").iterdir()
    for text in ("{", "[]", json.dumps({"format": -1})):
        file.write_text(text)
        assert Record.of(tmp_path, "a", [1, 2]).content["answers"] == {}
