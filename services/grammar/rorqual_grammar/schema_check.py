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
_ASSERTIONS = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "enum",
        "const",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    }
)
_DECIDES_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside one of these the compiler ignores every assertion."""


def find_unenforced(schema: Any) -> str | None:
    """One sentence on the first thing in the schema that would not be enforced; None when all is.

    schema: parsed JSON; the walk is iterative, so depth is no danger.
    """
    for path, node in _nodes(schema):
        problem = _problem(node)
        if problem:
            return f"{problem} at {path}"
    return None


def find_patterns(schema: Any) -> Iterator[str]:
    """Every regular expression in the schema."""
    for _, node in _nodes(schema):
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
    return _siblings_problem(node) or _string_problem(node) or _required_problem(node)


def _siblings_problem(node: dict[str, Any]) -> str | None:
    for key in _DECIDES_ALONE:
        siblings = sorted(_ASSERTIONS & node.keys())
        if key in node and siblings:
            return f"keyword {siblings[0]!r} beside {key!r} can't be enforced"
    return None


def _string_problem(node: dict[str, Any]) -> str | None:
    lengths = [key for key in ("minLength", "maxLength") if key in node]
    if lengths and "pattern" in node:
        return f"keyword {lengths[0]!r} beside 'pattern' can't be enforced"
    return None


def _required_problem(node: dict[str, Any]) -> str | None:
    required, properties = node.get("required"), node.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return None
    missing = [name for name in required if isinstance(name, str) and name not in properties]
    return f"'required' names {missing[0]!r}, which 'properties' lacks," if missing else None
