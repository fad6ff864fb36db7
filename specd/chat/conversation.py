"""A conversation: what was said and answered, and how it is kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specd.chat.templates import Message
from specd.decoding.context import Tokens, as_tokens
from specd.errors import UsageError
from specd.models.folders import write_whole

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """What the person said, and the answer; None as long as there is none."""

    said: str
    answer: Message | None = None


class Conversation:
    """Turns, and a system message that may be changed at any time."""

    def __init__(self, system: str | None = None, turns: Sequence[Turn] = ()) -> None:
        self.system = system
        self.turns = list(turns)

    def __len__(self) -> int:
        return len(self.turns)

    def say(self, text: str) -> None:
        """Begin a turn."""
        self.turns.append(Turn(text))

    def answered(self, text: str, tokens: Tokens) -> None:
        """End the last turn."""
        self.turns[-1] = replace(self.turns[-1], answer=Message("assistant", text, tokens.copy()))

    def undo(self) -> str | None:
        """Take the last turn back; what was said in it, None without one."""
        return self.turns.pop().said if self.turns else None

    def drop_oldest(self) -> bool:
        """Forget the first turn, never the last; whether there was one to forget."""
        if len(self.turns) < 2:
            return False
        del self.turns[0]
        return True

    def forget_tokens(self) -> None:
        """For another model: only the texts mean the same there."""
        self.turns = [
            replace(turn, answer=replace(turn.answer, tokens=None)) if turn.answer is not None else turn
            for turn in self.turns
        ]

    @property
    def last_answer(self) -> str | None:
        """None when nothing was answered yet."""
        return next((turn.answer.content for turn in reversed(self.turns) if turn.answer is not None), None)

    def messages(self) -> list[Message]:
        """As templates take them."""
        messages = [Message("system", self.system)] if self.system else []
        for turn in self.turns:
            messages.append(Message("user", turn.said))
            if turn.answer is not None:
                messages.append(turn.answer)
        return messages


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation with what it was held with, as it is kept in a file.

    models:    "model" and "draft": name, sha256 and bytes, as far as they are known; draft is None without one
    settings:  that were given, by name
    """

    conversation: Conversation
    models: Mapping[str, Mapping[str, Any] | None]
    settings: Mapping[str, Any]

    def save(self, file: Path) -> None:
        """As JSON. Raises OSError."""
        messages = []
        for message in self.conversation.messages():
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.tokens is not None:
                entry["tokens"] = message.tokens.tolist()
            messages.append(entry)
        content = {"format": _FORMAT, **self.models, "settings": self.settings, "messages": messages}
        write_whole(file, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> Session:
        """Raises UsageError for what is not a session."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {_FORMAT}")
            models = {name: content[name] for name in ("model", "draft")}
            if not isinstance(models["model"]["name"], str) or not isinstance(content["settings"], dict):
                raise ValueError("it does not say which model it was held with")
            return cls(_conversation(content["messages"]), models, content["settings"])
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file} is not a conversation that specd saved: {error}.") from error


def _conversation(entries: Sequence[Mapping[str, Any]]) -> Conversation:
    conversation = Conversation()
    for entry in entries:
        role, text = entry["role"], entry["content"]
        if not isinstance(text, str):
            raise ValueError(f"a message has {text!r} for its text")
        if role == "system" and not conversation.turns:
            conversation.system = text
        elif role == "user":
            conversation.say(text)
        elif role == "assistant" and conversation.turns and conversation.turns[-1].answer is None:
            tokens = as_tokens(entry["tokens"]) if "tokens" in entry else None
            turn = conversation.turns[-1]
            conversation.turns[-1] = replace(turn, answer=Message("assistant", text, tokens))
        else:
            raise ValueError(f"a message of role {role!r} stands where none can be")
    return conversation
