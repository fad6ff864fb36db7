import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.terminal.stops import StopStrings


def fed(stops: list[str], *pieces: str) -> tuple[list[str], bool]:
    filter_ = StopStrings(stops)
    out = [filter_.feed(piece) for piece in pieces]
    return [*out, filter_.flush()], filter_.found


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "found"),
    [
        (["STOP"], ["go STOP on"], "go ", True),
        (["STOP"], ["go S", "TO", "P on"], "go ", True),  # user case 35: across the borders of tokens
        (["STOP"], ["go S", "TO", "M on"], "go STOM on", False),
        (["STOP"], ["go STO"], "go STO", False),
        (["ab", "b"], ["xab"], "x", True),  # of several, the one that begins first
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", True),
        (["aab"], ["aaab"], "a", True),
        ([], ["anything"], "anything", False),
    ],
)
def test_nothing_of_a_stop_string_is_seen(stops: list[str], pieces: list[str], text: str, found: bool) -> None:
    out, was_found = fed(stops, *pieces)
    assert ("".join(out), was_found) == (text, found)


def test_what_may_become_one_waits() -> None:
    out, _ = fed(["STOP"], "go S", "TO", "M")
    assert out == ["go ", "", "STOM", ""]


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=3), st.lists(st.text("abc", max_size=4), max_size=12))
def test_the_pieces_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    places = [whole.find(stop) for stop in stops if stop in whole]
    expected = whole[: min(places)] if places else whole
    out, found = fed(stops, *pieces)
    assert ("".join(out), found) == (expected, bool(places))
