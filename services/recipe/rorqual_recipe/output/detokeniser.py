"""Tokens to text without ever showing half a character."""

import codecs

from rorqual_recipe.tokens.vocabulary import Vocabulary

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokeniser:
    """Incremental text of one answer: any portions give the text of the whole.

    A character appears when its last byte has arrived. Bytes that can't become a character any more
    show as U+FFFD, as they would in a decode of the whole answer.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = _DECODER(errors="replace")
        self._strip_next = vocabulary.strips_first_space

    def feed(self, token_id: int) -> str:
        """Characters that this token completes."""
        piece = self._vocabulary.bytes_of(token_id)
        if self._strip_next and piece:
            self._strip_next = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    @property
    def is_idle(self) -> bool:
        """True when the next token's text depends on itself alone."""
        return not self._strip_next and not self._utf8.getstate()[0]

    def flush(self) -> str:
        """U+FFFD for a character that a mark cuts off; the answer goes on."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text

    def finish(self) -> str:
        """What an answer that ends here still owes: U+FFFD for a character cut off."""
        return self._utf8.decode(b"", final=True)
