"""Tokens whose text is not yet known to be reasoning, content or markup."""

from collections import deque
from typing import NamedTuple

from rorqual_recipe.output.events import TokenLogprob


class QueuedToken(NamedTuple):
    """start: characters of the answer before this token's own."""

    start: int
    logprob: TokenLogprob | None


class TokenQueue:
    """First in, first out, by where a token's text begins."""

    def __init__(self) -> None:
        self._tokens: deque[QueuedToken] = deque()

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, start: int, logprob: TokenLogprob | None) -> None:
        """The next token."""
        self._tokens.append(QueuedToken(start, logprob))

    def take_until(self, end: int) -> list[QueuedToken]:
        """Tokens that begin before `end`."""
        taken = []
        while self._tokens and self._tokens[0].start < end:
            taken.append(self._tokens.popleft())
        return taken
