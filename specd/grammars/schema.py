"""JSON schemas as grammars."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from llguidance import LLMatcher

from specd.errors import UsageError

ANY_OBJECT = '{"type": "object"}'
_DIALECT = jsonschema.Draft202012Validator  # of schemas that name none
_ONE_LINE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SHARED = ("$schema", "$defs", "definitions", "$id")  # parts of a schema that its parts may need
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # names to schemas


def schema_grammar(text: str, name: str) -> str:
    """The grammar of JSON texts, on one line each, that follow a schema.

    text:  the schema
    name:  how the user calls it

    Raises UsageError, with the place, for what is no schema, cannot be satisfied, or has keywords that no grammar
    can express.
    """
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply.") from error
    schema = {} if schema is True else schema
    if not isinstance(schema, dict):
        raise UsageError(f"{name} is not a schema: it must be an object or true, not {json.dumps(schema)[:40]}.")
    try:
        validator_for(schema, default=_DIALECT).check_schema(schema)
        if (reason := _reason(schema)) is not None:
            raise UsageError(f"{name} cannot be followed, at {_path(_narrowed(schema, reason))}: {reason}.")
    except jsonschema.SchemaError as error:
        raise UsageError(f"{name} is not a schema, at {_path(list(error.absolute_path))}: {error.message}.") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply.") from error
    return _grammar(schema)


def _grammar(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_ONE_LINE)


def _reason(schema: dict[str, Any]) -> str | None:
    """Why a schema has no grammar; None when it has."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(_grammar(schema))
    return " ".join(messages[0].split()) if is_error else None


def _narrowed(schema: Any, reason: str) -> list[str | int]:
    """The path of the innermost part of a schema that has no grammar for the same reason."""
    shared = {key: schema[key] for key in _SHARED if key in schema}
    path: list[str | int] = []
    while True:
        for place, part in _parts(schema):
            if _reason({**shared, **part}) == reason:
                path, schema = [*path, *place], part
                break
        else:
            return path


def _parts(schema: dict[str, Any]) -> Iterator[tuple[list[str | int], dict[str, Any]]]:
    """The schemas directly inside a schema."""
    for key, value in schema.items():
        if key in _MAPPINGS and isinstance(value, dict):
            for name, part in value.items():
                if isinstance(part, dict):
                    yield [key, name], part
        elif isinstance(value, list):
            for i, part in enumerate(value):
                if isinstance(part, dict):
                    yield [key, i], part
        elif isinstance(value, dict):
            yield [key], value


def _path(place: list[str | int]) -> str:
    """A JSON pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in place) or "its top"
