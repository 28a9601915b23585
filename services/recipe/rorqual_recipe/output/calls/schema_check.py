"""Do arguments fit the schema they were declared with? A bounded look, not a validator.

Patterns and formats are left out: a client's pattern must not keep this process busy.
"""

from collections.abc import Callable, Mapping
from typing import Any

MAX_STEPS = 20_000
MAX_DEPTH = 40

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _is_integer(value),
}


class _TooMuch(Exception):
    """The look has taken enough steps."""


def misfit(value: Any, schema: Any) -> str | None:
    """The first thing about a value that its JSON Schema doesn't allow; None when it fits."""
    try:
        return _Look(schema).at(value, schema, "", 0)
    except _TooMuch:
        return None


class _Look:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_steps = 0

    def at(self, value: Any, schema: Any, path: str, depth: int) -> str | None:
        """As misfit, for the value at a path."""
        self._num_steps += 1
        if self._num_steps > MAX_STEPS or depth > MAX_DEPTH:
            raise _TooMuch
        if schema is False:
            return f"`{path or 'arguments'}` is not allowed"
        if not isinstance(schema, Mapping):
            return None
        if "$ref" in schema:
            return self.at(value, self._resolve(schema["$ref"]), path, depth + 1)
        return (
            _of_type(value, schema, path)
            or self._in_choices(value, schema, path, depth)
            or self._in_members(value, schema, path, depth)
            or self._in_items(value, schema, path, depth)
        )

    def _resolve(self, reference: Any) -> Any:
        """The part of the schema a local reference names; other references allow everything."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        found = self._root
        for key in filter(None, reference[1:].split("/")):
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return True
            found = found[key]
        return found

    def _in_choices(self, value: Any, schema: Any, path: str, depth: int) -> str | None:
        for part in _list(schema.get("allOf")):
            problem = self.at(value, part, path, depth + 1)
            if problem:
                return problem
        for key in ("anyOf", "oneOf"):
            parts = _list(schema.get(key))
            if parts and all(self.at(value, part, path, depth + 1) for part in parts):
                return f"`{path or 'arguments'}` fits none of its alternatives"
        return None

    def _in_members(self, value: Any, schema: Any, path: str, depth: int) -> str | None:
        if not isinstance(value, dict):
            return None
        for name in _list(schema.get("required")):
            if name not in value:
                return f"`{_join(path, name)}` is missing"
        declared = schema.get("properties")
        declared = declared if isinstance(declared, Mapping) else {}
        others = True if schema.get("patternProperties") else schema.get("additionalProperties")
        for name, member in value.items():
            inner = declared.get(name, True if others is None else others)
            if inner is False:
                return f"`{_join(path, name)}` is not declared"
            problem = self.at(member, inner, _join(path, name), depth + 1)
            if problem:
                return problem
        return None

    def _in_items(self, value: Any, schema: Any, path: str, depth: int) -> str | None:
        items = schema.get("items")
        if isinstance(value, list) and isinstance(items, Mapping):
            for index, item in enumerate(value):
                problem = self.at(item, items, f"{path}[{index}]", depth + 1)
                if problem:
                    return problem
        return None


def _of_type(value: Any, schema: Mapping[str, Any], path: str) -> str | None:
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else _list(kinds)
    known = [kind for kind in kinds if isinstance(kind, str) and kind in _TYPES]
    if known and len(known) == len(kinds) and not any(_TYPES[kind](value) for kind in known):
        return f"`{path or 'arguments'}` is not of type {' or '.join(known)}"
    choices = schema.get("enum")
    if isinstance(choices, list) and not any(_same(value, choice) for choice in choices):
        return f"`{path or 'arguments'}` is none of the values it may have"
    if "const" in schema and not _same(value, schema["const"]):
        return f"`{path or 'arguments'}` is not the value it must have"
    return _in_range(value, schema, path)


def _in_range(value: Any, schema: Mapping[str, Any], path: str) -> str | None:
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return None
    size = value if isinstance(value, int | float) else len(value)
    low, high = ("minimum", "maximum")
    if isinstance(value, str):
        low, high = ("minLength", "maxLength")
    elif isinstance(value, list):
        low, high = ("minItems", "maxItems")
    least, most = _number(schema.get(low)), _number(schema.get(high))
    if (least is not None and size < least) or (most is not None and size > most):
        return f"`{path or 'arguments'}` is out of range"
    return None


def _number(bound: Any) -> float | None:
    return bound if isinstance(bound, int | float) and not isinstance(bound, bool) else None


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
