"""Marks of an answer's structure: where reasoning ends, where a tool call begins.

Inside the parsers every mark is one lone surrogate: no text that a model can write decodes to one,
so a mark is never mistaken for its spelling and a spelling never for the mark. A mark that is an
entry of the tokenizer's added vocabulary counts only as that token; any other is found in the text.
"""

import re
from collections.abc import Mapping

from rorqual_recipe.tokens.vocabulary import Vocabulary

REASONING_OPEN = "\ud800"
REASONING_CLOSE = "\ud801"
TOOL_MARK = "\ud802"
TOOL_CLOSE = "\ud803"
TOOL_EXTRA = "\ud804"

_SURROGATES = re.compile("[\ud800-\udfff]")


class Marks:
    """The marks of one plan in one vocabulary.

    by_id: the mark that a token is. in_text: the mark that a spelling is, where it is no token.
    """

    def __init__(self, spellings: Mapping[str, str], vocabulary: Vocabulary) -> None:
        used = {mark: spelling for mark, spelling in spellings.items() if spelling}
        self.all = {spelling: mark for mark, spelling in used.items()}
        self.by_id = {
            vocabulary.added[spelling]: mark
            for spelling, mark in self.all.items()
            if spelling in vocabulary.added
        }
        self.in_text = {
            spelling: mark
            for spelling, mark in self.all.items()
            if spelling not in vocabulary.added
        }
        self._spellings = {ord(mark): spelling for mark, spelling in used.items()}

    def spell(self, text: str) -> str:
        """Text with its marks written out, for what turned out to be text."""
        return text if text.isascii() else text.translate(self._spellings)


class MarkFinder:
    """Replaces spellings by marks across any portions of text; holds back what may become one."""

    def __init__(self, marks_by_spelling: Mapping[str, str]) -> None:
        self._marks = dict(marks_by_spelling)
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = {
            spelling[:size] for spelling in self._marks for size in range(1, len(spelling))
        }
        self._longest = max(map(len, self._beginnings), default=0)
        self.held = ""

    @property
    def first_chars(self) -> frozenset[str]:
        """Characters that a spelling may begin with."""
        return frozenset(spelling[0] for spelling in self._marks)

    def feed(self, text: str) -> str:
        """The text that is certain, marks in place of their spellings."""
        window = self.held + text
        found = self._pattern.sub(lambda match: self._marks[match.group()], window)
        self.held = ""
        for size in range(min(self._longest, len(found)), 0, -1):
            if found[-size:] in self._beginnings:
                self.held = found[-size:]
                return found[:-size]
        return found

    def finish(self) -> str:
        """What was held back, now that nothing can follow."""
        held, self.held = self.held, ""
        return held


def without_surrogates(text: str) -> str:
    """Text from outside: what could pass for a mark becomes U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
