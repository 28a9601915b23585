"""Structural tags: text with shapes inside it, such as tool calls. Runs inside the sandbox.

A tag is xgrammar's JSON with two keys of ours on its formats: `param` names the caller's field that
an error inside belongs to, `fallback` is the schema to take where the given one can't be enforced.
JSON Schemas inside a tag become grammars here, so that they are held to the rules of those that
stand alone: compact JSON, and nothing half enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import xgrammar

from rorqual_grammar.grammar_text import grammar_text
from rorqual_grammar.json_grammar import schema_grammar
from rorqual_grammar.rejection import BadConstraint, clean_text

MAX_DEPTH = 100
_OWN_KEYS = ("param", "fallback")


def prepare_tag(source: str) -> dict[str, Any]:
    """The tag as the compiler takes it. Raises: BadConstraint that names field and language."""
    try:
        tag = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadConstraint(f"the tag is not JSON: {error}") from None
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise BadConstraint("a structural tag is an object with a format")
    return {"type": "structural_tag", "format": _prepared(tag["format"], depth=0)}


def _prepared(value: Any, *, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadConstraint("the tag is nested too deeply")
    if isinstance(value, list):
        return [_prepared(entry, depth=depth + 1) for entry in value]
    if not isinstance(value, dict):
        return value
    convert = _LEAVES.get(value.get("type", ""))
    if convert is not None:
        return _leaf(value, convert)
    inner = {key: entry for key, entry in value.items() if key not in _OWN_KEYS}
    return {key: _prepared(entry, depth=depth + 1) for key, entry in inner.items()}


def _leaf(node: dict[str, Any], convert: Callable[[dict[str, Any]], xgrammar.Grammar]) -> Any:
    """A part in a language of its own, compiled by itself so that its faults are told apart."""
    language = str(node["type"]).replace("_", " ")
    try:
        return _as_grammar(convert(node))
    except BadConstraint as error:
        raise type(error)(error.text, param=node.get("param", ""), language=language) from None
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError from error
        text = clean_text(error)
        raise BadConstraint(text, param=node.get("param", ""), language=language) from error


def _as_grammar(grammar: xgrammar.Grammar) -> dict[str, Any]:
    return {"type": "grammar", "grammar": grammar_text(grammar)}


def _json_schema(node: dict[str, Any]) -> xgrammar.Grammar:
    source = json.dumps(node["json_schema"])
    if "fallback" not in node:
        return schema_grammar(source)
    with suppress(BadConstraint, RuntimeError):
        return schema_grammar(source)
    return schema_grammar(json.dumps(node["fallback"]))


def _regex(node: dict[str, Any]) -> xgrammar.Grammar:
    return xgrammar.Grammar.from_regex(node["pattern"])


def _grammar(node: dict[str, Any]) -> xgrammar.Grammar:
    if node.get("syntax") == "lark":
        return xgrammar.Grammar.from_lark(node["grammar"])
    return xgrammar.Grammar.from_ebnf(node["grammar"])


_LEAVES = {"json_schema": _json_schema, "regex": _regex, "grammar": _grammar}
