"""Commands of a chat: lines that begin with a slash."""

import difflib
from dataclasses import dataclass

from specd.errors import UsageError

COMMANDS = {  # name -> argument, what it does
    "help": ("", "list the commands"),
    "exit": ("", "leave (so do Ctrl-D, and Ctrl-C twice)"),
    "clear": ("", "forget the conversation, but for the system message"),
    "regenerate": ("", "answer the last message again"),
    "edit": ("", "change the last message in $EDITOR, and have it answered"),
    "undo": ("", "take back the last message and its answer"),
    "system": ("TEXT", "set the system message; - for none"),
    "set": ("NAME VALUE", "change an option, such as temperature, method or draft_max"),
    "show": ("", "the models and options in use"),
    "stats": ("", "what the last answer cost and gained"),
    "explain": ("", "why drafting paid, or did not"),
    "model": ("NAME", "go on with another model"),
    "draft": ("NAME", "go on with another draft; none for none"),
    "save": ("FILE", "keep the conversation"),
    "load": ("FILE", "go on with a kept one"),
    "file": ("PATH", "attach a text file to the next message"),
    "copy": ("", "the last answer to the clipboard"),
    "multi": ("", "Enter begins a new line, Alt-Enter sends; and back again"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what follows its name."""

    name: str
    argument: str


def parse(line: str) -> Command | None:
    """The command in a line; None for a message. Two slashes begin a message with one.

    Raises UsageError for a command that does not exist, or lacks what it needs.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    name, argument = name.strip(), argument.strip()
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        raise UsageError(
            f"There is no /{name}. {f'Did you mean /{nearest[0]}?' if nearest else '/help lists what is.'}"
        )
    needs = COMMANDS[name][0]
    if needs and not argument and name != "system":
        raise UsageError(f"/{name} needs {needs}.")
    if argument and not needs:
        raise UsageError(f"/{name} takes nothing behind it, but there is {argument!r}.")
    return Command(name, argument)


def message_of(line: str) -> str:
    """A line that is no command, as it was meant."""
    return line[1:] if line.startswith("//") else line


def help_text() -> str:
    """All commands, one per line."""
    rows = [(f"/{name} {argument}".strip(), what) for name, (argument, what) in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(f"{usage:{width}}  {what}" for usage, what in rows)
