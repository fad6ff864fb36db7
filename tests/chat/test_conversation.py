import json
from pathlib import Path

import pytest

from specd.chat.commands import COMMANDS, Command, help_text, message_of, parse
from specd.chat.conversation import Conversation, Session
from specd.decoding.context import as_tokens
from specd.errors import UsageError


def talk(system: str | None = "be brief") -> Conversation:
    conversation = Conversation(system)
    conversation.say("one")
    conversation.answered("eins", as_tokens([1, 2]))
    conversation.say("two")
    conversation.answered("zwei", as_tokens([3]))
    return conversation


def texts(conversation: Conversation) -> list[str]:
    return [f"{message.role}: {message.content}" for message in conversation.messages()]


def test_turns() -> None:
    conversation = talk()
    assert texts(conversation) == ["system: be brief", "user: one", "assistant: eins", "user: two", "assistant: zwei"]
    assert conversation.last_answer == "zwei"
    assert conversation.undo() == "two"
    assert texts(conversation)[-1] == "assistant: eins"
    assert [conversation.undo(), conversation.undo()] == ["one", None]
    assert texts(conversation) == ["system: be brief"]
    assert conversation.last_answer is None


def test_the_oldest_turn_goes_first_and_the_newest_never() -> None:
    conversation = talk()
    conversation.say("three")
    assert conversation.drop_oldest()
    assert texts(conversation) == ["system: be brief", "user: two", "assistant: zwei", "user: three"]
    assert conversation.drop_oldest()
    assert not conversation.drop_oldest()
    assert texts(conversation) == ["system: be brief", "user: three"]


def test_another_model_has_other_tokens() -> None:
    conversation = talk()
    conversation.forget_tokens()
    assert all(message.tokens is None for message in conversation.messages())
    assert conversation.last_answer == "zwei"


@pytest.mark.parametrize("system", [None, "be brief"])
def test_a_session_is_loaded_as_it_was_saved(tmp_path: Path, system: str | None) -> None:
    models = {"model": {"name": "big", "sha256": "ab", "bytes": 9}, "draft": None}
    Session(talk(system), models, {"temperature": 0.7}).save(tmp_path / "talk.json")
    loaded = Session.load(tmp_path / "talk.json")
    assert texts(loaded.conversation) == texts(talk(system))
    assert [message.tokens.tolist() for message in loaded.conversation.messages() if message.tokens is not None] == [
        [1, 2],
        [3],
    ]
    assert (loaded.models, loaded.settings) == (models, {"temperature": 0.7})
    assert json.loads((tmp_path / "talk.json").read_text())["messages"][-1]["content"] == "zwei"


GOOD = {"format": 1, "model": {"name": "m"}, "draft": None, "settings": {}, "messages": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "its format is 2"),
        ({"model": None}, "is not a conversation"),
        ({"settings": []}, "it does not say which model"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "'assistant' stands where none can be"),
        ({"messages": [{"role": "user", "content": 3}]}, "3 for its text"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "'system' stands where"),
        ({"messages": 7}, "is not a conversation"),
    ],
)
def test_what_is_not_a_session_is_told(tmp_path: Path, change: dict[str, object], words: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(GOOD | change))
    with pytest.raises(UsageError, match="is not a conversation that specd saved") as error:
        Session.load(file)
    assert words in str(error.value)


def test_a_session_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Session.load(tmp_path / "none.json")


def test_commands_and_messages() -> None:
    assert parse("/help") == Command("help", "")
    assert parse("/set temperature 0.7") == Command("set", "temperature 0.7")
    assert parse("/system") == Command("system", "")
    assert parse("hello /help") is None
    assert parse("//usr/bin is a path") is None
    assert message_of("//usr/bin is a path") == "/usr/bin is a path"
    assert message_of("hello") == "hello"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/regenrate", "Did you mean /regenerate?"),
        ("/qqq", "/help lists what is"),
        ("/save", "/save needs FILE"),
        ("/set", "/set needs NAME VALUE"),
        ("/undo 3", "/undo takes nothing behind it, but there is '3'"),
        ("/", "There is no /."),
    ],
)
def test_a_wrong_command_is_told(line: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(line)
    assert words in str(error.value)


def test_help_has_all() -> None:
    lines = help_text().splitlines()
    assert [line.split()[0] for line in lines] == [f"/{name}" for name in COMMANDS]
    assert max(map(len, lines)) < 80
