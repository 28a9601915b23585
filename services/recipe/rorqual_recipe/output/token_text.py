"""Tokens to text in which marks are marks."""

from rorqual_recipe.output.detokeniser import Detokeniser
from rorqual_recipe.output.marks import MarkFinder, Marks, without_surrogates
from rorqual_recipe.tokens.vocabulary import Vocabulary


class TokenText:
    """Text of one answer, by token, or by text where every mark counts that is spelled."""

    def __init__(self, vocabulary: Vocabulary, marks: Marks) -> None:
        self._marks = marks
        self._special = vocabulary.special
        self._detokeniser = Detokeniser(vocabulary)
        self._in_tokens = MarkFinder(marks.in_text)
        self._in_text = MarkFinder(marks.all)

    @property
    def is_idle(self) -> bool:
        """True when the next token's text depends on itself alone."""
        return self._detokeniser.is_idle and not self._in_tokens.held and not self._in_text.held

    @property
    def num_held(self) -> int:
        """Characters that wait for what may follow them."""
        return len(self._in_tokens.held) + len(self._in_text.held)

    @property
    def first_chars(self) -> frozenset[str]:
        """Characters in which a mark may begin that is no token."""
        return self._in_tokens.first_chars

    def is_shown(self, token_id: int) -> bool:
        """True for tokens that are text or a mark."""
        return token_id in self._marks.by_id or token_id not in self._special

    def of_token(self, token_id: int) -> str:
        """What a token adds, after any text in front of it."""
        mark = self._marks.by_id.get(token_id)
        if mark is not None:
            return self._in_tokens.feed(self._detokeniser.flush()) + self._in_tokens.finish() + mark
        text = self._detokeniser.feed(token_id)
        return self._in_tokens.feed(text) if self._marks.in_text else text

    def of_text(self, text: str) -> str:
        """What a piece of text adds."""
        return self._in_text.feed(without_surrogates(text))

    def end_of_text(self) -> str:
        """What text owes before a token comes."""
        return self._in_text.finish()

    def finish(self) -> str:
        """What an answer that ends here owes."""
        text = self._in_tokens.feed(self._detokeniser.finish()) + self._in_tokens.finish()
        return text + self._in_text.finish()
