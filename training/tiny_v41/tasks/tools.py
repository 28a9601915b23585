"""Tools: calls with given arguments, and answers from their results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Call, Exercise, Json, Turn, tool_result, user

_TYPES = {"text": "string", "number": "integer", "flag": "boolean"}


@dataclass(frozen=True)
class _Tool:
    verb: str
    noun: str
    parameters: dict[str, str]
    """Kind by name."""

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.noun}"

    def declared(self) -> Json:
        properties = {name: {"type": _TYPES[kind]} for name, kind in self.parameters.items()}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": f"{self.verb.capitalize()} the {self.noun}.",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                },
            },
        }


@dataclass(frozen=True)
class _Request:
    tools: tuple[_Tool, ...]
    calls: tuple[Call, ...]
    text: str


def calling(draw: Draw, most_tools: int = 3) -> Exercise:
    """One call, or two at once; then perhaps the result and an answer from it."""
    asked = draw.on_side(lambda: _request(draw, most_tools), lambda request: request.text)
    thinks = draw.chance(0.2)
    names = " and ".join(call.name for call in asked.calls)
    answer = Answer(calls=asked.calls, reasoning=f"I call {names}." if thinks else "")
    turns = [Turn((user(asked.text),), answer)]
    if draw.chance(0.5):
        turns.append(_result_turn(draw, len(asked.calls), thinks=thinks))
    declared = tuple(tool.declared() for tool in asked.tools)
    return Exercise("tools", tuple(turns), tools=declared, thinks=thinks)


def _request(draw: Draw, most_tools: int) -> _Request:
    tools = _tools(draw, draw.between(1, most_tools))
    picked = draw.some(tools, 2) if len(tools) > 1 and draw.chance(0.2) else [draw.one(tools)]
    calls = tuple(
        Call(tool.name, {name: _value(draw, kind) for name, kind in tool.parameters.items()})
        for tool in picked
    )
    sentences = [
        _sentence(draw, tool, call.arguments) for tool, call in zip(picked, calls, strict=True)
    ]
    return _Request(tuple(tools), calls, " Then ".join(sentences))


def _tools(draw: Draw, count: int) -> list[_Tool]:
    made: dict[str, _Tool] = {}
    while len(made) < count:
        verb, noun = draw.one(words.TOOL_VERBS), draw.one(words.TOOL_NOUNS)
        kinds = draw.some(
            [(name, "text") for name in words.TEXT_PARAMETERS]
            + [(name, "number") for name in words.NUMBER_PARAMETERS]
            + [(name, "flag") for name in words.FLAG_PARAMETERS],
            draw.between(1, 3),
        )
        tool = _Tool(verb, noun, dict(kinds))
        made.setdefault(tool.name, tool)
    return list(made.values())


def _value(draw: Draw, kind: str) -> Any:
    if kind == "number":
        return draw.one((draw.below(100), int(draw.code(3)), int(draw.code(4))))
    if kind == "flag":
        return draw.chance(0.5)
    return draw.name() if draw.chance(0.7) else draw.one(words.WORDS)


def _sentence(draw: Draw, tool: _Tool, arguments: Mapping[str, Any]) -> str:
    shown = [f"{name} {_spoken(value)}" for name, value in arguments.items()]
    given = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    verb = tool.verb if draw.chance(0.5) else tool.verb.capitalize()
    before = "Please " if not verb[0].isupper() else ""
    return f"{before}{verb} the {tool.noun} with {given}."


def _spoken(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _result_turn(draw: Draw, num_calls: int, *, thinks: bool) -> Turn:
    messages, sentences = [], []
    for number in range(num_calls):
        key = draw.one(("result", "status", "value", "answer"))
        value: Any = draw.one((draw.name(), draw.one(words.WORDS), int(draw.code(3))))
        messages.append(tool_result(number, json.dumps({key: value})))
        sentences.append(f"The {key} is {value}.")
    reasoning = "The result is there." if thinks else ""
    return Turn(tuple(messages), Answer(" ".join(sentences), reasoning=reasoning))
