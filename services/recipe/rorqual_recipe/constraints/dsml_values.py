"""Values of DSML parameters: strings as they are, everything else as JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rorqual_recipe.constraints.tags import Format, any_of, free_text, json_value, regex, text
from rorqual_recipe.problems import RequestRefused, unsupported

MARK = "｜DSML｜"
_DEFINITIONS = ("$defs", "definitions")
_POINTER = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_MAX_ALTERNATIVES = 16
_MAX_REFERENCES = 8
_MAX_LOOKS = 64
_MAX_DEFINITION_CHARS = 200_000
_PLAIN_STRING = {"type", "title", "description", "default", "examples", "$comment", "deprecated"}
_BESIDE_BRANCHES = {"title", "description", "default", "examples", "$comment", "deprecated"}


@dataclass(frozen=True, slots=True)
class Value:
    """One way to write a value. is_string: text as it is, not JSON."""

    is_string: bool
    format: Format


class ValueWriter:
    """Values of one tool's parameters.

    root: the tool's whole schema, for what its parts refer to. is_strict: what can't be enforced
    is an error of `param`; else any value will do there.
    """

    def __init__(self, root: Mapping[str, Any], param: str, *, is_strict: bool) -> None:
        self._definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        self._definition_chars = len(json.dumps(self._definitions))
        self._chars_left = _MAX_DEFINITION_CHARS
        self._param = param
        self._is_strict = is_strict
        self._num_looks = 0

    def values(self, schema: Any) -> list[Value]:
        """All ways to write what fits a schema."""
        self._num_looks = 0
        found = list(islice(self._values(schema, 0), _MAX_ALTERNATIVES + 1))
        is_simple = 0 < len(found) <= _MAX_ALTERNATIVES and self._num_looks <= _MAX_LOOKS
        return found if is_simple else [self._json(schema)]

    def resolved(self, schema: Any) -> Any:
        """The schema that a mere reference points to; any other as it is."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, dict) or set(schema) - {"$ref", *_DEFINITIONS}:
                break
            target = self._target(schema.get("$ref"))
            schema = schema if target is None else target
        return schema

    def _values(self, schema: Any, depth: int) -> Iterator[Value]:
        self._num_looks += 1
        if self._num_looks > _MAX_LOOKS:
            return
        if schema is True or schema == {}:
            yield Value(True, free_text(MARK))
            yield self._json(True)
        elif not isinstance(schema, dict):
            yield self._json(schema)
        elif (branches := self._branches(schema)) is not None and depth < _MAX_REFERENCES:
            for branch in branches:
                yield from self._values(branch, depth + 1)
        else:
            yield from self._plain_values(schema)

    def _branches(self, schema: Mapping[str, Any]) -> list[Any] | None:
        """Schemas of which a value must fit one; None when this one is no choice."""
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and set(schema) <= {key, *_BESIDE_BRANCHES}:
                return schema[key]  # type: ignore[no-any-return]
        if set(schema) <= {"$ref", *_BESIDE_BRANCHES} and "$ref" in schema:
            target = self._target(schema["$ref"])
            return None if target is None else [target]
        if isinstance(schema.get("type"), list) and "enum" not in schema and "const" not in schema:
            return [{**schema, "type": kind} for kind in schema["type"]]
        return None

    def _target(self, reference: Any) -> Any:
        match = _POINTER.fullmatch(str(reference))
        table = self._definitions.get(match.group(1)) if match else None
        return table.get(match.group(2)) if match and isinstance(table, dict) else None

    def _plain_values(self, schema: Mapping[str, Any]) -> Iterator[Value]:
        listed = schema["enum"] if isinstance(schema.get("enum"), list) else None
        listed = [schema["const"]] if "const" in schema else listed
        if listed is not None and set(schema) <= {"enum", "const", *_PLAIN_STRING}:
            yield from self._listed(listed)
        elif schema.get("type") == "string" and (content := self._text(schema)) is not None:
            yield Value(True, content)
        else:
            yield self._json(schema)

    def _listed(self, values: list[Any]) -> Iterator[Value]:
        texts = [value for value in values if isinstance(value, str) and MARK not in value]
        others = [value for value in values if not isinstance(value, str) or MARK in value]
        if texts:
            yield Value(True, any_of(map(text, texts)))
        if others:
            yield self._json({"enum": others})

    def _json(self, schema: Any) -> Value:
        fallback = None if self._is_strict else True
        if "$ref" in json.dumps(schema):
            self._chars_left -= self._definition_chars
            if self._chars_left < 0:
                return Value(False, self._beyond_definitions())
            schema = {**schema, **self._definitions}
        return Value(False, json_value(schema, self._param, fallback=fallback))

    def _beyond_definitions(self) -> Format:
        """Each value that refers to definitions carries them all, which has an end."""
        if self._is_strict:
            message = "too many references to be enforced in this model's call format"
            raise RequestRefused([unsupported(self._param, message)])
        return json_value(True)

    def _text(self, schema: Mapping[str, Any]) -> Format | None:
        """A string as it is; None when only JSON is held to what is asked of it.

        Bounds of length are such a thing: over a whole vocabulary they take seconds to compile
        outside of JSON.
        """
        asked = set(schema) - _PLAIN_STRING
        if not asked or not self._is_strict:
            return free_text(MARK)
        if asked == {"pattern"} and isinstance(schema["pattern"], str):
            return regex(schema["pattern"], self._param)
        return None
