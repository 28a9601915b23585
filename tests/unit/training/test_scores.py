"""Scores: right answers are right, others are not, and what is asked is held out and repeatable."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from training.tiny_v41.grading import is_right
from training.tiny_v41.scores import body_of, held_out
from training.tiny_v41.tasks.exercise import Answer, Exercise
from training.tiny_v41.tasks.mixture import FAMILIES
from training.tiny_v41.tasks.shapes import paint


def message(answer: Answer) -> dict[str, object]:
    calls = [
        {"type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in answer.calls
    ]
    return {"role": "assistant", "content": answer.content, "tool_calls": calls or None}


GROUPS = {group.name: group.exercises for group in held_out(3, 6)}


@pytest.mark.parametrize("name", [*GROUPS])
def test_the_answer_wanted_is_right_and_that_of_another_exercise_is_wrong(name: str) -> None:
    exercises = GROUPS[name]
    for found in exercises:
        assert is_right(found, message(found.turns[-1].answer))
    answers = {str(e.turns[-1].answer.calls) + e.turns[-1].answer.content for e in exercises}
    if len(answers) == len(exercises):
        pairs = zip(exercises, exercises[1:] + exercises[:1], strict=True)
        assert not any(is_right(one, message(other.turns[-1].answer)) for one, other in pairs)


def test_every_family_is_asked_and_the_same_seed_asks_the_same() -> None:
    assert {name.split()[0] for name in GROUPS} == set(FAMILIES)
    again = {group.name: group.exercises for group in held_out(3, 6)}
    assert again == GROUPS
    other = {group.name: group.exercises for group in held_out(4, 6)}
    assert other["tools"] != GROUPS["tools"]


def test_a_call_with_another_argument_or_broken_arguments_is_wrong() -> None:
    found: Exercise = next(e for e in GROUPS["tools"] if e.turns[-1].answer.calls)
    given = message(found.turns[-1].answer)
    call = given["tool_calls"][0]["function"]  # type: ignore[index]
    right = call["arguments"]
    for spoiled in (right.replace(": ", ': "no",', 1), right[:-1], "{}"):
        call["arguments"] = spoiled
        assert not is_right(found, given)


def test_a_posted_picture_is_the_one_that_was_painted() -> None:
    found = GROUPS["shapes"][0]
    parts = body_of(found, "m")["messages"][0]["content"]
    (url,) = (part["image_url"]["url"] for part in parts if part["type"] == "image_url")
    png = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), paint(found.pictures[0]))
