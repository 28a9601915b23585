"""Special tokens told apart from text that looks like them, in what a template renders.

A special token is found in the template's output by its spelling. To keep message text out of that
search, a private-use character that occurs nowhere in the conversation (the marker) is put behind
every character that any special token starts with, in every string a client controls, and in front
of a string that could complete a spelling begun by the template. No spelling can then be matched
inside message text, not even one that a template forms by deleting from it, and filters such as
`trim` still see the same white space. The marker is removed from the text between special tokens.
"""

import re
from collections.abc import Sequence

from rorqual_recipe.encodings.base import Segment, Special
from rorqual_recipe.model_files import AddedToken
from rorqual_recipe.problems import Problem, RequestRefused

_PRIVATE_RANGES = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


def unused_character(texts: Sequence[str]) -> str:
    """A private-use character that occurs in none of the texts; one pass over them a range.

    Raises: RequestRefused when every such character is taken.
    """
    texts = [text for text in texts if not text.isascii()]
    for first, last in _PRIVATE_RANGES:
        pattern = re.compile(f"[{chr(first)}-{chr(last)}]")
        used = {char for text in texts for char in set(pattern.findall(text))}
        for code in range(first, last + 1):
            if chr(code) not in used:
                return chr(code)
    raise RequestRefused([Problem("messages", "the text uses every private-use character")])


class SpecialSplitter:
    """Marks client text, and cuts rendered text at the special tokens of a template."""

    def __init__(self, added_tokens: Sequence[AddedToken]) -> None:
        tokens = [token for token in added_tokens if token.content.strip()]
        self._by_content = {token.content: token for token in tokens}
        self._first_chars = sorted({token.content[0] for token in tokens})
        self._tails = frozenset(
            token.content[cut:] for token in tokens for cut in range(1, len(token.content))
        )
        self._max_tail = max(map(len, self._tails), default=0)
        longest_first = sorted(self._by_content, key=len, reverse=True)
        alternatives = "|".join(self._pattern(self._by_content[text]) for text in longest_first)
        self._pattern_re = re.compile(alternatives) if alternatives else None

    @staticmethod
    def _pattern(token: AddedToken) -> str:
        left, right = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
        return f"{left}{re.escape(token.content)}{right}"

    def mark(self, text: str, marker: str) -> str:
        """Client text in which no special token's spelling can match, nor be completed."""
        body = text.lstrip()
        if self._completes_a_spelling(body):
            text = text[: len(text) - len(body)] + marker + body
        for first in self._first_chars:
            text = text.replace(first, first + marker)
        return text

    def _completes_a_spelling(self, text: str) -> bool:
        longest = min(len(text), self._max_tail)
        return any(text[:length] in self._tails for length in range(1, longest + 1))

    def split(self, output: str, marker: str) -> list[Segment]:
        """Segments of rendered text; empty texts are left out."""
        segments: list[Segment] = []
        start = 0
        for match in self._pattern_re.finditer(output) if self._pattern_re else ():
            _append_text(segments, output[start : match.start()], marker)
            token = self._by_content.get(match.group()) or self._by_content[match.group().strip()]
            segments.append(Special(token.token_id, token.content))
            start = match.end()
        _append_text(segments, output[start:], marker)
        return segments


def _append_text(segments: list[Segment], text: str, marker: str) -> None:
    cleaned = text.replace(marker, "")
    if cleaned:
        segments.append(cleaned)
