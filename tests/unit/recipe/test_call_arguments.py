"""Arguments of past calls keep the spelling that the model gave them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.encodings.call_arguments import split_arguments

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def parts(arguments: str) -> list[tuple[str, bool, str]]:
    return [(p.name, p.is_string, p.value) for p in split_arguments(arguments)]


def test_values_are_cut_out_as_they_are_spelled() -> None:
    spelled = ' {"a": 1.50, "b": [ 1 ,2e0], "c": 123456789012345678901234567890, "d" : -0.0} '
    assert parts(spelled) == [
        ("a", False, "1.50"),
        ("b", False, "[ 1 ,2e0]"),
        ("c", False, "123456789012345678901234567890"),
        ("d", False, "-0.0"),
    ]


def test_strings_are_their_text() -> None:
    spelled = json.dumps({"a\n": 'say "hi"\n', "é": "\U0001f600"})
    assert parts(spelled) == [("a\n", True, 'say "hi"\n'), ("é", True, "\U0001f600")]


def test_compact_text_gets_the_spacing_of_models_and_keeps_its_digits() -> None:
    compact = '{"a":[1.50,{"k":"x,y:z"},[]],"b":"x,y","c":1e999}'
    assert parts(compact) == [
        ("a", False, '[1.50, {"k": "x,y:z"}, []]'),
        ("b", True, "x,y"),
        ("c", False, "1e999"),
    ]
    assert parts('{"a":["\\u00e9\\/\\n"]}') == [("a", False, '["é/\\n"]')]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[1]",
        '"text"',
        "null",
        '{"a": 1} {}',
        '{"a": 1,}',
        '{"a": 012}',
        '{"a": NaN}',
        '{"a": tru}',
        "{'a': 1}",
        '{"a": "line\nbreak"}',
        '{"a": "\\ud800"}',
        '{"a": {"b": "\\ude00"}}',
        '{"a": ' + "[" * 200 + "]" * 200 + "}",
        "{" * 100_000,
    ],
)
def test_what_is_no_object_stays_one_text(text: str) -> None:
    assert parts(text) == [("arguments", True, text)]


def test_of_a_repeated_name_the_last_value_counts_at_the_first_place() -> None:
    assert parts('{"a": 1, "b": 2, "a": 3}') == [("a", False, "3"), ("b", False, "2")]


@given(value=st.dictionaries(st.text(max_size=5), JSON, max_size=4), compact=st.booleans())
@settings(max_examples=100, deadline=None)
def test_nothing_is_lost_or_added(value: dict[str, object], compact: bool) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    spelled = json.dumps(value, ensure_ascii=False, separators=separators)
    found = {
        name: text if is_string else json.loads(text) for name, is_string, text in parts(spelled)
    }
    assert found == value
    assert list(found) == list(value)


def test_a_megabyte_takes_no_time() -> None:
    items = [{"path": f"/a/{i}", "n": i, "text": 'x" ' * 9} for i in range(12_000)]
    spelled = json.dumps({"items": items}, separators=(",", ":"))
    start = time.process_time()
    ((_, _, value),) = parts(spelled)
    assert time.process_time() - start < 5
    assert json.loads(value) == items
