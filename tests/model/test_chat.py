"""`specd chat` on real files: in an emulated terminal, in a pipe, and from inside."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest

from specd.chat.conversation import Conversation
from specd.cli.chatting import Chat
from specd.decoding.statistics import Statistics
from specd.errors import PromptTooLong, UnknownModel, UsageError
from specd.llama.engine import Engine
from specd.llama.library import Interrupt
from specd.models.registry import load_registry
from specd.terminal.progress import TransferProgress

SPECD = Path(sys.executable).with_name("specd")
SMALL = ("-m", "smollm2-135m", "-d", "none")


class Terminal:
    """A chat in a terminal of a size, with all that scrolled out of it."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, env: dict[str, str] | None = None) -> None:
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, lines, history=5000)
        self._stream = pyte.Stream(self.screen)
        environment = os.environ | {"TERM": "xterm-256color"} | (env or {})
        environment.pop("NO_COLOR", None)
        self.process = pexpect.spawn(
            str(SPECD), ["chat", *arguments], dimensions=(lines, columns), env=environment, encoding="utf-8", timeout=60
        )
        self.raw = ""

    def read(self, seconds: float = 0.2) -> None:
        """Take in what was written, until nothing more comes for so long."""
        while True:
            try:
                text = self.process.read_nonblocking(65536, timeout=seconds)
            except (pexpect.TIMEOUT, pexpect.EOF):
                return
            self.raw += text
            self._stream.feed(text)
            if "\x1b[6n" in text:  # where is the cursor?
                self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Until the text so far matches, as it stands or without the breaks that the terminal made."""
        end = time.monotonic() + seconds
        while not any(re.search(pattern, separator.join(self.lines)) for separator in ("\n", "", " ")):
            self.read(0.1)
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.text}"

    def wait_for_prompt(self, seconds: float = 60) -> None:
        """Until the editor waits for a line."""
        end = time.monotonic() + seconds
        while not (self.screen.cursor.x == 2 and self.screen.display[self.screen.cursor.y].startswith("> ")):
            self.read(0.1)
            assert time.monotonic() < end, self.text

    def send(self, text: str) -> None:
        """Type a line, once the editor waits for one."""
        self.wait_for_prompt()
        self.read()
        self.process.send(text)
        time.sleep(0.1)
        self.process.send("\r")

    def say(self, text: str) -> str:
        """Type a message, and give its answer."""
        before = len(self.lines)
        self.send(text)
        self.read(1.0)
        self.wait_for_prompt()
        return "\n".join(self.lines[before:])

    @property
    def lines(self) -> list[str]:
        """Scrollback and screen, without empty lines at the end."""
        history = ["".join(line[i].data for i in range(self.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*history, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def leave(self) -> int:
        """With Ctrl-D; the exit status."""
        self.read(0.5)
        self.process.sendeof()
        self.process.expect(pexpect.EOF)
        self.process.close()
        status = self.process.exitstatus
        assert status is not None
        return int(status)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40)])
def test_every_command_in_a_terminal(tmp_path: Path, columns: int, lines: int) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho "Name a fruit." > "$1"\n')
    editor.chmod(0o755)
    (tmp_path / "note.txt").write_text("The password is swordfish.")
    terminal = Terminal(*SMALL, "-n", "24", columns=columns, lines=lines, env={"EDITOR": str(editor)})
    terminal.say("Say hello.")
    for command, words in [
        ("/help", r"/regenerate +answer the last message again"),
        ("/show", r"model +smollm2-135m"),
        ("/stats", r"tokens in [\d.]+ s: [\d.]+ tokens/s"),
        ("/explain", r"A plain step takes \d+ ms here"),
        ("/set temperature 0.5", r"temperature is 0.5"),
        ("/set temprature 1", r"Did you mean temperature\?"),
        ("/set top_k none", r"top_k must be an integer, not 'none'"),
        ("/set method fast", r"method must be one of auto"),
        ("/set temperature default", r"temperature is default"),
        ("/set color_by_source on", r"Tokens by who proposed them: model draft, lookup"),
        ("/regenerate", r""),
        ("/system Be brief.", r"System message: Be brief\."),
        ("/edit", r"> Name a fruit\."),
        ("/copy", r"Copied, if this terminal allows it"),
        ("/undo", r"Taken back: Name a fruit\."),
        (f"/file {tmp_path / 'note.txt'}", r"goes with your next message \(26 characters\)"),
        ("/multi", r"Alt-Enter sends"),
    ]:
        terminal.send(command)
        terminal.wait_for(words)
    assert "\x1b]52;c;" in terminal.raw
    terminal.process.send("What is\rthe password?\x1b\r")  # two lines; Alt-Enter sends
    terminal.read(1.5)
    terminal.process.send("/multi\x1b\r")
    terminal.wait_for(r"Enter sends")
    terminal.send(f"/save {tmp_path / 'talk.json'}")
    terminal.wait_for("Kept in")
    for command, words in [
        ("/clear", r"The conversation is forgotten"),
        (f"/load {tmp_path / 'talk.json'}", r"Going on after"),
        ("/draft none", r"Now without a draft"),
        ("/model gemma3-270m", r"gemma3-270m has no chat template|Now gemma3-270m"),
        ("/model smollm2-135m", r"Now smollm2-135m"),
        ("/nothing", r"There is no /nothing"),
    ]:
        terminal.send(command)
        terminal.wait_for(words)
    kept = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in kept["messages"]][:2] == ["system", "user"]
    terminal.send("/exit")
    terminal.process.expect(pexpect.EOF)
    terminal.process.close()
    assert terminal.process.exitstatus == 0


def test_a_long_answer_is_in_the_scrollback_once(tmp_path: Path) -> None:
    """User case 44."""
    terminal = Terminal(*SMALL, "-n", "1200")
    before = len(terminal.say("Tell me a very long story about a clockmaker, with many chapters."))
    assert before
    num_lines = len(terminal.lines)
    assert re.search(r"tokens/s · .*ctx \d+/4096", terminal.text)  # the status stands at the bottom
    assert sum("tokens/s" in line for line in terminal.lines) == 1
    terminal.send(f"/save {tmp_path / 'talk.json'}")
    terminal.wait_for("Kept in")
    answer = json.loads((tmp_path / "talk.json").read_text())["messages"][1]["content"]
    assert num_lines >= 60
    assert " ".join(terminal.text.split()).count(" ".join(answer.split())) == 1
    words = answer.split()
    assert " ".join(terminal.text.split()).count(" ".join(words[:12])) == answer.count(" ".join(words[:12]))
    assert terminal.leave() == 0


def test_ctrl_c_stops_the_answer_and_the_next_one_is_that_of_a_fresh_process(tmp_path: Path) -> None:
    """User case 42, and what an interrupted block leaves behind: nothing."""
    options = (*SMALL, "--exact", "--draft-length", "6", "-n", "1000")
    terminal = Terminal(*options)
    terminal.send("Tell me a long story about a cat.")
    time.sleep(1.2)
    terminal.process.sendintr()
    terminal.wait_for_prompt()
    terminal.send("/set max_tokens 40")
    terminal.wait_for("max_tokens is 40")
    terminal.send(f"/save {tmp_path / 'cut.json'}")
    terminal.wait_for("Kept in")
    terminal.say("What was the cat's name?")
    terminal.send(f"/save {tmp_path / 'after.json'}")
    terminal.wait_for(r"after\.json")
    assert terminal.leave() == 0
    cut, after = (json.loads((tmp_path / name).read_text())["messages"] for name in ("cut.json", "after.json"))
    assert [message["role"] for message in cut] == ["user", "assistant"]
    assert 0 < len(cut[1]["tokens"]) < 1000
    out = subprocess.run(
        [SPECD, "chat", "--load", tmp_path / "cut.json", "--exact"],
        input="What was the cat's name?\n",
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0
    assert out.stdout.strip() == after[3]["content"].strip()


def test_ctrl_c_twice_and_ctrl_d_leave_with_0() -> None:
    terminal = Terminal(*SMALL)
    terminal.wait_for_prompt()
    terminal.process.send("half a mess")
    terminal.read()
    terminal.process.sendintr()  # clears the line
    terminal.read()
    terminal.process.sendintr()
    terminal.wait_for("Ctrl-C again leaves")
    terminal.read(0.5)
    terminal.process.sendintr()
    terminal.process.expect(pexpect.EOF)
    terminal.process.close()
    assert terminal.process.exitstatus == 0
    terminal = Terminal(*SMALL)
    terminal.wait_for_prompt()
    assert terminal.leave() == 0


def run(*arguments: str, said: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPECD, "chat", *SMALL, *arguments], input=said, capture_output=True, text=True, env=os.environ | (env or {})
    )


def test_in_a_pipe_lines_are_messages_and_only_answers_come_out(tmp_path: Path) -> None:
    env = {"SPECD_STATE": str(tmp_path)}
    out = run("-n", "8", said="Name a river.\n\n/show\nAnd another one.\r\n", env=env)
    assert out.returncode == 0
    assert len(out.stdout.splitlines()) == 2
    assert "\x1b" not in out.stdout + out.stderr
    assert "model             smollm2-135m" in out.stderr
    kept = json.loads((tmp_path / "last_chat.json").read_text())
    assert [message["content"] for message in kept["messages"][::2]] == ["Name a river.", "And another one."]
    resumed = run("-n", "8", "--resume", said="/undo\n/undo\n/undo\n", env=env)
    assert resumed.returncode == 0
    assert "Going on after 2 turns." in resumed.stderr
    assert "Taken back: Name a river." in resumed.stderr
    assert "nothing was said yet" in resumed.stderr


def test_a_signal_ends_a_chat_in_a_pipe(tmp_path: Path) -> None:
    for number in (2, 15):
        process = subprocess.Popen(
            [SPECD, "chat", *SMALL, "-n", "4000"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SPECD_STATE": str(tmp_path)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Tell me a long story.\nAnd another one.\n")
        process.stdin.flush()
        assert process.stdout.read(20)  # it has begun
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (130, "")
        assert out.endswith("\n")


def test_bytes_that_are_not_text_are_replaced_and_told(tmp_path: Path) -> None:
    result = subprocess.run([SPECD, "chat", *SMALL, "-n", "4"], input=b"\xef\xbb\xbfhi\nh\xffi\n", capture_output=True)
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == 2
    assert "standard input is not valid UTF-8 in 1 place" in result.stderr.decode()


def test_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    kept = {"format": 1, "model": {"name": "smollm2-135m"}, "draft": None, "messages": []}
    for name, settings in (("odd", {"warmth": 3}), ("wrong", {"top_k": "many"}), ("small", {"max_tokens": 0})):
        (tmp_path / f"{name}.json").write_text(json.dumps(kept | {"settings": settings}))
    for arguments, words in [
        (("--load", "a", "--resume"), "--load and --resume"),
        (("--load", str(tmp_path / "bad.json")), "is not a conversation that specd saved"),
        (("--load", str(tmp_path / "odd.json")), "settings has an unknown key 'warmth'"),
        (("--load", str(tmp_path / "wrong.json")), "top_k is 'many', which is of the wrong type"),
        (("--load", str(tmp_path / "small.json")), "max_tokens is 0, which is too small"),
        (("--chat-template", "nothing"), "--chat-template nothing is neither"),
        (("--temperature", "-1"), "temperature"),
    ]:
        out = run(*arguments, said="")
        assert (out.returncode, out.stdout) == (2, "")
        assert words in out.stderr
        assert out.stderr.count("\n") == 1


def chat_of(*names: str | None, stops: tuple[str, ...] = (), **given: Any) -> Chat:
    return Chat(
        load_registry(),
        names[0],
        names[1],
        {"max_tokens": 24, **given},
        template=None,
        stops=stops,
        exact=False,
        strict=True,
        seed=1,
        progress=TransferProgress(sys.stderr),
        interrupt=Interrupt(),
        warn=lambda _: None,
    )


@pytest.fixture(scope="module")
def pair() -> Iterator[Chat]:
    chat = chat_of("qwen2.5-coder", None, draft_length=3, method="draft")
    chat.load()
    yield chat
    chat.close()


class Decoded:
    """Tokens that engines took in, but for those of rounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: dict[str, int] = {}
        real = Engine._decode

        def decode(engine: Engine, size: int, num_rows: int) -> None:
            name = engine.path.name
            self.most[name] = max(self.most.get(name, 0), size)
            real(engine, size, num_rows)

        monkeypatch.setattr(Engine, "_decode", decode)


def silent(_text: str, _source: str, _statistics: Statistics) -> None:
    """Nothing is shown."""


def test_a_turn_costs_its_own_tokens(pair: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both models; also after taking back, changing and answering again."""
    conversation = Conversation("You are helpful.")
    decoded = Decoded(monkeypatch)
    vocabulary = pair._loaded.vocabulary

    def ask(text: str) -> int:
        """The most tokens that a model had to take in at once."""
        decoded.most.clear()
        conversation.say(text)
        answer = pair.answer(conversation, silent)
        conversation.answered(answer.text, answer.tokens)
        assert len(decoded.most) == 2  # both models
        return max(decoded.most.values())

    def tokens_of(text: str) -> int:
        """Of a turn: the text, and what the template writes around it."""
        return len(vocabulary.tokenize(text, add_special=False, parse_special=False)) + 10

    first = "Explain in detail what this does: " + "for i in range(10): print(i)\n" * 20
    assert ask(first) > 150
    second = "Now in one sentence."
    assert ask(second) <= tokens_of(second) + 8
    said = conversation.undo()
    assert said == second
    third = "Which language is that, and how many lines are there?"
    assert ask(third) <= tokens_of(third) + 8
    conversation.undo()
    assert ask(third) <= tokens_of(third) + 8  # answered again
    conversation.undo()
    edited = "Which language is that, please?"
    assert ask(edited) <= tokens_of(edited) + 8


def test_a_full_context_forgets_the_oldest_turns_and_never_the_newest() -> None:
    chat = chat_of("smollm2-135m", "none", ctx=256, max_tokens=16)
    conversation = Conversation("Be brief.")
    forgotten = []
    try:
        for i in range(8):
            conversation.say(f"Message {i}: " + "word " * 30)
            answer = chat.answer(conversation, silent)
            conversation.answered(answer.text, answer.tokens)
            forgotten.append(answer.num_forgotten)
            assert conversation.turns[-1].said.startswith(f"Message {i}")
        assert sum(forgotten) >= 3
        assert conversation.messages()[0].content == "Be brief."
        conversation.say("word " * 400)
        with pytest.raises(PromptTooLong, match="the context has 256"):
            chat.answer(conversation, silent)
    finally:
        chat.close()


def test_a_stop_string_ends_an_answer_and_is_not_in_the_history() -> None:
    """User case 35: nothing of it is shown, and the next turn does not know of it."""
    plain = chat_of("smollm2-135m", "none", max_tokens=40)
    conversation = Conversation()
    conversation.say("Write a sentence about the sea.")
    whole = plain.answer(conversation, silent).text
    plain.close()
    words = whole.split()
    stop = f"{words[3]} {words[4][:2]}"  # in the middle of a word, over the border of tokens
    shown: list[str] = []
    chat = chat_of("smollm2-135m", "none", max_tokens=40, stops=(stop,))
    try:
        answer = chat.answer(conversation, lambda text, *_: shown.append(text))
        assert answer.text == "".join(shown) == whole[: whole.index(stop)]
        assert answer.statistics.finish_reason == "stop"
        pieces = b"".join(chat._loaded.vocabulary.piece(token) for token in answer.tokens.tolist()).decode()
        assert answer.text.startswith(pieces)
        assert len(pieces) > len(answer.text) - 12
    finally:
        chat.close()


def test_options_are_checked_and_models_change() -> None:
    chat = chat_of("smollm2-135m", "none")
    try:
        chat.load()
        chat.set("temperature", 0.7)
        assert chat.plan.settings.sampling.temperature == 0.7
        with pytest.raises(UsageError, match="temperature"):
            chat.set("temperature", -1.0)
        with pytest.raises(UsageError, match="draft_max is at most 31 in this chat, not 40"):
            chat.set("draft_max", 40)
        assert chat.plan.settings.sampling.temperature == 0.7
        before = chat._target
        with pytest.raises(UnknownModel):
            chat.use("smollm", None)
        with pytest.raises(UsageError):
            chat.set("top_p", 0.0)
        assert chat._target is before
        chat.use("qwen2.5-coder-0.5b", "none")
        assert chat._target is not before
        conversation = Conversation()
        conversation.say("Hello.")
        assert chat.answer(conversation, silent).text
    finally:
        chat.close()


def test_what_is_typed_during_an_answer_is_read_as_typed_after_it() -> None:
    terminal = Terminal(*SMALL, "-n", "120")
    terminal.send("Tell a long story.")
    terminal.wait_for(r"Tell a long story\.\n\w+")
    terminal.process.send("/set top_k 7\r")
    terminal.process.send("/show\r")
    terminal.process.send("\x04")
    terminal.wait_for(r"top_k is 7")
    terminal.wait_for(r"top_k +7")
    terminal.process.expect(pexpect.EOF)
    terminal.process.close()
    assert terminal.process.exitstatus == 0
