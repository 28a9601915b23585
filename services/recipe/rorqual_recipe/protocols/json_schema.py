"""Whether a client's JSON Schema is one: every keyword of the right type, at its exact path.

Only the schema's own form is checked. Whether it can be enforced is for the grammar compiler to
say, and whether a pattern is a regular expression too.
"""

from collections.abc import Callable, Iterator
from typing import Any

from rorqual_recipe.problems import Problem, clip

MAX_DEPTH = 64
MAX_NODES = 20_000
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_SCHEMAS = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
        *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_name_list(value: Any) -> bool:
    is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return is_names and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


_Rule = tuple[Callable[[Any], bool], str]
_TEXT: _Rule = (_is_text, "must be a string")
_NUMBER: _Rule = (_is_number, "must be a number")
_SIZE: _Rule = (_is_size, "must be a whole number, 0 or more")
_RULES: dict[str, _Rule] = {
    "type": (_is_type, f"must be one of {', '.join(sorted(_TYPES))}, or a list of them"),
    "required": (_is_name_list, "must be a list of names, each once"),
    "enum": (lambda value: isinstance(value, list), "must be a list"),
    "multipleOf": (_is_positive, "must be a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    **dict.fromkeys(("title", "description", "$schema", "$id"), _TEXT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _SIZE),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _SIZE),
}


def schema_problems(schema: Any, path: str) -> Iterator[Problem]:
    """What is wrong with a schema, named by path; nothing for a good one."""
    waiting: list[tuple[Any, str, int]] = [(schema, path, 0)]
    num_nodes = 0
    while waiting:
        node, where, depth = waiting.pop()
        num_nodes += 1
        if depth > MAX_DEPTH or num_nodes > MAX_NODES:
            yield Problem(path, f"at most {MAX_NODES} schemas, nested {MAX_DEPTH} deep")
            return
        if isinstance(node, dict):
            yield from _keyword_problems(node, where)
            waiting += [(inner, at, depth + 1) for inner, at in _inner_schemas(node, where)]
        elif not isinstance(node, bool):
            yield Problem(where, "must be a JSON Schema: an object, true or false")


def _keyword_problems(node: dict[str, Any], where: str) -> Iterator[Problem]:
    for name, value in node.items():
        rule = _RULES.get(name)
        if rule is not None and not rule[0](value):
            yield Problem(f"{where}.{name}", rule[1])
        elif name in _SCHEMA_LISTS and not (isinstance(value, list) and value):
            yield Problem(f"{where}.{name}", "must be a list of schemas, at least one")
        elif name in _SCHEMA_MAPS and not isinstance(value, dict):
            yield Problem(f"{where}.{name}", "must be an object of schemas")


def _inner_schemas(node: dict[str, Any], where: str) -> Iterator[tuple[Any, str]]:
    for name, value in node.items():
        path = f"{where}.{name}"
        if name in _SCHEMA_LISTS or (name == "items" and isinstance(value, list)):
            if isinstance(value, list):
                yield from ((inner, f"{path}[{at}]") for at, inner in enumerate(value))
        elif name in _SCHEMAS:
            yield value, path
        elif name in _SCHEMA_MAPS and isinstance(value, dict):
            yield from ((inner, f"{path}.{clip(key, 64)}") for key, inner in value.items())
