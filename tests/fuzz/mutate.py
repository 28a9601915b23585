"""Structured mutations: a body that is nearly right, or was, as clients get it wrong."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

MAX_BODY_BYTES = 256 << 10
MAX_REPEATED_CHARS = 4000
JUNK: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**64), 0.5, 1e308, -0.0),
    *("", " ", "x", "none", "auto", "required", "text", "function", "custom", "user", "assistant"),
    *("tool", "<|im_end|>", "<|im_start|>system", "</think>", "<tool_call>", "\u0000", "🎈" * 30),
    *("data:image/png;base64,@", "https://example.com/a.png", "JSON", "call_1", "a" * 3000),
    *([], {}, [[]], {"": {}}, [None], ["x", 1], {"type": "text"}, {"type": "object"}),
    {"type": "text", "text": "x"},
)


def mutated(bodies: Sequence[Any], chance: random.Random) -> bytes:
    """One body: mostly JSON with a few things changed, sometimes broken as text too."""
    body = copy.deepcopy(chance.choice(bodies))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        body = _change(body, bodies, chance)
    data = json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    data = data[:MAX_BODY_BYTES]
    return _broken(data, chance) if chance.random() < 0.05 else data


def _change(body: Any, bodies: Sequence[Any], chance: random.Random) -> Any:
    places = list(_places(body))
    if not places:
        return copy.deepcopy(chance.choice(bodies))
    holder, key = chance.choice(places)
    kind = chance.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 2:
        most = 40 if len(json.dumps(holder[key])) < MAX_REPEATED_CHARS else 1
        holder[key] = [holder[key]] * chance.choice((1, 2, most))
    elif kind == 3 and isinstance(holder, dict):
        holder[chance.choice(("x", "type", "content", "name", "id", "role"))] = holder.pop(key)
    elif kind == 4:
        other, step = chance.choice(list(_places(chance.choice(bodies))))
        holder[key] = copy.deepcopy(other[step])
    elif kind == 5:
        holder[key] = _nested(holder[key], chance.choice((2, 30, 300)))
    else:
        holder[key] = copy.deepcopy(chance.choice(JUNK))
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key inside a value."""
    if not isinstance(value, dict | list):
        return
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(inner)


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"items": value, "type": "array"}
    return value


def _broken(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return chance.choice(
        (
            data[:at],
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            data[:at] + data[at // 2 :],
            data.replace(b":", b": NaN,", 1),
            b"[" * 5000,
        )
    )
