"""JSON in the caller's own spelling."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.protocols.json_spelling import SpelledValues, model_spelling

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
STYLES = st.fixed_dictionaries(
    {
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", " : ")]),
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 2]),
    }
)


@given(VALUES, STYLES)
@settings(max_examples=300, deadline=None)
def test_a_respelled_text_means_the_same(value, style) -> None:
    assert json.loads(model_spelling(json.dumps(value, **style))) == value


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_compact_texts_become_what_models_write(value) -> None:
    compact = json.dumps(value, separators=(",", ":"))
    assert model_spelling(compact) == json.dumps(value, ensure_ascii=False)


def test_numbers_and_spaces_are_never_touched() -> None:
    text = '{"a":  1.50, "b": -0.0,"c": [1E+2,12345678901234567890123] }'
    assert model_spelling(text) == text


@given(
    st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3) | VALUES, max_size=4),
    STYLES,
)
@settings(max_examples=200, deadline=None)
def test_values_are_found_in_any_style_of_writing(items, style) -> None:
    text = json.dumps({"before": items, "a": items, "after": 1}, **style)
    found = SpelledValues(text).find("a", "*", "x")
    expected = {
        f"a[{index}].x": item["x"]
        for index, item in enumerate(items)
        if isinstance(item, dict) and "x" in item
    }
    assert {path: json.loads(spelled) for path, spelled in found.items()} == expected
    assert all(spelled in text for spelled in found.values())


def test_the_last_of_equal_names_counts() -> None:
    assert SpelledValues('{"a":{"x":1},"a":{"x":2,"x":3.0}}').find("a", "x") == {"a.x": "3.0"}
    assert SpelledValues('{"\\u0061": 7}').find("a") == {"a": "7"}
