"""Random schemas of the keywords that the docs say are enforced."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_NAMES = (
    "name",
    "age",
    "städte",
    "is_open",
    "a b",
    "x-y",
    "items",
    "$id2",
    "größe",
    "価格",
    "note",
)
_WORDS = ("red", "green", "ünïcode", 'a"quote', "back\\slash", "", "line\nbreak", "🐋", "null", "0")
_PATTERNS = (
    "^[A-Z]{2}[0-9]{3}$",
    "^(red|green|blue)$",
    "^\\d{1,3}-\\w{2,4}$",
    "^[^\\s]{3}$",
    "^a+b?$",
    "[0-9]{2}",
)
_FORMATS = ("date", "date-time", "time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri")


def generate(seed: int) -> Schema:
    """One schema; the same seed gives the same."""
    return _Maker(random.Random(seed)).object(depth=0)


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, Schema] = {}
        self._being_made: set[str] = set()

    def object(self, depth: int) -> Schema:
        """An object of some properties; at the root with all definitions that were used."""
        rng = self._rng
        names = rng.sample(_NAMES, rng.randint(1, 4))
        properties = {name: self.any(depth + 1) for name in names}
        schema: Schema = {"type": "object", "properties": properties}
        required = [name for name in names if rng.random() < 0.7]
        if required or rng.random() < 0.3:
            schema["required"] = required
        if rng.random() < 0.7:
            schema["additionalProperties"] = False
        if depth == 0 and self._definitions:
            schema["$defs"] = self._definitions
        return schema

    def any(self, depth: int) -> Schema:
        """A schema of any kind; deep down only plain ones."""
        plain = (self._string, self._number, self._integer, self._boolean, self._enum, self._const)
        deep = (
            *(self.object, self._array, self._tuple, self._union, self._reference, self._types),
            self._map,
        )
        kinds: tuple[Callable[[int], Schema], ...] = plain if depth >= 3 else (*plain, *deep)
        schema = self._rng.choice(kinds)(depth)
        if self._rng.random() < 0.2:
            schema = {**schema, "description": "anything", "title": "T"}
        return schema

    def _string(self, depth: int) -> Schema:
        rng = self._rng
        kind = rng.choice(("length", "pattern", "format", "most"))
        if kind == "pattern":
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        if kind == "format":
            least: Schema = {"minLength": 1} if rng.random() < 0.2 else {}
            return {"type": "string", "format": rng.choice(_FORMATS), **least}
        least = rng.randint(0, 4) if kind == "length" else 0
        bounds = {"minLength": least} if kind == "length" else {}
        return {"type": "string", **bounds, "maxLength": least + rng.randint(0, 12)}

    def _number(self, depth: int) -> Schema:
        rng = self._rng
        low = rng.choice((-100.5, -1, 0, 0.25, 3))
        keys = rng.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
        return {"type": "number", keys[0]: low, keys[1]: low + rng.choice((1, 7.5, 1000))}

    def _integer(self, depth: int) -> Schema:
        rng = self._rng
        if rng.random() < 0.2:
            return {"type": "integer"}
        low = rng.randint(-50, 50)
        keys = rng.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
        step = {"multipleOf": rng.choice((2, 3, 10))} if rng.random() < 0.2 else {}
        return {"type": "integer", keys[0]: low, keys[1]: low + rng.randint(25, 1000), **step}

    def _boolean(self, depth: int) -> Schema:
        return {"type": self._rng.choice(("boolean", "null"))}

    def _enum(self, depth: int) -> Schema:
        values: list[Any] = [*_WORDS, 1, -2.5, True, None, [1, "a"], {"k": 1}]
        return {"enum": self._rng.sample(values, self._rng.randint(1, 5))}

    def _const(self, depth: int) -> Schema:
        return {"const": self._rng.choice([*_WORDS, 42, None, {"a": [1]}])}

    def _array(self, depth: int) -> Schema:
        least = self._rng.randint(0, 2)
        most = least + self._rng.randint(0, 2)
        return {"type": "array", "items": self.any(depth + 1), "minItems": least, "maxItems": most}

    def _tuple(self, depth: int) -> Schema:
        parts = [self.any(depth + 1) for _ in range(self._rng.randint(1, 3))]
        number = len(parts)
        fixed = {"items": False, "minItems": number, "maxItems": number}
        return {"type": "array", "prefixItems": parts, **fixed}

    def _union(self, depth: int) -> Schema:
        parts = [self.any(depth + 1) for _ in range(self._rng.randint(2, 3))]
        if self._rng.random() < 0.2:
            return {"allOf": [parts[0]]}
        return {"anyOf": parts}

    def _map(self, depth: int) -> Schema:
        """Names that the model chooses."""
        rng = self._rng
        least = rng.randint(0, 1)
        counts = {"minProperties": least, "maxProperties": least + rng.randint(1, 2)}
        value = self.any(depth + 1)
        how: Schema = rng.choice(
            (
                {"additionalProperties": value},
                {"patternProperties": {"^[a-z]{1,5}$": value}, "additionalProperties": False},
                {"propertyNames": {"pattern": "^[a-z]{2,6}$"}, "additionalProperties": value},
            )
        )
        return {"type": "object", **how, **counts}

    def _types(self, depth: int) -> Schema:
        return {"type": self._rng.sample(["null", "boolean", "integer"], 2)}

    def _reference(self, depth: int) -> Schema:
        """To a definition; some of them contain themselves, behind something optional."""
        name = f"d{self._rng.randint(0, 2)}"
        if name in self._being_made:
            return self._boolean(depth)  # a value that needs itself has no end
        if name not in self._definitions:
            self._being_made.add(name)
            made = self.any(max(depth + 1, 2))
            if self._rng.random() < 0.4:
                made = {
                    "type": "object",
                    "properties": {"value": made, "next": {"$ref": f"#/$defs/{name}"}},
                    "required": ["value"],
                    "additionalProperties": False,
                }
            self._being_made.remove(name)
            self._definitions[name] = made
        return {"$ref": f"#/$defs/{name}"}
