"""Chat templates: messages to the tokens that the model was trained to see."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NoReturn, Protocol

import jinja2
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specd.decoding.context import Tokens
from specd.errors import SpecdError


class TemplateError(SpecdError):
    """The chat template cannot render these messages."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Vocabulary(Protocol):
    """What templates need of a vocabulary."""

    bos: int
    eos: int
    adds_bos: bool

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Tokens of a text."""

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it, empty for -1."""


def raw_tokens(text: str, vocabulary: Vocabulary) -> Tokens:
    """A text as it is, with BOS where the model wants one. Control strings in it stay text."""
    return vocabulary.tokenize(text, add_special=True, parse_special=False)


def chat_tokens(messages: Sequence[Message], template: str, vocabulary: Vocabulary) -> Tokens:
    """Render messages with a Jinja chat template, ready for the answer, and tokenise the result.

    A system message that the template refuses moves into the first user message. Control strings inside
    messages stay text, and BOS comes exactly once. Raises TemplateError.
    """
    environment = _environment(vocabulary)
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateError(f"The model's chat template is broken ({error}). Use --raw for plain text.") from error
    messages = _acceptable(messages, compiled)
    rendered = _render(messages, compiled)
    if not any(_has_control(message.content, vocabulary) for message in messages):
        return _tokenize_rendered(rendered, vocabulary)
    mark = secrets.token_hex(8)
    marks = [f"{mark}{i:04d}" for i in range(len(messages))]
    marked = _render([replace(m, content=text) for m, text in zip(messages, marks, strict=True)], compiled)
    parts: list[Tokens] = []
    for message, text in zip(messages, marks, strict=True):
        before, found, marked = marked.partition(text)
        if found:
            parts.append(_tokenize_rendered(before, vocabulary, first=not parts))
            parts.append(vocabulary.tokenize(message.content, add_special=False, parse_special=False))
        else:
            marked = before  # the template left this message out
    parts.append(_tokenize_rendered(marked, vocabulary, first=not parts))
    return np.concatenate(parts)


def _environment(vocabulary: Vocabulary) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda form: datetime.now().strftime(form),
        bos_token=vocabulary.text(vocabulary.bos),
        eos_token=vocabulary.text(vocabulary.eos),
    )
    return environment


def _to_json(value: Any, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _render(messages: Sequence[Message], template: jinja2.Template) -> str:
    plain = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return template.render(messages=plain, add_generation_prompt=True)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise TemplateError(
            f"The model's chat template cannot render this conversation ({error}). Use --raw for plain text."
        ) from error


def _acceptable(messages: Sequence[Message], template: jinja2.Template) -> Sequence[Message]:
    """The messages, with a system message that the template refuses folded into the first user message."""
    if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user":
        return messages
    try:
        if messages[0].content in _render(messages, template):
            return messages
    except TemplateError:
        pass
    folded = f"{messages[0].content}\n\n{messages[1].content}"
    return [replace(messages[1], content=folded), *messages[2:]]


def _has_control(text: str, vocabulary: Vocabulary) -> bool:
    as_control = vocabulary.tokenize(text, add_special=False, parse_special=True)
    as_text = vocabulary.tokenize(text, add_special=False, parse_special=False)
    return not np.array_equal(as_control, as_text)


def _tokenize_rendered(text: str, vocabulary: Vocabulary, *, first: bool = True) -> Tokens:
    """Template text, control tokens included; with BOS if the model wants it and the template has none."""
    bos = vocabulary.text(vocabulary.bos)
    add_special = first and vocabulary.adds_bos and not (bos and text.startswith(bos))
    return vocabulary.tokenize(text, add_special=add_special, parse_special=True)
