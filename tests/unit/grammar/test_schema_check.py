"""What the compiler would drop without a word is found wherever it stands; the rest passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rorqual_grammar.json_grammar import schema_grammar
from rorqual_grammar.rejection import BadConstraint
from rorqual_grammar.schema_check import find_unenforced

STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": STRING}, "'not'"),
        ({"if": STRING, "then": {}}, "'if'"),
        ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, "at #/items"),
        ({"properties": {"a": {"contains": STRING}}}, "at #/properties/a"),
        ({"$defs": {"x": {"dependentRequired": {}}}}, "at #/$defs/x"),
        ({"anyOf": [STRING, {"allOf": [STRING, STRING]}]}, "'allOf'"),
        ({"$ref": "https://example.com/s.json"}, "must stay inside"),
        ({"$ref": "#/$defs/s", "maxLength": 3}, "beside '$ref'"),
        ({"anyOf": [STRING], "required": ["a"]}, "beside 'anyOf'"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "beside 'pattern'"),
        ({"properties": {"a": STRING}, "required": ["a", "b"]}, "names 'b'"),
        ({"type": "object", "required": ["a"]}, "names 'a'"),
        ({"minimum": 5}, "'minimum' without 'type'"),
        ({"pattern": "a", "properties": {}}, "'pattern' without 'type'"),
        ({"minItems": 1}, "'minItems' without 'type'"),
        ({"type": "string", "enum": ["a", None]}, "has None"),
        ({"type": "integer", "enum": [1, 2.5]}, "has 2.5"),
        ({"type": "integer", "const": float("inf")}, "has inf"),
        ({"type": "integer", "enum": [float("nan")]}, "has nan"),
        ({"type": ["number", "null"], "const": True}, "has True"),
        ({"enum": [1, 300], "maximum": 5}, "'maximum' beside 'enum'"),
        ({"enum": ["a"], "const": "b"}, "'const' beside 'enum'"),
        ({"type": "number", "multipleOf": 2}, "for integers only"),
        ({"type": ["null", "number"], "multipleOf": 2}, "for integers only"),
        ({"type": "integer", "multipleOf": 1.5}, "no integer"),
        ({"properties": {"a": STRING}, "patternProperties": {"^a": {}}}, "beside 'properties'"),
        ({"properties": {"a": STRING}, "propertyNames": STRING}, "beside 'properties'"),
        ({"type": "object", "minProperties": 2}, "named properties only"),
    ],
)
def test_an_unenforced_keyword_is_named_with_its_place(schema: Any, says: str) -> None:
    problem = find_unenforced(schema)
    assert problem is not None
    assert says in problem


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "array", "uniqueItems": False, "items": STRING},
        {"properties": {"not": STRING, "if": STRING, "uniqueItems": {"type": "boolean"}}},
        {"enum": [{"not": 1}, {"uniqueItems": True}]},
        {"const": {"if": 1}},
        {"$ref": "#/$defs/a", "description": "d", "$defs": {"a": STRING}},
        {"anyOf": [STRING, {"type": "null"}], "title": "t", "default": None},
        {"type": "object", "patternProperties": {"^a": STRING}, "minProperties": 1},
        {"properties": {"a": STRING, "b": {}}, "minProperties": 2, "additionalProperties": False},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "integer", "enum": [1, 2.0]},
        {"type": "number", "enum": [1, 2.5], "description": "d"},
        {"type": ["integer", "null"], "multipleOf": 3, "minimum": 2},
        {"items": STRING, "minItems": 2},
        {"type": "object", "propertyNames": {"pattern": "^a$"}},
    ],
)
def test_what_is_enforced_passes(schema: Any) -> None:
    assert find_unenforced(schema) is None


def test_depth_is_no_danger() -> None:
    schema: dict[str, Any] = STRING
    for _ in range(20_000):
        schema = {"type": "array", "items": schema}
    assert find_unenforced(schema) is None


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?!a)a", "(?<=a)b", r"(a)\1", "(?i)a"])
@pytest.mark.parametrize("place", ["pattern", "patternProperties"])
def test_a_pattern_that_can_only_be_half_enforced_is_refused(pattern: str, place: str) -> None:
    inner = {
        "pattern": {**STRING, "pattern": pattern},
        "patternProperties": {"type": "object", place: {pattern: {}}},
    }
    schema = {"type": "array", "items": inner[place]}
    with pytest.raises(RuntimeError, match="not supported"):
        schema_grammar(json.dumps(schema))
    schema_grammar(json.dumps(schema).replace(json.dumps(pattern), '"a+"'))


@pytest.mark.parametrize("literal", ["1e400", "-1e400", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("rest", ['"type": "integer", "const"', '"format": "date", "default"'])
def test_a_number_that_is_not_finite_is_refused(literal: str, rest: str) -> None:
    with pytest.raises(BadConstraint, match=f"{literal}, which is no finite number"):
        schema_grammar(f"{{{rest}: {literal}}}")
