"""Chat templates: messages to the tokens that the model was trained to see."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import jinja2
import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specd.decoding.context import Tokens
from specd.errors import SpecdError, UsageError

RAW = r"{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}"  # plain text
KNOWN = {
    "raw": RAW,
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
}
"""Templates that can be asked for by name."""


class TemplateError(SpecdError):
    """The chat template cannot render these messages."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    tokens:  of an answer, as the model gave them: its text would not always be tokenised into the same ones
    """

    role: Literal["system", "user", "assistant"]
    content: str
    tokens: Tokens | None = field(default=None, compare=False, repr=False)


class Vocabulary(Protocol):
    """What templates need of a vocabulary."""

    bos: int
    eos: int
    adds_bos: bool

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens:
        """Tokens of a text."""

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it, empty for -1."""


def read_template(name: str) -> str:
    """A template by its name, or from a file. Raises UsageError for what is neither."""
    if name in KNOWN:
        return KNOWN[name]
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--chat-template {name} is neither a file that can be read nor one of {', '.join(KNOWN)}."
        ) from error


def raw_tokens(text: str, vocabulary: Vocabulary) -> Tokens:
    """A text as it is, with BOS where the model wants one. Control strings in it stay text."""
    return vocabulary.tokenize(text, add_special=True, parse_special=False)


def chat_tokens(
    messages: Sequence[Message], template: str, vocabulary: Vocabulary, *, by_parts: bool = False
) -> Tokens:
    """Render messages with a Jinja chat template, ready for the answer, and tokenise the result.

    A system message that the template refuses moves into the first user message. Control strings inside
    messages stay text, and BOS comes exactly once. Raises TemplateError.

    by_parts:  tokenise each message by itself, or take the tokens it has: so a longer conversation begins with
               exactly the tokens of a shorter one, and the caches keep them. Where the template changes what messages
               say (drops reasoning, cuts blanks), the whole is tokenised anew.
    """
    environment = _environment(vocabulary)
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateError(f"The model's chat template is broken ({error}). Use --raw for plain text.") from error
    messages = _acceptable(messages, compiled)
    rendered = _render(messages, compiled)
    has_control = any(_has_control(message.content, vocabulary) for message in messages)
    if has_control or by_parts:
        parts = _parts(messages, compiled)
        texts = [part if isinstance(part, str) else part.content for part in parts]
        if has_control or "".join(texts) == rendered:
            return _tokenize_parts(parts, vocabulary)
    return _tokenize_rendered(rendered, vocabulary)


def _parts(messages: Sequence[Message], template: jinja2.Template) -> list[str | Message]:
    """What the template writes, and between it the messages, where it has them."""
    mark = secrets.token_hex(8)
    marks = [f"{mark}{i:04d}" for i in range(len(messages))]
    rest = _render([replace(m, content=text) for m, text in zip(messages, marks, strict=True)], template)
    parts: list[str | Message] = []
    for message, text in zip(messages, marks, strict=True):
        before, found, after = rest.partition(text)
        if found:  # else the template left this message out
            parts += [before, message]
            rest = after
    return [*parts, rest]


def _tokenize_parts(parts: Sequence[str | Message], vocabulary: Vocabulary) -> Tokens:
    tokens = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            tokens.append(_tokenize_rendered(part, vocabulary, first=i == 0))
        elif part.tokens is not None:
            tokens.append(part.tokens)
        else:
            tokens.append(vocabulary.tokenize(part.content, add_special=False, parse_special=False))
    return np.concatenate(tokens)


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
