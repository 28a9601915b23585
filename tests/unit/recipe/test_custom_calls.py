"""Free text of custom tools, in formats that wrap it into JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.output.calls.custom_input import unwrapped
from rorqual_recipe.output.events import FinishReason, ToolArgumentsDelta, ToolCallEnded
from rorqual_recipe.output.plan import AnswerPlan

from tests.unit.recipe.answers import read

PLAN = AnswerPlan(tool_format="hermes", tools={"sh": Tool("sh", kind=ToolKind.CUSTOM)})


def call(text: str, *, cut: int | None = None) -> tuple[str, ToolCallEnded]:
    """The deltas together, and the end of the one call in an answer."""
    written = json.dumps({"input": text})
    answer = f'<tool_call>\n{{"name": "sh", "arguments": {written}}}\n</tool_call>'
    if cut is not None:
        answer = answer[: answer.index(written) + cut]
    events = read(answer, PLAN, FinishReason.STOP if cut is None else FinishReason.LENGTH)
    (ended,) = (event for event in events if isinstance(event, ToolCallEnded))
    deltas = (event.text for event in events if isinstance(event, ToolArgumentsDelta))
    return "".join(deltas), ended


@pytest.mark.parametrize("text", ["ls -l", "", 'a"b\\c\n</tool_call>', "深 👩", '{"input": 1}'])
def test_the_text_comes_as_it_was_meant(text: str) -> None:
    deltas, ended = call(text)
    assert deltas == ended.arguments == text
    assert ended.problem is None


def test_what_is_wrapped_otherwise_stays_as_it_is() -> None:
    for arguments in ('{"input": 1}', '{"input": "a", "b": 1}', "{}", "[" * 10_000):
        assert unwrapped(arguments) == arguments


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=20), cut=st.integers(11, 60))
def test_a_cut_leaves_the_beginning_of_the_text(text: str, cut: int) -> None:
    written = json.dumps({"input": text})
    deltas, ended = call(text, cut=min(cut, len(written) - 2))
    assert ended.is_cut
    assert text.startswith(deltas)
    assert deltas == ended.arguments
