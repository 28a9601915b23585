"""Refuses schemas that the grammar compiler would only half enforce.

An answer that breaks the schema it was asked for is worse than a clear refusal. The compiler drops
the keywords below without an error (measured with xgrammar 0.2.9), so they are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NEVER_ENFORCED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "$dynamicRef",
        "$recursiveRef",
    }
)
_SUBSCHEMA = ("items", "additionalProperties", "propertyNames", "additionalItems")
_SUBSCHEMA_EXTRA = ("unevaluatedProperties", "unevaluatedItems")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_BY_TYPE = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that assert something about values of one type."""
_TELL_TYPE = {"object": ("properties", "additionalProperties"), "array": ("items", "prefixItems")}
"""Where these stand, the compiler takes the type for given."""
_TYPED = frozenset(key for keys in _BY_TYPE.values() for key in keys)
_ASSERTIONS = _TYPED | {"enum", "const"}
_DECIDES_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside one of these the compiler ignores every assertion."""


def find_unenforced(schema: Any) -> str | None:
    """One sentence on the first thing in the schema that would not be enforced; None when all is.

    schema: parsed JSON; the walk is iterative, so depth is no danger.
    """
    of_names: set[int] = set()
    for path, node in _nodes(schema):
        of_names.add(id(node.get("propertyNames")))
        problem = _problem({"type": "string", **node} if id(node) in of_names else node)
        if problem:
            return f"{problem} at {path}"
    return None


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """All that are objects."""
    return (node for _, node in _nodes(schema))


def find_patterns(schema: Any) -> Iterator[str]:
    """Every regular expression in the schema."""
    for node in subschemas(schema):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        if isinstance(node.get("patternProperties"), dict):
            yield from node["patternProperties"]


def _nodes(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema that is an object, with its JSON pointer."""
    stack: list[tuple[str, Any]] = [("#", schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key in (*_SUBSCHEMA, *_SUBSCHEMA_EXTRA):
            stack.append((f"{path}/{key}", node.get(key)))
        for key in _SUBSCHEMA_LISTS:
            if isinstance(node.get(key), list):
                stack.extend((f"{path}/{key}/{i}", sub) for i, sub in enumerate(node[key]))
        for key in _SUBSCHEMA_MAPS:
            if isinstance(node.get(key), dict):
                stack.extend((f"{path}/{key}/{name}", sub) for name, sub in node[key].items())


def _problem(node: dict[str, Any]) -> str | None:
    unknown = sorted(_NEVER_ENFORCED & node.keys())
    if unknown:
        return f"keyword {unknown[0]!r} can't be enforced"
    if node.get("uniqueItems") is True:
        return "keyword 'uniqueItems' can't be enforced"
    reference = node.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        return "a '$ref' must stay inside the schema ('#' or '#/...')"
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
        return "'allOf' with more than one branch can't be enforced"
    return next(filter(None, (find(node) for find in _PROBLEMS)), None)


def _siblings_problem(node: dict[str, Any]) -> str | None:
    for key in _DECIDES_ALONE:
        siblings = sorted(_ASSERTIONS & node.keys())
        if key in node and siblings:
            return f"keyword {siblings[0]!r} beside {key!r} can't be enforced"
    return None


def _values_problem(node: dict[str, Any]) -> str | None:
    """Of the values that are spelt out the compiler writes each, whatever else is said of them."""
    key = next((key for key in ("enum", "const") if key in node), None)
    if key is None:
        return None
    siblings = sorted((_ASSERTIONS - {key}) & node.keys())
    if siblings:
        return f"keyword {siblings[0]!r} beside {key!r} can't be enforced"
    values = node[key] if key == "enum" and isinstance(node[key], list) else [node[key]]
    others = [value for value in values if "type" in node and not _is_of(value, node["type"])]
    return f"{key!r} has {others[0]!r}, which 'type' excludes," if others else None


def _is_of(value: Any, types: Any) -> bool:
    if isinstance(types, list):
        return any(_is_of(value, one) for one in types)
    if isinstance(value, bool) or value is None:
        return bool(types == ("null" if value is None else "boolean"))
    if isinstance(value, int | float):
        is_whole = isinstance(value, int) or value.is_integer()
        return types == "number" or (types == "integer" and is_whole)
    return bool(types == _TYPE_NAMES[type(value)])


_TYPE_NAMES: dict[type, str] = {str: "string", list: "array", dict: "object"}


def _untyped_problem(node: dict[str, Any]) -> str | None:
    if node.keys() & {"type", "enum", "const", *_DECIDES_ALONE}:
        return None
    told = [name for name, keys in _TELL_TYPE.items() if node.keys() & set(keys)]
    known = _BY_TYPE[told[0]] if told else ()
    untold = sorted((_TYPED & node.keys()) - set(known))
    return f"keyword {untold[0]!r} without 'type' can't be enforced" if untold else None


def _string_problem(node: dict[str, Any]) -> str | None:
    lengths = [key for key in ("minLength", "maxLength") if key in node]
    if lengths and "pattern" in node:
        return f"keyword {lengths[0]!r} beside 'pattern' can't be enforced"
    return None


def _number_problem(node: dict[str, Any]) -> str | None:
    if "multipleOf" not in node:
        return None
    types = node.get("type")
    if types == "number" or (isinstance(types, list) and "number" in types):
        return "keyword 'multipleOf' can be enforced for integers only;"
    step = node["multipleOf"]
    if isinstance(step, float) and not step.is_integer():
        return "a 'multipleOf' that is no integer can't be enforced"
    return None


def _names_problem(node: dict[str, Any]) -> str | None:
    required, properties = node.get("required"), node.get("properties", {})
    if isinstance(required, list) and isinstance(properties, dict):
        missing = [name for name in required if isinstance(name, str) and name not in properties]
        if missing:
            return f"'required' names {missing[0]!r}, which 'properties' lacks,"
    rules = [key for key in ("patternProperties", "propertyNames") if key in node]
    if rules and properties:
        return f"keyword {rules[0]!r} beside 'properties' can't be enforced"
    return _least_properties_problem(node, has_free_names=bool(rules))


def _least_properties_problem(node: dict[str, Any], *, has_free_names: bool) -> str | None:
    """A name that the model chooses may come twice, and then counts once."""
    least = node.get("minProperties")
    if not isinstance(least, int | float) or least < 2:
        return None
    if node.get("additionalProperties") is False and not has_free_names:
        return None
    return "a 'minProperties' above 1 can be enforced for named properties only;"


_PROBLEMS = (
    _siblings_problem, _values_problem, _untyped_problem, _string_problem, _number_problem,
    _names_problem,
)  # fmt: skip
