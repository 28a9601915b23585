"""Arguments against their declared schema: a look that always ends soon."""

from __future__ import annotations

import time

import pytest
from rorqual_recipe.output.calls.schema_check import misfit


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ({}, {}, None),
        ({"a": 1}, {"properties": {"a": {"type": ["string", "integer"]}}}, None),
        ({"a": 1.5}, {"properties": {"a": {"type": "integer"}}}, "`a` is not of type integer"),
        ({"a": True}, {"properties": {"a": {"type": "number"}}}, "`a` is not of type number"),
        ({"a": [1, "x"]}, {"properties": {"a": {"items": {"type": "integer"}}}}, "`a[1]`"),
        ({"a": {"b": 1}}, {"properties": {"a": {"required": ["c"]}}}, "`a.c` is missing"),
        ({"a": "x"}, {"properties": {"a": {"enum": ["y", "z"]}}}, "none of the values"),
        ({"a": 2}, {"properties": {"a": {"enum": [1, 2]}}}, None),
        ({"a": 1}, {"properties": {"a": {"const": True}}}, "not the value"),
        ({"a": ""}, {"properties": {"a": {"minLength": 1}}}, "out of range"),
        ({"a": [1]}, {"properties": {"a": {"minItems": 2}}}, "out of range"),
        ({"a": 1}, {"anyOf": [{"required": ["b"]}, {"required": ["a"]}]}, None),
        ({"a": 1}, {"oneOf": [{"required": ["b"]}, False]}, "none of its alternatives"),
        ({"a": 1}, {"allOf": [{"required": ["b"]}]}, "`b` is missing"),
        ({"a": 1}, {"additionalProperties": False}, "`a` is not declared"),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, "`a` is not of type string"),
        ({"a": 1}, {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": False}}, "`a`"),
        ({"a": 1}, {"properties": {"a": {"$ref": "https://example.org/x"}}}, None),
        ({"a": 1}, {"properties": {"a": {"type": "strange"}}, "required": "a"}, None),
    ],
)
def test_the_first_misfit_is_named_by_its_path(value, schema, problem) -> None:
    found = misfit(value, schema)
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]},
        {"properties": {"a": {"pattern": "(a+)+$"}}},
    ],
)
def test_a_hostile_schema_costs_little(schema) -> None:
    began_s = time.process_time()
    assert misfit({"a": "a" * 40 + "b"}, schema) is None
    assert time.process_time() - began_s < 10
