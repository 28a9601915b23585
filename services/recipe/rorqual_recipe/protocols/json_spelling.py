"""JSON values as the client wrote them: numbers of any length, 1.50, the order of keys.

What a parser makes of them and writes again may differ from what the model once produced, and
then nothing after it is found in the prefix cache.
"""

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from rorqual_recipe.json_text import json_string

_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|([:,])|(\s+)|([^"\s:,]+)', re.DOTALL)
_BLANKS = " \t\n\r"
_EACH = "*"


def model_spelling(text: str) -> str:
    """Valid JSON as a model writes it, numbers and the order of keys unchanged.

    A text without any space outside of strings comes from a compact serialiser: it gets the
    space after `:` and `,` that models write. Spaces that are there stay. Strings hold what they
    mean: escapes only where JSON needs them.
    """
    tokens = list(_TOKEN.finditer(text))
    is_compact = not any(token[3] for token in tokens)
    return "".join(_respelled(token, is_compact) for token in tokens)


def _respelled(token: re.Match[str], is_compact: bool) -> str:
    if token[1]:
        written = token[1]
        return json_string(json.loads(written)) if "\\" in written else written
    return f"{token[2]} " if token[2] and is_compact else token[0]


class SpelledValues:
    """Finds the texts of values in a JSON text that has been parsed once and is known valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        keep = {"parse_int": str, "parse_float": str, "parse_constant": str}
        decoder: Any = json.JSONDecoder(strict=False, **keep)  # type: ignore[arg-type]
        self._skip = decoder.scan_once

    def find(self, *steps: str) -> dict[str, str]:
        """Texts by path of every value that the steps lead to; `*` is each item of a list.

        Steps that lead nowhere find nothing; of members of one name the last counts.
        """
        return {path: self._text[start:end] for path, start, end in self._walk(0, "", steps)}

    def _walk(self, at: int, path: str, steps: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
        at = self._after_space(at)
        if not steps:
            yield path, at, self._end_of_value(at)
        elif steps[0] == _EACH and self._text[at] == "[":
            for index, start in enumerate(self._items(at)):
                yield from self._walk(start, f"{path}[{index}]", steps[1:])
        elif steps[0] != _EACH and self._text[at] == "{":
            starts = [start for name, start in self._members(at) if name == steps[0]]
            if starts:
                step = f"{path}.{steps[0]}" if path else steps[0]
                yield from self._walk(starts[-1], step, steps[1:])

    def _items(self, at: int) -> Iterator[int]:
        at = self._after_space(at + 1)
        while self._text[at] != "]":
            yield at
            at = self._next(self._end_of_value(at))

    def _members(self, at: int) -> Iterator[tuple[str, int]]:
        at = self._after_space(at + 1)
        while self._text[at] != "}":
            name, end = scanstring(self._text, at + 1, False)
            start = self._after_space(self._after_space(end) + 1)
            yield name, start
            at = self._next(self._end_of_value(start))

    def _next(self, at: int) -> int:
        """Start of what follows a value: behind its comma, or the closing bracket itself."""
        at = self._after_space(at)
        return self._after_space(at + 1) if self._text[at] == "," else at

    def _end_of_value(self, at: int) -> int:
        if self._text[at] == '"':
            return self._end_of_string(at)
        skipped: tuple[Any, int] = self._skip(self._text, at)
        return skipped[1]

    def _end_of_string(self, at: int) -> int:
        text = self._text
        while True:
            at = text.index('"', at + 1)
            num_backslashes = 0
            while text[at - 1 - num_backslashes] == "\\":
                num_backslashes += 1
            if num_backslashes % 2 == 0:
                return at + 1

    def _after_space(self, at: int) -> int:
        while self._text[at] in _BLANKS:
            at += 1
        return at
