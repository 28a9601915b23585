"""JSON on request: an object of what the request says."""

from __future__ import annotations

import json
from typing import Any

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Answer, Exercise, Json, Turn, user

_KINDS: dict[str, tuple[str, ...]] = {
    "string": ("name", "city", "animal", "colour", "food", "owner", "title"),
    "integer": ("age", "count", "number", "size", "year", "price"),
    "boolean": ("active", "open", "new"),
}
_KIND_OF = {key: kind for kind, names in _KINDS.items() for key in names}
_POOLS: dict[str, tuple[str, ...]] = {
    "animal": words.ANIMALS,
    "colour": words.COLOURS,
    "food": words.FOODS,
}


def json_object(draw: Draw) -> Exercise:
    value = draw.on_side(lambda: _object(draw), json.dumps)
    shown = [f"{key} {_spoken(found)}" for key, found in value.items()]
    listed = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    question = draw.one(
        ("Give me a JSON object with {0}.", "Write JSON: {0}.", "As JSON please: {0}.")
    )
    turn = Turn((user(question.format(listed)),), Answer(json.dumps(value, ensure_ascii=False)))
    return Exercise("json", (turn,), response_format=_format(draw, value))


def _object(draw: Draw) -> dict[str, Any]:
    keys = draw.some([*_KIND_OF], draw.between(1, 4))
    return {key: _value(draw, key, _KIND_OF[key]) for key in keys}


def _value(draw: Draw, key: str, kind: str) -> Any:
    if kind == "integer":
        return draw.one((draw.below(100), int(draw.code(3)), int(draw.code(4))))
    if kind == "boolean":
        return draw.chance(0.5)
    return draw.one(_POOLS[key]) if key in _POOLS else draw.name()


def _spoken(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _format(draw: Draw, value: dict[str, Any]) -> Json | None:
    choice = draw.below(3)
    if choice == 0:
        return None
    if choice == 1:
        return {"type": "json_object"}
    schema = {
        "type": "object",
        "properties": {key: {"type": _KIND_OF[key]} for key in value},
        "required": list(value),
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
