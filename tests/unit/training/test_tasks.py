"""Exercises: the same seed, the same exercises; nothing held out is ever trained on."""

from __future__ import annotations

import json

import pytest

from training.tiny_v41.tasks.draw import Draw, is_held_out
from training.tiny_v41.tasks.exercise import Exercise
from training.tiny_v41.tasks.mixture import FAMILIES, exercise
from training.tiny_v41.tasks.shapes import paint


def drawn(family: str, *, held_out: bool, count: int = 60) -> list[Exercise]:
    draws = (Draw(str(number), held_out=held_out) for number in range(count))
    return [exercise(family, draw, 150) for draw in draws]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_exercises(family: str) -> None:
    assert drawn(family, held_out=False) == drawn(family, held_out=False)


@pytest.mark.parametrize("held_out", [False, True])
def test_names_and_codes_stay_on_their_side(held_out: bool) -> None:
    draw = Draw("names", held_out=held_out)
    assert all(is_held_out(name) == held_out for name in draw.names(300))
    assert all(is_held_out(draw.code(4)) == held_out for _ in range(300))


@pytest.mark.parametrize("family", ["recall", "tools", "json", "sort", "arithmetic", "shapes"])
def test_no_held_out_question_is_trained_on(family: str) -> None:
    def asked(found: list[Exercise]) -> set[str]:
        return {json.dumps(e.body("")["messages"]) + str(e.pictures) for e in found}

    trained, held_out = (asked(drawn(family, held_out=side, count=300)) for side in (False, True))
    assert not trained & held_out


def test_a_recalled_fact_stands_in_the_context_once_before_it_is_asked_for() -> None:
    for found in drawn("recall", held_out=True):
        messages = found.body("")["messages"]
        text = "\n".join(message["content"] for message in messages[: len(messages)])
        assert text.count(found.turns[-1].answer.content) == 1


def test_sums_and_orders_are_right() -> None:
    for found in drawn("arithmetic", held_out=False):
        sum_, _, value = found.turns[-1].answer.content.rpartition(" = ")
        a, sign, b = sum_.split()
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(
            value
        )
    for found in drawn("sort", held_out=False):
        question = found.turns[-1].messages[-1]["content"]
        items = question.rpartition(": ")[2].split(", ")
        answer = found.turns[-1].answer.content.split(", ")
        assert sorted(answer) == sorted(items)


def test_calls_give_the_arguments_that_the_request_names() -> None:
    for found in drawn("tools", held_out=True):
        request = found.turns[0].messages[-1]["content"]
        declared = {tool["function"]["name"] for tool in found.tools}
        for call in found.turns[0].answer.calls:
            assert call.name in declared
            for name, value in call.arguments.items():
                spelled = json.dumps(value) if isinstance(value, bool) else str(value)
                assert f"{name} {spelled}" in request


def test_a_picture_shows_each_shape_in_its_cell() -> None:
    for found in drawn("shapes", held_out=True, count=20):
        (picture,) = found.pictures
        pixels = paint(picture)
        assert pixels.shape == (126, 126, 3)
        cells = pixels.reshape(3, 42, 3, 42, 3).transpose(0, 2, 1, 3, 4)
        changed = {
            (row, column)
            for row in range(3)
            for column in range(3)
            if (cells[row, column] != picture.background).any()
        }
        assert changed == {(shape.row, shape.column) for shape in picture.shapes}
