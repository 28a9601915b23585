"""Schemas made to hurt: each has to be refused with a clean 400, or answered, and soon."""

from __future__ import annotations

import random
from typing import Any

Schema = Any


def hostile(number: int) -> Schema:
    """One of ten kinds, larger or smaller by the number."""
    rng = random.Random(number)
    kinds = (
        _deep, _wide, _huge_enum, _cycle, _reference_maze, _catastrophic_pattern, _huge_repeat,
        _nested_unions, _nonsense, _wrong_types,
    )  # fmt: skip
    return kinds[number % len(kinds)](rng)


def _deep(rng: random.Random) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(rng.choice((50, 300))):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _wide(rng: random.Random) -> Schema:
    names = [f"p{i}" for i in range(rng.choice((2000, 20_000)))]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


def _huge_enum(rng: random.Random) -> Schema:
    return {"enum": [f"{rng.random():.17f}" * 3 for _ in range(rng.choice((5000, 40_000)))]}


def _cycle(rng: random.Random) -> Schema:
    """References that lead to each other and nowhere else."""
    size = rng.choice((1, 2, 50))
    ring = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % size}"} for i in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": ring}


def _reference_maze(rng: random.Random) -> Schema:
    """Twice as many ways at every level."""
    size = rng.choice((20, 60))
    ways = [{"$ref": f"#/$defs/d{i + 1}"} for i in range(size)]
    maze: Schema = {
        f"d{i}": {"anyOf": [way, {"type": "array", "items": way}]} for i, way in enumerate(ways)
    }
    maze[f"d{size}"] = {"type": "null"}
    return {"$ref": "#/$defs/d0", "$defs": maze}


def _catastrophic_pattern(rng: random.Random) -> Schema:
    patterns = ("^(a+)+$", "^(a|a)*b$", "^(([a-z])+.)+[A-Z]([a-z])+$", "^(a?){50}a{50}$")
    return {"type": "string", "pattern": rng.choice(patterns) + "x" * rng.randint(0, 3)}


def _huge_repeat(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
            {"type": "string", "minLength": 10**9, "maxLength": 10**9},
            {"type": "array", "items": {"type": "null"}, "minItems": 10**8, "maxItems": 10**8},
            {"type": "integer", "minimum": -(10**400), "maximum": 10**400},
        )
    )


def _nested_unions(rng: random.Random) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(rng.choice((10, 14))):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


def _nonsense(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"type": "nonsense"},
            {"type": "object", "properties": 5},
            {"enum": "not a list"},
            {"$ref": "https://example.com/schema.json"},
            {"$ref": "#/nowhere"},
            {"type": "string", "pattern": "[unclosed"},
            {"minLength": "three", "type": "string"},
        )
    )


def _wrong_types(rng: random.Random) -> Schema:
    return rng.choice(([], "text", 7, None, {"type": "object", "required": "a"}, {"anyOf": []}))
