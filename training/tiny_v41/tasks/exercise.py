"""What an exercise is: questions as a client asks them, with the answers wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
PICTURE_URL = "https://pictures.invalid/{number}.png"
"""Stands in a message for one of an exercise's pictures."""


@dataclass(frozen=True)
class Call:
    """A tool call wanted. arguments: in the order they are to be written."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the assistant is to say."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    """Before all else, in thinking mode."""
    key: str = ""
    """The part of the content that matters; empty = all of it."""


@dataclass(frozen=True)
class Turn:
    """Messages of the client, as in a Chat Completions body, and the answer to them."""

    messages: tuple[Json, ...]
    answer: Answer


@dataclass(frozen=True)
class Shape:
    """One thing on a picture."""

    colour: str
    form: str
    row: int
    column: int


@dataclass(frozen=True)
class Picture:
    """Shapes in the cells of a square grid."""

    cells: int
    shapes: tuple[Shape, ...]
    background: int
    """Grey, 0..255"""
    jitter: int
    """Seed of small differences of size and place"""


@dataclass(frozen=True)
class Exercise:
    """A conversation of one family of tasks."""

    family: str
    turns: tuple[Turn, ...]
    tools: tuple[Json, ...] = ()
    response_format: Json | None = None
    thinks: bool = False
    pictures: tuple[Picture, ...] = field(default=())

    def body(self, model: str, num_turns: int | None = None) -> Json:
        """A Chat Completions body that asks the question of a turn, earlier answers given.

        num_turns: up to and with which turn; None = the last.
        """
        count = len(self.turns) if num_turns is None else num_turns
        messages: list[Json] = []
        number = 0
        for turn in self.turns[:count]:
            messages += turn.messages
            if turn is not self.turns[count - 1]:
                messages.append(_spoken(turn.answer, number))
                number += len(turn.answer.calls)
        body: Json = {"model": model, "messages": messages}
        if self.tools:
            body["tools"] = list(self.tools)
        if self.response_format is not None:
            body["response_format"] = self.response_format
        if self.thinks:
            body["thinking"] = {"type": "enabled"}
        return body


def _spoken(answer: Answer, first_call: int) -> Json:
    """An answer as a message of the past."""
    message: Json = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{first_call + place}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for place, call in enumerate(answer.calls)
        ]
    return message


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def tool_result(number: int, text: str) -> Json:
    """number: of the call in the conversation."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}
