import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.terminal.wrap import WordWrap


def wrapped(*pieces: str, width: int = 20) -> list[str]:
    out: list[str] = []
    wrap = WordWrap(lambda text, _: out.append(text), lambda: width)
    for piece in pieces:
        wrap.feed(piece)
    wrap.finish()
    return "".join(out).split("\n")


def test_lines_break_at_blanks() -> None:
    assert wrapped("the quick brown fox jumps over the lazy dog") == [
        "the quick brown fox",
        "jumps over the lazy",
        "dog",
    ]


def test_words_that_come_in_parts_stay_whole() -> None:
    assert wrapped("the qui", "ck bro", "wn f", "ox ju", "mps") == ["the quick brown fox", "jumps"]


def test_a_word_that_is_longer_than_a_line() -> None:
    assert wrapped("see " + "x" * 30 + " end")[-1] == "end"
    assert "".join(wrapped("x" * 50)) == "x" * 50


def test_wide_characters_count_twice() -> None:
    assert wrapped("日本 " * 6, width=10) == ["日本 日本", "日本 日本", "日本 日本"]


@pytest.mark.parametrize(
    "line", ["    indented code that is longer than a line", "| a table | that is | longer than a line |"]
)
def test_code_and_tables_are_left_alone(line: str) -> None:
    assert wrapped(f"{line}\nend") == [line, "end"]


def test_fenced_code_is_left_alone() -> None:
    code = "x = [first_value, second_value, third_value]"
    text = f"```python\n{code}\n```\nand then some more words here"
    assert wrapped(text) == ["```python", code, "```", "and then some more", "words here"]


@given(st.lists(st.text(alphabet="ab \n`|日", max_size=12), max_size=20), st.integers(5, 30))
def test_nothing_is_lost_but_blanks_at_breaks(pieces: list[str], width: int) -> None:
    lines = wrapped(*pieces, width=width)
    assert "".join("".join(lines).split()) == "".join("".join(pieces).split())
    assert len(lines) >= "".join(pieces).count("\n") + 1


def test_styles_stay_with_their_text() -> None:
    out: list[tuple[str, str]] = []
    wrap = WordWrap(lambda text, style: out.append((text, style)), lambda: 80)
    wrap.feed("pre", "red")
    wrap.feed("fix ", "blue")
    wrap.feed("end", "")
    wrap.finish()
    assert [each for each in out if each[0].strip()] == [("pre", "red"), ("fix", "blue"), ("end", "")]
