"""Events of Responses have the reference's shape, member by member.

What differs on purpose is taken out of both sides first; everything else has to be equal. Deltas
are compared put together, so their numbers are not; that numbers have no gap is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dsml_model_dir import make_dsml_model_dir
from tests.vectors.stream_answers import StreamAnswers
from tests.vectors.stream_forms import form_of_stream
from tests.vectors.stream_generator import StreamGenerator

NUM_CASES = 250
Event = dict[str, Any]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list, list]]:
    """Events of both sides for every made-up stream that says the same on both."""
    return list(_compared(tmp_path_factory.mktemp("shape")))


def _compared(directory: Path) -> Iterator[tuple[str, list[Event], list[Event]]]:
    tokenizer = make_dsml_model_dir(directory, encoding="deepseek-v4.1") / "tokenizer.json"
    generator, answers = StreamGenerator("responses", 7, tokenizer), StreamAnswers(tokenizer)
    for number in range(NUM_CASES):
        case = generator.case(number)
        ours = answers.frames(case)
        theirs = [(e["event"], e["data"]) for push in case["expect"]["pushes"] for e in push]
        if form_of_stream("responses", ours) == form_of_stream("responses", theirs):
            yield case["id"], [data for _, data in ours], [data for _, data in theirs]
    answers.close()


def _shape(events: list[Event]) -> list[Event]:
    """The events without what differs on purpose, adjoining deltas as one."""
    shaped: list[Event] = []
    for event in events:
        kind = event["type"]
        if shaped and shaped[-1]["type"] == kind and kind.endswith(".delta"):
            shaped[-1]["delta"] += event["delta"]
        else:
            shaped.append(_without_intended(event))
    return shaped


def _without_intended(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_intended(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    left_out = {
        "sequence_number",  # deltas are cut elsewhere
        "call_id",  # theirs is random, ours is made of the request's id
        "encrypted_content",  # theirs is a placeholder; ours is real, and only there when asked for
        "cache_write_tokens",  # ours only: newer clients read it
        "warnings",  # ours only
        "effort",  # ours is what was asked for, theirs its default
    }
    if value.get("object") == "response":
        left_out |= {"id", "model", "created_at", "completed_at"}  # of the one who runs it
    return {name: _without_intended(part) for name, part in value.items() if name not in left_out}


def _finished_calls(events: list[Event]) -> list[Event]:
    """A call that was complete stays so when the answer is cut behind it; not with theirs."""
    for event in events:
        items = [event.get("item") or {}, *event.get("response", {}).get("output", ())]
        for item in items:
            if item.get("type", "").endswith("_call"):
                item.pop("status", None)
    return events


def test_enough_streams_say_the_same(compared) -> None:
    assert len(compared) > NUM_CASES / 4
    kinds = {event["type"] for _, ours, _ in compared for event in ours}
    assert len(kinds) >= 12


def test_events_are_those_of_the_reference_member_by_member(compared) -> None:
    for case_id, ours, theirs in compared:
        assert _finished_calls(_shape(ours)) == _finished_calls(_shape(theirs)), case_id
