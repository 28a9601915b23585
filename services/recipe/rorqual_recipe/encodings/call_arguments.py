"""Arguments of a past call, cut into parameters without changing their spelling.

A model that wrote `1.50` reads `1.50` again, so its next prompt continues the tokens it made. Text
that another program has evidently written anew (no space behind the first colon, where this
service always puts one) gets the spacing models write; numbers keep their digits in any case.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

MAX_DEPTH = 127
_NUM_REMEMBERED, _REMEMBERED_CHARS = 256, 2048  # at most some 16 MB: 256 parameters each
_WHOLE_TEXT = "arguments"
_SPACE = r"[ \t\n\r]*"
_OPEN = re.compile(rf"{_SPACE}({{){_SPACE}")
_CLOSED = re.compile(rf"(}}?){_SPACE}")
_PLAIN_NAME = re.compile(rf'"([^"\\\x00-\x1f]*)"{_SPACE}:{_SPACE}')
_COLON = re.compile(rf"{_SPACE}(:){_SPACE}")
_BEHIND = re.compile(rf"{_SPACE}([,}}]){_SPACE}")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACED = {",": ", ", ":": ": "}


class Parameter(NamedTuple):
    """One argument of a call. value: the text of a string, else JSON as it is to be printed."""

    name: str
    is_string: bool
    value: str


def split_arguments(arguments: str) -> Sequence[Parameter]:
    """Parameters in order; of a name that occurs twice the last value, at the first place.

    What is no JSON object becomes one string parameter with the whole text. Short ones are
    remembered: every turn of a session brings the calls of all turns before it.
    """
    if len(arguments) <= _REMEMBERED_CHARS:
        return _split_once(arguments)
    return _split(arguments)


def _split(arguments: str) -> Sequence[Parameter]:
    try:
        if not _is_too_deep(arguments):
            return _parameters(arguments)
    except (ValueError, RecursionError):
        pass
    return (Parameter(_WHOLE_TEXT, True, arguments),)


_split_once = lru_cache(maxsize=_NUM_REMEMBERED)(_split)


def _parameters(text: str) -> Sequence[Parameter]:
    """Raises: ValueError when the text is no JSON object."""
    if "\\u" in text and _SURROGATE.search(text):
        json.dumps(json.loads(text), ensure_ascii=False).encode()  # half a character: ValueError
    at, _ = _expect(_OPEN, text, 0)
    at, mark = _expect(_CLOSED, text, at)
    respaces = None
    found: dict[str, Parameter] = {}
    while mark != "}":
        name, at = _name(text, at)
        if respaces is None:
            respaces = text[at - 1] == ":"
        value, at = _value(text, at, respaces=respaces)
        found[name] = Parameter(name, isinstance(value, _String), value)
        at, mark = _expect(_BEHIND, text, at)
    if at != len(text):
        raise ValueError("text behind the object")
    return tuple(found.values())


def _name(text: str, at: int) -> tuple[str, int]:
    """A parameter's name and the place of its value."""
    match = _PLAIN_NAME.match(text, at)
    if match is not None:
        return match.group(1), match.end()
    if text[at : at + 1] != '"':
        raise ValueError("a name must be a string")
    name, at = scanstring(text, at + 1, True)
    return name, _expect(_COLON, text, at)[0]


class _String(str):
    """The text of a JSON string, as against the spelling of another value."""


def _value(text: str, at: int, *, respaces: bool) -> tuple[str, int]:
    """A value and the place behind it."""
    if text[at : at + 1] == '"':
        content, end = scanstring(text, at + 1, True)
        return _String(content), end
    _, end = _DECODER.raw_decode(text, at)
    spelling = text[at:end]
    return _respaced(spelling) if respaces else spelling, end


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _as_it_is(number: str) -> str:
    return number


_DECODER = json.JSONDecoder(parse_float=_as_it_is, parse_int=_as_it_is, parse_constant=_refuse)


def _expect(pattern: re.Pattern[str], text: str, at: int) -> tuple[int, str]:
    """The place behind what must stand here, and its mark."""
    match = pattern.match(text, at)
    if match is None:
        raise ValueError(f"unexpected text at {at}")
    return match.end(), match.group(1)


def _respaced(spelling: str) -> str:
    """JSON with `, ` and `: `, strings escaped no more than needed, numbers as they are."""
    if spelling[:1] not in "{[":
        return spelling
    return "".join(_respaced_token(token) for token in _TOKEN.findall(spelling))


def _respaced_token(token: str) -> str:
    if token[0] == '"' and "\\" in token:
        return json.dumps(json.loads(token), ensure_ascii=False)
    return _SPACED.get(token, token)


def _is_too_deep(text: str) -> bool:
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKEN.finditer(text):
        char = token.group()
        depth += (char in ("{", "[")) - (char in ("}", "]"))
        if depth > MAX_DEPTH:
            return True
    return False
