from specd.decoding.context import as_tokens
from specd.decoding.controller import FixedLength
from specd.decoding.protocol import Round

ROUND = Round(as_tokens([1]), "x", 0, 0, 0, 0, 0.0, 1.0, 1.0)


def test_the_second_round_the_sixth_and_then_one_in_so_many_is_plain() -> None:
    controller = FixedLength(4, plain_every=8)
    budgets = []
    for _ in range(12):
        budgets.append(controller.budget(9))
        controller.observe(ROUND)
    assert budgets == [4, 0, 4, 4, 4, 0, 4, 4, 4, 0, 4, 4]


def test_the_limit_is_kept() -> None:
    assert FixedLength(4).budget(2) == 2
