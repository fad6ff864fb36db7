"""What happens between the person and the models of a chat: messages, answers and commands."""

from __future__ import annotations

import base64
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specd.chat import commands
from specd.chat.conversation import Conversation, Session
from specd.cli.chatting import Answer, Chat
from specd.cli.prompt import decoded, read_document
from specd.cli.settings import DEFAULT, SETTABLE, parse_setting
from specd.cli.signals import stopping
from specd.decoding.statistics import Statistics
from specd.errors import EngineError, Interrupted, PromptTooLong, SpecdError, UsageError
from specd.models.folders import state_folder
from specd.models.registry import Registry, check_options
from specd.terminal.console import uses_color
from specd.terminal.explanation import explanation
from specd.terminal.status import chat_status, fitting
from specd.terminal.summary import summary
from specd.terminal.text import is_terminal, without_echo
from specd.terminal.transcript import Transcript

if TYPE_CHECKING:
    from specd.llama.library import Interrupt
    from specd.terminal.editor import Editor

_COLORS = "color_by_source"
_ON_OFF = {"on": True, "off": False}
_NOT_KEPT = ("system", "seed")  # of the options, with a conversation: it has the first itself


def last_session() -> Path:
    """Where the last conversation is kept, for --resume."""
    return state_folder() / "last_chat.json"


class Talk:
    """A conversation on the screen, until the person leaves."""

    def __init__(self, chat: Chat, registry: Registry, screen: Transcript, interrupt: Interrupt) -> None:
        self._chat, self._registry, self._screen, self._interrupt = chat, registry, screen, interrupt
        self._conversation = Conversation(chat.plan.settings.system)
        self._attached: list[str] = []
        self._last: Answer | None = None
        self._status = ""
        self._editor: Editor | None = None
        self._is_interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        self._draft_text = ""  # in the line that is to be typed next

    def begin(self, session: Session | None, system: str | None) -> None:
        """Load the models, and go on with a conversation that was kept, but for another system message."""
        self._chat.load()
        if session is not None:
            self._take(session)
            self._conversation.system = system or self._conversation.system

    def run(self, first: str | None) -> int:
        """Answer until there are no more messages."""
        if first is not None:
            if self._is_interactive:
                self._screen.note(f"> {first}")
            self._handle(commands.Command("", first))
        for line in map(str.strip, self._lines()):
            try:
                command = commands.parse(line) if "\n" not in line else None
            except UsageError as error:
                self._complain(error)
                continue
            if command is not None and command.name == "exit":
                return 0
            self._handle(command or commands.Command("", commands.message_of(line)))
        return 0

    def _handle(self, command: commands.Command) -> None:
        """Do what was asked; without a name, it is a message. What goes wrong is said, and the conversation goes on."""
        action: Callable[[str], None] = getattr(self, f"_do_{command.name}") if command.name else self._message
        try:
            action(command.argument)
        except Interrupted:
            raise
        except SpecdError as error:
            self._complain(error)

    def _complain(self, error: SpecdError) -> None:
        self._screen.note(f"specd: {' '.join(str(error).split())}")

    def _lines(self) -> Iterator[str]:
        """What the person types; without a terminal, the lines of standard input."""
        if not self._is_interactive:
            for data in sys.stdin.buffer:
                if (line := decoded(data, "standard input", self._screen.note)).strip():
                    yield line
            return
        from specd.terminal.editor import Editor

        self._editor = Editor(
            state_folder() / "chat_history", self._completions(), self._toolbar, color=uses_color(sys.stdout)
        )
        may_leave = False
        while True:
            try:
                line = self._editor.read(self._draft_text)
                self._draft_text, may_leave = "", False
                if line.strip():
                    yield line
            except EOFError:
                return
            except KeyboardInterrupt:
                if may_leave:
                    return
                may_leave = True
                self._screen.note("Ctrl-C again leaves; so do Ctrl-D and /exit.")

    def _toolbar(self) -> str:
        return fitting(self._status, shutil.get_terminal_size().columns - 1)

    def _message(self, text: str) -> None:
        """Say something, and have it answered."""
        self._conversation.say("\n\n".join([text, *self._attached]))
        self._answer()
        self._attached.clear()

    def _answer(self) -> None:
        """Answer the last message. What cannot be answered is taken back, and stands in the line to be typed."""
        from specd.llama.library import compute

        try:
            with stopping(self._interrupt) as signals, without_echo(sys.stdin):
                answer = compute(self._interrupt, partial(self._chat.answer, self._conversation, self._show))
        except (PromptTooLong, EngineError, Interrupted) as error:
            self._screen.finish()
            self._draft_text = self._conversation.undo() or ""
            if not isinstance(error, Interrupted) or not self._stays(signals):
                raise
            return
        finally:
            self._interrupt.clear()
        self._screen.finish()
        self._last = answer
        self._status = chat_status(answer.statistics, *self._chat.num_context)
        if answer.num_forgotten:
            turns = "turn is" if answer.num_forgotten == 1 else f"{answer.num_forgotten} turns are"
            self._screen.note(f"The context is full: the oldest {turns} forgotten.")
        if len(answer.tokens):
            self._conversation.answered(answer.text, answer.tokens)
        else:
            self._draft_text = self._conversation.undo() or ""
        if answer.statistics.finish_reason == "length":
            self._screen.note("The answer was cut: --max-tokens or the context was reached.")
        with suppress(OSError):
            self._session().save(last_session())
        if answer.statistics.finish_reason == "interrupted" and not self._stays(signals):
            raise Interrupted("The answer was stopped.")

    def _stays(self, signals: Sequence[int]) -> bool:
        """Whether the conversation goes on after signals: after a Ctrl-C of somebody who sits there."""
        return self._is_interactive and set(signals) <= {signal.SIGINT}

    def _show(self, text: str, source: str, statistics: Statistics) -> None:
        self._screen.write(text, source, lambda: chat_status(statistics, *self._chat.num_context))

    def _do_help(self, _: str) -> None:
        self._screen.note(commands.help_text())

    def _do_clear(self, _: str) -> None:
        self._conversation = Conversation(self._conversation.system)
        self._attached.clear()
        self._screen.note("The conversation is forgotten.")

    def _do_regenerate(self, _: str) -> None:
        said = self._conversation.undo()
        if said is None:
            raise UsageError("/regenerate: nothing was said yet.")
        self._conversation.say(said)
        self._answer()

    def _do_edit(self, _: str) -> None:
        said = self._conversation.undo()
        try:
            edited = click.edit(said or "", extension=".md")
        except click.ClickException as error:
            if said is not None:
                self._conversation.say(said)
            raise UsageError(f"/edit: {error.format_message()} Set EDITOR to an editor that is there.") from error
        if edited is None or not edited.strip():
            self._screen.note("Nothing was changed." if edited is None else "The message was taken back.")
            if edited is None and said is not None:
                self._conversation.say(said)
            return
        self._screen.note(f"> {edited.strip()}")
        self._conversation.say(edited.strip())
        self._answer()

    def _do_undo(self, _: str) -> None:
        said = self._conversation.undo()
        if said is None:
            raise UsageError("/undo: nothing was said yet.")
        self._screen.note(f"Taken back: {said.splitlines()[0][:60]}")

    def _do_system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "-" else text
        self._screen.note(f"System message: {self._conversation.system or 'none'}")

    def _do_set(self, argument: str) -> None:
        name, _, text = argument.replace("=", " ", 1).partition(" ")
        name, text = name.strip().lstrip("-").replace("-", "_"), text.strip()
        if not text:
            raise UsageError(f"/set {name} needs a value; {DEFAULT} for the usual one.")
        if name == _COLORS:
            if text not in _ON_OFF:
                raise UsageError(f"{_COLORS} must be on or off, not {text!r}.")
            self._screen.by_source = _ON_OFF[text]
            text = self._screen.legend() if self._screen.by_source else f"{_COLORS} is off."
            self._screen.note(text, is_styled=self._screen.by_source)
            return
        self._chat.set(name, parse_setting(name, text))
        self._screen.note(f"{name} is {text}.")

    def _do_show(self, _: str) -> None:
        plan, draft = self._chat.plan, self._chat.draft_in_use
        used, size = self._chat.num_context
        sampling = plan.settings.sampling
        rows = {
            "model": plan.target.name,
            "draft": draft.name if draft is not None else "none",
            "context": f"{used} of {size} tokens",
            "method": plan.settings.method,
            "verify": plan.settings.verify,
            "temperature": f"{sampling.temperature:g}",
            **{name: value for name, value in self._chat.given.items() if name in SETTABLE and value is not None},
            _COLORS: "on" if self._screen.by_source else "off",
            "system": self._conversation.system or "none",
        }
        self._screen.note("\n".join(f"{name:18}{value}" for name, value in rows.items()))

    def _do_stats(self, _: str) -> None:
        answer = self._answered()
        self._screen.note(summary(answer.statistics, answer.statistics.off_reason(answer.notices)))

    def _do_explain(self, _: str) -> None:
        answer = self._answered()
        self._screen.note(explanation(answer.statistics, answer.report, answer.notices))

    def _do_model(self, name: str) -> None:
        self._chat.use(name, None)
        self._conversation.forget_tokens()
        draft = self._chat.draft_in_use
        self._screen.note(f"Now {self._chat.plan.target.name}, {f'with {draft.name}' if draft else 'without a draft'}.")

    def _do_draft(self, name: str) -> None:
        self._chat.use(self._chat.model_name, name)
        draft = self._chat.draft_in_use
        self._screen.note(f"Now {f'with {draft.name}' if draft else 'without a draft'}.")

    def _do_save(self, file: str) -> None:
        path = Path(file).expanduser()
        try:
            self._session().save(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error
        self._screen.note(f"Kept in {path}.")

    def _do_load(self, file: str) -> None:
        session = Session.load(Path(file).expanduser())
        check_options(session.settings, f"{file}: settings")
        for name, value in session.settings.items():
            if name in SETTABLE:
                self._chat.set(name, value)
        self._take(session)

    def _do_file(self, file: str) -> None:
        text = read_document(Path(file).expanduser(), "/file", self._screen.note)
        self._attached.append(text)
        self._screen.note(f"{file} goes with your next message ({len(text)} characters).")

    def _do_copy(self, _: str) -> None:
        text = self._conversation.last_answer
        if text is None:
            raise UsageError("/copy: nothing was answered yet.")
        if not is_terminal(sys.stdout):
            raise UsageError("/copy: there is no terminal whose clipboard could be used.")
        sys.stdout.write(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")
        sys.stdout.flush()
        self._screen.note("Copied, if this terminal allows it (OSC 52).")

    def _do_multi(self, _: str) -> None:
        if self._editor is None:
            raise UsageError("/multi: there is no terminal to type into.")
        self._editor.multi = not self._editor.multi
        keys = ("Alt-Enter", "Enter") if self._editor.multi else ("Enter", "Alt-Enter")
        self._screen.note(f"{keys[0]} sends, {keys[1]} begins a new line.")

    def _answered(self) -> Answer:
        if self._last is None:
            raise UsageError("Nothing was answered yet.")
        return self._last

    def _session(self) -> Session:
        draft = self._chat.draft_in_use
        models = {
            "model": _identity(self._chat.plan.target),
            "draft": _identity(draft) if draft is not None else None,
        }
        settings = {
            name: value for name, value in self._chat.given.items() if value is not None and name not in _NOT_KEPT
        }
        return Session(self._conversation, models, settings)

    def _take(self, session: Session) -> None:
        """Go on with a conversation that was kept."""
        self._conversation = session.conversation
        kept, now = session.models["model"] or {}, _identity(self._chat.plan.target)
        if kept.get("name") != now["name"] or kept.get("sha256") != now["sha256"]:
            self._conversation.forget_tokens()
            self._screen.note(f"This conversation was held with {kept.get('name')}, and goes on with {now['name']}.")
        number = len(self._conversation)
        self._screen.note(f"Going on after {number} {'turn' if number == 1 else 'turns'}.")
        if (answer := self._conversation.last_answer) is not None and is_terminal(sys.stdout):
            self._screen.note(f"> {self._conversation.turns[-1].said}")
            self._screen.write(answer, "", lambda: "")
            self._screen.finish()

    def _completions(self) -> Mapping[str, list[str]]:
        names = [*self._registry.models, *self._registry.pairs]
        words: dict[str, list[str]] = {name: [] for name in commands.COMMANDS}
        return words | {"set": [*SETTABLE, _COLORS], "model": names, "draft": [*names, "none"]}


def _identity(model: Any) -> dict[str, Any]:
    return {"name": model.name if model.path is None else str(model.path), "sha256": model.sha256, "bytes": model.bytes}
