"""Tokens that are nothing but text: their events are made once and shared by all answers.

This is what makes one token of an ordinary answer cost one look-up.
"""

from collections.abc import Mapping
from typing import Final

from rorqual_recipe.output.events import AnswerEvent, ContentDelta, ReasoningDelta
from rorqual_recipe.tokens.vocabulary import Vocabulary

MAX_TABLES: Final = 64


class PlainTokens(dict[int, AnswerEvent]):
    """The event of each plain token, filled as tokens come by; others raise KeyError.

    Plain: whole characters, none of which may begin something that is more than text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        significant_chars: frozenset[str],
        mark_ids: Mapping[int, str],
        kind: type[ContentDelta] | type[ReasoningDelta],
    ) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._significant_chars = significant_chars
        self._mark_ids = frozenset(mark_ids)
        self._kind = kind

    def __missing__(self, token_id: int) -> AnswerEvent:
        if token_id not in self._mark_ids:
            try:
                text = self._vocabulary.bytes_of(token_id).decode()
            except UnicodeDecodeError:
                text = ""
            if text and self._significant_chars.isdisjoint(text):
                event = self[token_id] = self._kind(text)
                return event
        raise KeyError(token_id)

    def __bool__(self) -> bool:
        return True


class _NoPlainTokens(PlainTokens):
    def __init__(self) -> None:
        dict.__init__(self)

    def __missing__(self, token_id: int) -> AnswerEvent:
        raise KeyError(token_id)

    def __bool__(self) -> bool:
        return False


NO_PLAIN_TOKENS: Final[PlainTokens] = _NoPlainTokens()


def plain_tokens(
    vocabulary: Vocabulary,
    significant_chars: frozenset[str],
    mark_ids: Mapping[int, str],
    kind: type[ContentDelta] | type[ReasoningDelta],
) -> PlainTokens:
    """The table for these circumstances; a bounded number of them is kept."""
    key = (significant_chars, frozenset(mark_ids), kind)
    tables = vocabulary.tables
    table = tables.get(key)
    if table is None:
        if len(tables) >= MAX_TABLES:
            tables.clear()
        table = tables[key] = PlainTokens(vocabulary, significant_chars, mark_ids, kind)
    return table  # type: ignore[no-any-return]
