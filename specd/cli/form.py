"""What every answer must look like, and how prompts become tokens: from options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.chat.templates import read_template
from specd.cli.prompt import Warn, checked_stops, read_document
from specd.errors import UsageError


@dataclass(frozen=True, slots=True)
class Form:
    """The same for all prompts of a run.

    grammar:      that answers follow, in llguidance's format; None for any text
    stops:        texts that end an answer
    ignores_ends: never end before the most tokens are reached
    template:     in place of the model's own; None for that
    raw:          no template at all
    predicted:    texts that are expected to come again in answers

    Raises UsageError where options contradict each other.
    """

    grammar: str | None = None
    stops: tuple[str, ...] = ()
    ignores_ends: bool = False
    template: str | None = None
    raw: bool = False
    predicted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.raw and self.template is not None:
            raise UsageError("--raw uses no chat template, but --chat-template names one: drop one of them.")
        if self.ignores_ends and self.grammar is not None:
            raise UsageError("--ignore-eos never ends, but a schema or grammar does: drop one of them.")


def read_form(
    *,
    json_schema: str | None,
    json_object: bool,
    grammar: Path | None,
    stops: Sequence[str] | None,
    ignores_ends: bool,
    chat_template: str | None,
    raw: bool,
    predict_from: Sequence[Path] | None,
    warn: Warn,
) -> Form:
    """From options and the files they name. Raises UsageError for what is wrong in one, with its place."""
    return Form(
        grammar=_grammar(json_schema, json_object, grammar, warn),
        stops=checked_stops(stops),
        ignores_ends=ignores_ends,
        template=read_template(chat_template) if chat_template is not None else None,
        raw=raw,
        predicted=tuple(read_document(file, "--predict-from", warn) for file in predict_from or []),
    )


def _grammar(json_schema: str | None, json_object: bool, grammar: Path | None, warn: Warn) -> str | None:
    given = {"--json-schema": json_schema is not None, "--json-object": json_object, "--grammar": grammar is not None}
    if sum(given.values()) > 1:
        names = " and ".join(name for name, is_given in given.items() if is_given)
        raise UsageError(f"{names} each say what an answer must look like: keep one.")
    if grammar is not None:
        from specd.grammars.gbnf import gbnf_grammar

        return gbnf_grammar(read_document(grammar, "--grammar", warn), f"--grammar {grammar}")
    if json_schema is None and not json_object:
        return None
    from specd.grammars.schema import ANY_OBJECT, schema_grammar

    if json_schema is None:
        return schema_grammar(ANY_OBJECT, "--json-object")
    if json_schema.lstrip()[:1] in ("{", "[", ""):
        return schema_grammar(json_schema, "--json-schema")
    return schema_grammar(read_document(Path(json_schema), "--json-schema", warn), f"--json-schema {json_schema}")
