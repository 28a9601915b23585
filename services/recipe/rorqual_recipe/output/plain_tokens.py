"""Tokens that are nothing but text: their events are made once and shared by all answers.

This is what makes one token of an ordinary answer cost one look-up.
"""

from collections.abc import Callable, Mapping
from typing import Final

from rorqual_recipe.output.events import ContentDelta, ReasoningDelta
from rorqual_recipe.tokens.vocabulary import Vocabulary

MAX_TABLES: Final = 16

TextDelta = ContentDelta | ReasoningDelta


class PlainTokens(dict[int, TextDelta]):
    """The event of each plain token that has come by.

    Plain: whole characters, none of them among `significant`, and not ending in one of `endings`,
    so that nothing begins in it that is more than text. make: the event of a text.
    events: those of all tables of a vocabulary, which share them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        mark_ids: frozenset[int],
        significant: frozenset[str],
        endings: str,
        make: Callable[[str], TextDelta],
        events: dict[int, TextDelta],
    ) -> None:
        super().__init__()
        self._events = events
        self._vocabulary = vocabulary
        self._mark_ids = mark_ids
        self._significant = significant
        self._endings = endings
        self._splits: dict[int, tuple[str, str] | None] = {}
        self.make = make

    def __bool__(self) -> bool:
        return True

    def split(self, token_id: int) -> tuple[str, str] | None:
        """(text, line breaks behind it that have to wait); None when there is more to the token."""
        event = self.get(token_id)
        if event is not None:
            return event.text, ""
        try:
            return self._splits[token_id]
        except KeyError:
            return self._look(token_id)

    def _look(self, token_id: int) -> tuple[str, str] | None:
        text = self._text_of(token_id)
        body = text.rstrip("\n") if "\n" in self._endings else text
        found = None if not text or body[-1:] in [*self._endings] else (body, text[len(body) :])
        if body and body == text and found:
            event = self._events.get(token_id) or self.make(text)
            self[token_id] = self._events[token_id] = event
        else:
            self._splits[token_id] = found
        return found

    def _text_of(self, token_id: int) -> str:
        """The token's text; "" when there is more to it."""
        if token_id in self._mark_ids:
            return ""
        try:
            text = self._vocabulary.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            return ""
        return text if self._significant.isdisjoint(text) else ""


class _NoPlainTokens(PlainTokens):
    def __init__(self) -> None:
        dict.__init__(self)

    def __bool__(self) -> bool:
        return False


NO_PLAIN_TOKENS: Final[PlainTokens] = _NoPlainTokens()


def plain_tokens(
    vocabulary: Vocabulary,
    mark_ids: Mapping[int, str],
    significant: frozenset[str],
    endings: str,
    make: type[ContentDelta] | type[ReasoningDelta],
) -> PlainTokens:
    """The table for these circumstances; a bounded number of them is kept."""
    marks = frozenset(mark_ids)
    key = (marks, significant, endings, make)
    tables = vocabulary.tables
    table = tables.get(key)
    if table is None:
        if len(tables) >= MAX_TABLES:
            tables.clear()
        events = tables.setdefault(make, {})
        table = tables[key] = PlainTokens(vocabulary, marks, significant, endings, make, events)
    return table  # type: ignore[no-any-return]


class PlainTables:
    """The tables of one answer. stop_chars: what its stop strings begin with."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        mark_ids: Mapping[int, str],
        mark_chars: frozenset[str],
        stop_chars: frozenset[str],
    ) -> None:
        self._vocabulary = vocabulary
        self._mark_ids = mark_ids
        self._mark_chars = mark_chars
        self._stop_chars = stop_chars
        self._tables: dict[str, PlainTokens] = {}

    def content(self, endings: str) -> PlainTokens:
        """For content in which text with one of these endings has to wait."""
        chars = self._mark_chars | self._stop_chars
        return self._table("content", chars, endings, ContentDelta)

    def reasoning(self, endings: str) -> PlainTokens:
        """For reasoning, likewise."""
        return self._table("reasoning", self._mark_chars, endings, ReasoningDelta)

    def strings(self) -> PlainTokens:
        """For strings that end where a tag begins."""
        return self._table("strings", self._mark_chars | {"<"}, "", ContentDelta)

    def _table(
        self,
        name: str,
        chars: frozenset[str],
        endings: str,
        make: type[ContentDelta] | type[ReasoningDelta],
    ) -> PlainTokens:
        table = self._tables.get(name)
        if table is None:
            table = plain_tokens(self._vocabulary, self._mark_ids, chars, endings, make)
            self._tables[name] = table
        return table
