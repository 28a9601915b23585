"""Whether an answer is the one wanted, by what its family asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from training.tiny_v41.tasks.exercise import Answer, Exercise


def is_right(exercise: Exercise, message: Mapping[str, Any]) -> bool:
    """message: the assistant's, as Chat Completions answers the last turn."""
    wanted, content = exercise.turns[-1].answer, message.get("content") or ""
    if wanted.calls:
        return calls_of(message) == _wanted_calls(wanted)
    if message.get("tool_calls"):
        return False
    if exercise.family == "json":
        return _same_json(content, wanted.content)
    if wanted.key:
        return wanted.key in content
    return bool(content.strip() == wanted.content)


def _wanted_calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, dict(call.arguments)) for call in answer.calls]


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names and arguments; arguments that are no JSON stay text."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = function["arguments"]
        calls.append((function["name"], arguments))
    return calls


def _same_json(found: str, wanted: str) -> bool:
    try:
        return bool(json.loads(found) == json.loads(wanted))
    except ValueError:
        return False
