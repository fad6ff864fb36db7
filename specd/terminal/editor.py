"""The line that a person types into."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

_PATHS = ("file", "load", "save")  # commands whose argument is a path


class Editor:
    """Reads messages: history over runs, editing keys, completion of commands, several lines.

    Enter sends, Alt-Enter (or Ctrl-J) begins a new line; the other way round in multi mode. A paste stays as it is.

    history:    a file
    arguments:  by command, what may follow it
    toolbar:    the line at the bottom
    """

    def __init__(
        self, history: Path, arguments: Mapping[str, Iterable[str]], toolbar: Callable[[], str], *, color: bool
    ) -> None:
        history.parent.mkdir(parents=True, exist_ok=True)
        self.multi = False
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=_Commands(arguments),
            complete_while_typing=False,
            multiline=True,
            key_bindings=self._keys(),
            bottom_toolbar=lambda: FormattedText([("class:bottom-toolbar.text", toolbar())]) if toolbar() else None,
            style=Style.from_dict(
                {"bottom-toolbar": "noreverse", "bottom-toolbar.text": "fg:ansibrightblack noreverse"}
            ),
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            prompt_continuation=lambda _width, _line, wraps: "  " if wraps else ". ",
        )

    def read(self, default: str = "") -> str:
        """The next message. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C, both in an empty line."""
        return self._session.prompt("> ", default=default)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        sends = Condition(lambda: not self.multi)

        @keys.add("enter", filter=sends)
        @keys.add("escape", "enter", filter=~sends)
        def _send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=sends)
        @keys.add("c-j", filter=sends)
        @keys.add("enter", filter=~sends)
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _clear_or_leave(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        return keys


class _Commands(Completer):
    """Names of commands, then what may follow them."""

    def __init__(self, arguments: Mapping[str, Iterable[str]]) -> None:
        self._arguments = arguments
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Of a line that begins with a slash."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, blank, argument = text[1:].partition(" ")
        if not blank:
            for command in self._arguments:
                if command.startswith(name):
                    yield Completion(command, -len(name))
        elif name in _PATHS:
            yield from self._paths.get_completions(Document(argument), event)
        else:
            for word in self._arguments.get(name, ()):
                if word.startswith(argument):
                    yield Completion(word, -len(argument))
