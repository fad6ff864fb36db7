"""What a person sees, on an emulated terminal."""

import io
import os

import pyte
import pytest

from specd.decoding.protocol import Finished, Prefilled, Prefilling
from specd.decoding.statistics import Statistics
from specd.terminal.answer import stream_answer
from specd.terminal.status import StatusLine, chat_status, fitting, status_text
from specd.terminal.summary import summary
from specd.terminal.text import Output, neutralised
from tests.fakes import FakeClock, draft_of, round_of

COLUMNS, LINES = 40, 8


class FakeTerminal(io.StringIO):
    """A stream that claims to be a terminal and draws on an emulated screen."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
        self._emulator = pyte.Stream(self.screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._emulator.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        """Scrollback and screen, without empty lines at the end."""
        history = ["".join(line[i].data for i in range(COLUMNS)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*history, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((COLUMNS, LINES)))


def wrapped(text: str) -> list[str]:
    """What a terminal shows of a text alone."""
    terminal = FakeTerminal()
    terminal.write(text)
    return terminal.lines


TEXTS = {
    "lines": "".join(f"line {i}\n" for i in range(30)),
    "long line": "word " * 100,
    "exactly full lines": "x" * COLUMNS * 5 + "\n" + "y" * COLUMNS,
    "wide characters": "日本語のテキスト" * 20,
    "tabs": "\ta\tb\n" * 20,
    "empty lines": "a\n\n\nb\n\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("step", [1, 3, 7])
def test_every_line_of_the_answer_is_there_once_and_the_status_is_gone(text: str, step: int) -> None:
    """User case 44."""
    terminal, clock = FakeTerminal(), FakeClock()
    output = Output(terminal)
    status = StatusLine(terminal, output, clock, color=True)
    for i in range(0, len(text), step):
        clock.now += 0.06
        status.write(text[i : i + step], lambda: "STATUS " * 20)
        assert sum("STATUS" in line for line in terminal.lines) <= 1
        if any("STATUS" in line for line in terminal.lines):
            assert "STATUS" in terminal.lines[-1]
    status.erase()
    output.finish()
    assert terminal.lines == wrapped(text)


def test_the_status_is_drawn_and_refreshed() -> None:
    terminal, clock = FakeTerminal(), FakeClock()
    status = StatusLine(terminal, Output(terminal), clock, color=False)
    for i in range(6):
        status.write("a", lambda: f"state {i}")  # noqa: B023
        clock.now += 0.04
    assert terminal.lines == ["aaaaaa", "state 3"]


def test_with_the_answer_in_a_pipe_the_status_has_its_own_line() -> None:
    pipe, terminal = io.StringIO(), FakeTerminal()
    status = StatusLine(terminal, Output(pipe), FakeClock(), color=False)
    status.write("answer", lambda: "state")
    status.write("!", lambda: "state")
    assert terminal.lines == ["state"]
    status.erase()
    assert terminal.lines == []
    assert pipe.getvalue() == "answer!"


@pytest.mark.parametrize("term", ["dumb", None])
def test_no_status_where_it_cannot_be_drawn(term: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: io.StringIO = io.StringIO()
    if term:
        monkeypatch.setenv("TERM", term)
        stream = FakeTerminal()
    status = StatusLine(stream, Output(io.StringIO()), FakeClock(), color=False)
    status.write("x", lambda: "state")
    assert stream.getvalue() == ""


def test_model_text_cannot_drive_the_terminal_but_passes_through_a_pipe() -> None:
    text = "a\x1b[31mred\x07\r\x9b2J\x7f\tb\n"
    terminal, pipe = FakeTerminal(), io.StringIO()
    Output(terminal).write(text)
    Output(pipe).write(text)
    assert pipe.getvalue() == text
    assert terminal.getvalue() == neutralised(text) == "a␛[31mred␇␍\ufffd2J\ufffd\tb\n"


@pytest.mark.parametrize(("text", "shown"), [("a", "a\n"), ("a\n", "a\n"), ("a\n\n", "a\n\n"), ("", "")])
def test_the_answer_ends_with_a_newline(text: str, shown: str) -> None:
    stream = io.StringIO()
    output = Output(stream)
    output.write(text)
    output.finish()
    assert stream.getvalue() == shown


class Letters:
    """Token n is the n-th letter; a flush leaves a mark."""

    def decode(self, tokens: object) -> str:
        return "".join(chr(97 + token) for token in tokens)  # type: ignore[attr-defined]

    def flush(self) -> str:
        return "."


def run_of(num_plain: int) -> tuple[Statistics, str, str]:
    clock = FakeClock()
    statistics, stream = Statistics(clock), io.StringIO()
    status = StatusLine(io.StringIO(), Output(stream), clock, color=False)

    def events() -> object:
        yield Prefilled(5, 0, 1.0, 0.0)
        for _ in range(num_plain):
            clock.now += 1
            yield round_of([0], draft_of([]))
        clock.now += 2
        yield round_of([1, 2, 3], draft_of([1, 2, 4], "draft"), 2, draft_seconds=0.5, seconds=2.0)
        yield Finished("stop")

    def show(text: str, _: object) -> None:
        status.write(text, lambda: status_text(statistics, 9))

    text = stream_answer(events(), statistics, Letters(), show)  # type: ignore[arg-type]
    return statistics, text, stream.getvalue()


def test_an_answer_is_streamed_and_counted() -> None:
    statistics, text, shown = run_of(2)
    assert text == shown == "aabcd."
    assert statistics.num_completion_tokens == 5
    assert status_text(statistics, 9) == "1.2 tokens/s · 5/9 · 67% accepted · draft 3 · 1.67 tokens per pass"


@pytest.mark.parametrize(
    ("width", "shown"), [(30, "1.2 tokens/s · 55/150 · draft"), (28, "1.2 tokens/s · 55/150"), (9, "1.2 token")]
)
def test_a_narrow_terminal_shows_whole_parts(width: int, shown: str) -> None:
    assert fitting("1.2 tokens/s · 55/150 · draft", width) == shown


def test_the_summary_says_what_was_gained_and_why() -> None:
    text = summary(run_of(2)[0], None)
    assert "5 tokens in 4.0 s: 1.2 tokens/s (prompt: 5 tokens in 1.0 s)" in text
    assert "draft: 2 of 3 drafted tokens accepted (67%)" in text
    assert "1.25× plain decoding (an estimate: 1.0 tokens/s" in text
    assert "cost 2.00 plain steps and gave 3.00 tokens, so drafting paid" in text


def test_the_summary_does_not_guess() -> None:
    assert "too short to estimate" in summary(run_of(1)[0], None)
    assert summary(run_of(1)[0], "no draft").endswith("speculation was off: no draft")


def test_reading_a_long_prompt_is_shown() -> None:
    statistics = Statistics(FakeClock())
    statistics.add(Prefilling(1531, 512))
    assert status_text(statistics, 9) == chat_status(statistics, 0, 4096) == "reading the prompt: 512 of 1531 tokens"
    statistics.add(Prefilled(1531, 0, 1.0, 0.0))
    assert status_text(statistics, 9) == "… · 0/9"
