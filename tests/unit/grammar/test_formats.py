"""What is written in a format is valid in it, and what a schema says besides is kept."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_grammar.formats import FORMATS
from rorqual_grammar.json_grammar import schema_grammar
from xgrammar.testing import _is_grammar_accept_string

WRITTEN_OUT = sorted(name for name, known in FORMATS.items() if known.pattern)
VALID = {
    "date": ["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31", "1900-02-28", "2023-11-30"],
    "time": ["00:00:00Z", "23:59:59.5+14:00"],
    "date-time": ["2024-02-29T07:08:09Z", "1999-12-31T23:59:59.123456-11:30"],
    "ipv4": ["0.0.0.0", "255.249.199.99", "1.20.100.9"],
    "ipv6": [
        *("::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"),
        *("::ffff:192.0.2.1", "::1.2.3.4", "ABCD::"),
    ],
    "hostname": ["a", "www.example.com", "x-1.y"],
    "email": ["a@example.com"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
}
INVALID = {
    "date": ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-2-3", "2024-00-10"],
    "time": ["24:00:00Z", "12:00:60Z", "12:00:00"],
    "date-time": ["2023-02-29T07:08:09Z", "2024-01-01 07:08:09Z"],
    "ipv4": ["42.35.201.000", "1.2.3", "1.2.3.256", "01.2.3.4"],
    "ipv6": ["1:2:3:4:5:6:7", "1::2::3", "::ffff:01.2.3.4", "1:2:3:4:5:6:7::8", ":1", "12345::"],
}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return bool(_is_grammar_accept_string(schema_grammar(json.dumps(schema)), json.dumps(value)))


def is_valid(name: str, text: str) -> bool:
    if name in ("date-time", "time"):
        return datetime.fromisoformat(text if "T" in text else f"2024-01-01T{text}") is not None
    return jsonschema.FormatChecker().conforms(text, name)


@pytest.mark.parametrize("name", WRITTEN_OUT)
@settings(max_examples=300)
@given(data=st.data())
def test_every_string_of_a_pattern_is_valid_and_within_its_lengths(
    name: str, data: st.DataObject
) -> None:
    known = FORMATS[name]
    assert known.pattern is not None
    text = data.draw(st.from_regex(re.compile(known.pattern, re.ASCII), fullmatch=True))
    assert is_valid(name, text)
    assert known.shortest <= len(text) <= known.longest


@pytest.mark.parametrize("name", VALID)
def test_a_format_is_enforced_wherever_it_stands(name: str) -> None:
    here = {"type": "string", "format": name}
    nested = {"type": "array", "items": {"anyOf": [{"type": ["string", "null"], "format": name}]}}
    for text in VALID[name]:
        assert accepts(here, text), text
        assert accepts(nested, [text, None]), text
    for text in [*INVALID.get(name, ()), "", "@"]:
        assert not accepts(here, text), text
        assert not accepts(nested, [text]), text


def test_pattern_and_lengths_outrank_a_format() -> None:
    ipv4 = {"type": "string", "format": "ipv4"}
    assert accepts({**ipv4, "pattern": "^a$"}, "a")
    assert not accepts({**ipv4, "pattern": "^a$"}, "1.2.3.4")
    assert accepts({**ipv4, "minLength": 7, "maxLength": 15}, "1.2.3.4")
    assert not accepts({**ipv4, "minLength": 7, "maxLength": 15}, "1.2.3.04")
    assert accepts({**ipv4, "maxLength": 14}, "x" * 14)
    assert not accepts({**ipv4, "maxLength": 14}, "1" * 15)
    uri = {"type": "string", "format": "uri"}
    assert accepts({**uri, "minLength": 1}, "a:b")
    assert not accepts({**uri, "minLength": 1}, "a b")
    assert not accepts({**uri, "maxLength": 5}, "http://a")


def test_what_only_looks_like_a_format_is_left_alone() -> None:
    named = {"type": "object", "properties": {"format": {"const": "ipv4"}}, "required": ["format"]}
    assert accepts(named, {"format": "ipv4"})
    compact = '{"format":"ipv4"}'  # as the compiler writes a value
    assert _is_grammar_accept_string(schema_grammar(f'{{"enum": [{compact}]}}'), compact)
    assert accepts({"type": "string", "format": "of our own"}, "anything")
