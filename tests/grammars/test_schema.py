"""What schemas are refused, and where the fault lies."""

import json
from typing import Any

import pytest

from specd.errors import UsageError
from specd.grammars.schema import ANY_OBJECT, schema_grammar


def test_what_can_be_followed_is_taken() -> None:
    for schema in (ANY_OBJECT, "true", "{}", '{"type": "array", "items": {"enum": [1, "a", null]}}'):
        assert schema_grammar(schema, "it")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "it is not JSON: Expecting property name enclosed in double quotes, line 1, column 2"),
        ("", "it is not JSON"),
        ("[1]", "it is not a schema: it must be an object or true, not [1]"),
        ('{"type": "objekt"}', "it is not a schema, at /type: 'objekt' is not valid"),
        ({"properties": {"a/b": {"type": 5}}}, "it is not a schema, at /properties/a~1b/type: 5 is not valid"),
        ({"properties": {"a": {"items": {"not": {}}}}}, 'at /properties/a/items: Unimplemented keys: ["not"]'),
        ({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}, "at /anyOf/1: Unimplemented keys"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {}}, "at /properties/a: Pointer '/$defs/b' does not"),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string", "pattern": "("}}},
            "it is not a schema, at /$defs/b/pattern: '(' is not a",
        ),
        (
            {"type": "object", "properties": {"a": {"minimum": 5, "maximum": 3, "type": "integer"}}, "required": ["a"]},
            "at its top: Unsatisfiable schema: required property 'a'",
        ),
        ("false", "not false"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_faults_are_told_with_their_place(schema: Any, words: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(UsageError) as caught:
        schema_grammar(text, "it")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
