"""Parts of a structural tag, in the JSON that the grammar service compiles."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Format = dict[str, Any]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def text(value: str) -> Format:
    """Exactly this text, however it is cut into tokens."""
    return {"type": "const_string", "value": value}


def token(token_id: int) -> Format:
    """Exactly this token."""
    return {"type": "token", "token": token_id}


def spelled(value: str, tokens: Mapping[str, int]) -> list[Format]:
    """A text whose marks are tokens where the vocabulary has them: their ids, not their letters."""
    if not tokens:
        return [text(value)] if value else []
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = f"({'|'.join(map(re.escape, longest_first))})"
    pieces = (piece for piece in re.split(pattern, value) if piece)
    return [token(tokens[piece]) if piece in tokens else text(piece) for piece in pieces]


def sequence(*parts: Format | Sequence[Format]) -> Format:
    """One after the other; sequences inside are taken apart."""
    elements: list[Format] = []
    for part in parts:
        for element in [part] if isinstance(part, dict) else part:
            nested = element["type"] == "sequence"
            elements += element["elements"] if nested else [element]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def any_of(formats: Iterable[Format]) -> Format:
    """One of them."""
    elements = list(formats)
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def optional(content: Format) -> Format:
    """Once or not at all."""
    return {"type": "optional", "content": content}


def star(content: Format) -> Format:
    """Any number of times, none included."""
    return {"type": "star", "content": content}


def free_text(*excluded: str) -> Format:
    """Any text that holds none of the excluded."""
    return {"type": "any_text", "excludes": list(excluded)}


def regex(pattern: str, param: str = "") -> Format:
    """A text that the whole pattern matches."""
    return {"type": "regex", "pattern": pattern, "param": param}


def json_value(schema: Any, param: str = "", *, fallback: Any = None) -> Format:
    """JSON that fits a schema. fallback: taken where the schema can't be enforced; None = error."""
    way_out = {} if fallback is None else {"fallback": fallback}
    return {"type": "json_schema", "json_schema": schema, "param": param, **way_out}


def listed(item: Format, separator: str, *, several: bool) -> Format:
    """The item once, or where several is set, any number of times with the separator between."""
    again = sequence(text(separator), item) if separator else item
    return sequence(item, star(again)) if several else item


def answer_with(mark: str, tokens: Mapping[str, int], behind: Format, *, again: bool) -> Format:
    """Free text; whenever it comes to the mark, `behind` must follow. again: text may go on then.

    A mark that is a token counts as that token only.
    """
    if mark in tokens:
        rules: list[Any] = [[tokens[mark], behind]]
        return {"type": "token_dispatch", "rules": rules, "loop": again}
    return {"type": "dispatch", "rules": [[mark, behind]], "loop": again}
