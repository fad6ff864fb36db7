"""A chat's answers, on an emulated terminal and in a pipe."""

import io

import pytest

from specd.terminal.text import DIM, PLAIN
from specd.terminal.transcript import Transcript
from tests.fakes import FakeClock
from tests.terminal.test_screen import COLUMNS, LINES, FakeTerminal


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("LINES", str(LINES))


def shown(stream: io.StringIO, *pieces: tuple[str, str], color: bool = True, by_source: bool = False) -> str:
    clock = FakeClock()
    transcript = Transcript(stream, stream, clock, color=color)
    transcript.by_source = by_source
    for text, source in pieces:
        clock.now += 1
        transcript.write(text, source, lambda: "99 tokens/s")
    transcript.finish()
    return stream.getvalue()


def test_words_stay_whole_and_lines_are_written_once() -> None:
    terminal = FakeTerminal()
    words = [f"word{i} " for i in range(200)]
    shown(terminal, *((word, "") for word in words))
    lines = terminal.lines
    assert " ".join(lines).split() == "".join(words).split()
    assert len(lines) > 2 * LINES
    assert max(map(len, lines)) < COLUMNS
    assert "tokens/s" not in "\n".join(lines)


def test_in_a_pipe_the_text_is_unchanged() -> None:
    text = "a line that is much longer than forty columns are wide\n\x1b[31m and a control sequence"
    assert shown(io.StringIO(), (text, "lookup"), by_source=True) == text + "\n"


def test_tokens_have_the_colour_of_who_proposed_them() -> None:
    pieces = (("It ", ""), ("is ", "draft"), ("so", "lookup"))
    raw = shown(FakeTerminal(), *pieces, by_source=True)
    assert f"\x1b[36mis{PLAIN}" in raw
    assert f"\x1b[32mso{PLAIN}" in raw
    assert "\x1b[36m" not in shown(FakeTerminal(), *pieces)
    assert "\x1b[36m" not in shown(FakeTerminal(), *pieces, by_source=True, color=False)


def test_reasoning_is_dim() -> None:
    pieces = [(piece, "") for piece in ("<th", "ink>", "well ", "now</thi", "nk> ", "so ", "be it")]
    raw = shown(FakeTerminal(), *pieces)
    assert f"{DIM}well{PLAIN}" in raw
    assert f"{DIM}so{PLAIN}" not in raw
    assert "so" in raw


def test_control_characters_do_not_reach_the_terminal() -> None:
    raw = shown(FakeTerminal(), ("a\x1b]0;title\x07b", "draft"), by_source=True)
    assert "\x1b]0;" not in raw
    assert "␛]0;title␇b" in raw


def test_the_legend() -> None:
    transcript = Transcript(io.StringIO(), io.StringIO(), FakeClock(), color=False)
    assert transcript.legend() == "Tokens by who proposed them: model draft, lookup, predicted, the model itself."
