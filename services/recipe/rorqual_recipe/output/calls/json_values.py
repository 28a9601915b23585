"""JSON in pieces: where a value ends, and whether it is one."""

import json
import re
from typing import Any, Final

from rorqual_recipe.json_text import json_string

_STRUCTURE = re.compile(r'["{}\[\]\ud800-\udfff]')
_IN_STRING = re.compile(r'["\\]')
MAX_DEPTH: Final = 200

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


def escape(text: str) -> str:
    """The text as the inside of a JSON string."""
    return json_string(text)[1:-1]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)
_VALUES = json.JSONDecoder(parse_constant=_refuse, parse_int=float)


def is_json(text: str) -> bool:
    """True when the text is one JSON value, numbers of any length included."""
    try:
        _STRICT.decode(text.strip(" \t\r\n"))
    except (ValueError, RecursionError):
        return False
    return True


def json_value(text: str) -> Any:
    """The value, numbers as floats. Raises: ValueError."""
    try:
        return _VALUES.decode(text.strip(" \t\r\n"))
    except (RecursionError, OverflowError) as err:
        raise ValueError("nested too deeply or out of range") from err


def as_json(text: str) -> tuple[str, str | None]:
    """JSON for what should have been JSON, and what was wrong with it.

    Valid text keeps its spelling. Python's words for true, false and null become JSON's; anything
    else becomes a JSON string of the text, so that the whole stays valid and nothing is lost.
    """
    if is_json(text):
        return text, None
    word = _WORDS.get(text.strip())
    if word is not None:
        return word, f"{text.strip()} was read as {word}"
    return json_string(text), "is not JSON and was passed on as a string"


class JsonSpan:
    """Finds the end of one JSON object or array in portions of text.

    is_broken: a mark stands where JSON can't hold it, or the value is nested too deeply.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._skips_next = False
        self.is_broken = False

    def feed(self, text: str, start: int = 0) -> int:
        """Index behind the value's end (or of what breaks it); -1 when it goes on."""
        pos = start
        while pos < len(text):
            if self._skips_next:
                self._skips_next = False
                pos += 1
                continue
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(text, pos)
            if match is None:
                return -1
            pos = match.end()
            if self._takes(match.group()):
                return pos - self.is_broken
        return -1

    def _takes(self, char: str) -> bool:
        """True when this character ends the value or breaks it."""
        if char == '"':
            self._in_string = not self._in_string
        elif char == "\\":
            self._skips_next = True
        elif char in "{[":
            self._depth += 1
            self.is_broken = self._depth > MAX_DEPTH
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        else:
            self.is_broken = True
        return self.is_broken
