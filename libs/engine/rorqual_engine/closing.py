"""Ends a constrained output before its token budget does, so that it is complete and valid.

A model may write a string or a list for ever. Cut at the budget, the text would break the very
schema it was asked for. So each token drawn near the end is tried first: if the output could no
longer be completed after it, the next token of a short way to the end is taken instead. The way is
found by what ends JSON; for other grammars it is often, but not always, found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xgrammar

MAX_WAY_TOKENS = 256
"""Longest way to the end that is looked for; with more tokens left nothing is checked."""
_FIRST_PAUSE_TOKENS = 4
_SLACK_TOKENS = 4
"""A plain token lengthens the way by less: it may leave a character or an escape unfinished."""
_STRUCTURE = frozenset(b'{}[],:"\\<')
_BETWEEN = (b"}", b"]", b",", b'"', b"0", b"null", b"true", b"false", b"{", b"[")
"""In this order JSON ends soonest from between two of its tokens."""
_IN_TEXT = (b'"',)
"""Inside a string, brackets are text and only the quote ends it."""
_TEXT_PROBES = (b"x", b"W")
"""Allowed, both of them, inside a free string only."""
_LINE_BREAK = (b"\n",)
"""Allowed beside the probes where no quote ends the text: thinking, a parameter in markup."""
_OUT_OF_FREE_TEXT = (b"</think>", b"[/THINK]", "｜DSML｜".encode())
"""Marks that end free text, where the grammar takes them for marks."""
_BEFORE_MARK = (b"</",)


class ClosingVocabulary:
    """What closing needs to know of the tokens; made once a model and shared."""

    def __init__(self, tokenizer_info: xgrammar.TokenizerInfo) -> None:
        texts: Sequence[bytes] = tokenizer_info.decoded_vocab
        self.num_words = -(-tokenizer_info.vocab_size // 32)
        by_text = {text: token_id for token_id, text in reversed(list(enumerate(texts)))}
        self.between = _known(by_text, _BETWEEN)
        self.in_text = _known(by_text, _IN_TEXT)
        self.text_probes = _known(by_text, _TEXT_PROBES)
        self.line_break = _known(by_text, _LINE_BREAK)
        self.out_of_free_text = _known(by_text, _OUT_OF_FREE_TEXT)
        self.before_mark = _known(by_text, _BEFORE_MARK)
        self.is_structural = np.fromiter(
            (not _STRUCTURE.isdisjoint(text) for text in texts), np.bool_, len(texts)
        )
        self.texts = texts
        self.lengths = np.fromiter((len(text) for text in texts), np.int32, len(texts))
        self.first_bytes = np.fromiter((text[0] if text else 0 for text in texts), np.uint8)
        self.stop_ids = frozenset(tokenizer_info.stop_token_ids)
        self.end_way = [int(token_id) for token_id in tokenizer_info.stop_token_ids[:1]]


def _known(by_text: dict[bytes, int], texts: Sequence[bytes]) -> list[int]:
    return [by_text[text] for text in texts if text in by_text]


@dataclass
class ClosingGuard:
    """Watches one output. Ask `admit` for every token before the grammar accepts it."""

    vocabulary: ClosingVocabulary
    _way_bound: int | None = field(default=None, init=False)
    """No way to the end is longer than this since the last look; None = not known."""
    _num_unchecked: int = field(default=0, init=False)
    """Tokens still to take as drawn: the last look found no way at all, and looking is dear."""
    _next_pause: int = field(default=_FIRST_PAUSE_TOKENS, init=False)

    def admit(self, matcher: Any, token_id: int, num_left: int) -> int:
        """The token to take: `token_id`, or the first one of a way to the end, or the end itself.

        matcher: where the output is now, not changed. num_left: tokens that may follow this one.
        Where no way to the end is found the drawn token stays: the output will then be cut.
        """
        if num_left >= MAX_WAY_TOKENS or token_id in self.vocabulary.stop_ids:
            return token_id
        if self._is_harmless(matcher, token_id, num_left):
            return token_id
        if self._num_unchecked:
            self._num_unchecked -= 1
            return token_id
        after = self._way_after(matcher.fork(), token_id, num_left)
        if after is not None:
            self._way_bound = len(after) + _SLACK_TOKENS
            return token_id
        self._way_bound = None
        way = find_way(matcher.fork(), self.vocabulary, num_left + 1)
        if way is None:
            self._pause()
            return token_id
        return next(iter(way or self.vocabulary.end_way), token_id)

    def _is_harmless(self, matcher: Any, token_id: int, num_left: int) -> bool:
        """A token of a text that goes on. What is complete may begin anew, a second call say."""
        is_plain = not self.vocabulary.is_structural[token_id]
        is_near = self._way_bound is not None and self._way_bound <= num_left
        return is_plain and is_near and not matcher.is_completed()

    def _way_after(self, fork: Any, token_id: int, num_left: int) -> list[int] | None:
        return find_way(fork, self.vocabulary, num_left) if fork.accept_token(token_id) else None

    def _pause(self) -> None:
        self._num_unchecked = self._next_pause
        self._next_pause *= 2


def find_way(
    matcher: Any, vocabulary: ClosingVocabulary, max_tokens: int = MAX_WAY_TOKENS
) -> list[int] | None:
    """A short, not always the shortest, sequence of tokens that completes the output; empty when
    it is complete. None when none is found within max_tokens. The matcher is used up."""
    way: list[int] = []
    mask = np.empty((1, vocabulary.num_words), np.int32)
    while not matcher.is_completed():
        token_id = _next_token(matcher, vocabulary, mask)
        if token_id is None or len(way) >= max_tokens or not matcher.accept_token(token_id):
            return None
        way.append(token_id)
    return way


def _next_token(matcher: Any, vocabulary: ClosingVocabulary, mask: Any) -> int | None:
    matcher.fill_next_token_bitmask(mask, 0)
    if _is_free_text(vocabulary, mask):
        enders = [*_marks_that_end(matcher, vocabulary), *vocabulary.before_mark]
    else:
        enders = vocabulary.in_text if _is_text(vocabulary, mask) else vocabulary.between
    for token_id in enders:
        if _is_allowed(mask, token_id):
            return token_id
    return _allowed_by_length(vocabulary, mask)


def _is_text(vocabulary: ClosingVocabulary, mask: Any) -> bool:
    return all(_is_allowed(mask, token_id) for token_id in vocabulary.text_probes)


def _is_free_text(vocabulary: ClosingVocabulary, mask: Any) -> bool:
    """Text that no quote ends."""
    can_break = any(_is_allowed(mask, token_id) for token_id in vocabulary.line_break)
    return can_break and _is_text(vocabulary, mask)


def _marks_that_end(matcher: Any, vocabulary: ClosingVocabulary) -> Iterator[int]:
    """Marks behind which the text does not go on: elsewhere they are but a part of it."""
    mask = np.empty((1, vocabulary.num_words), np.int32)
    for token_id in vocabulary.out_of_free_text:
        behind = matcher.fork()
        if behind.accept_token(token_id):
            behind.fill_next_token_bitmask(mask, 0)
            if not _is_free_text(vocabulary, mask):
                yield token_id


def _is_allowed(mask: Any, token_id: int) -> bool:
    return bool(mask[0, token_id >> 5] >> (token_id & 31) & 1)


def _allowed_by_length(vocabulary: ClosingVocabulary, mask: Any) -> int | None:
    """The longest gets soonest past what must be written, such as a name or a minimum length; the
    shortest says no more than what is forced where the output branches soon.

    The mask alone decides: the matcher's own look ahead never ends where a grammar forces an
    endless text.
    """
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(vocabulary.lengths)]
    usable = np.flatnonzero(allowed & (vocabulary.lengths > 0))
    if not len(usable):
        return None
    lengths = vocabulary.lengths[usable]
    longest, shortest = int(usable[lengths.argmax()]), int(usable[lengths.argmin()])
    first_bytes = vocabulary.first_bytes[usable]
    starts_alike = bool((first_bytes == first_bytes[0]).all())
    text = vocabulary.texts[longest]
    others = (vocabulary.texts[token_id] for token_id in usable.tolist())
    branches = starts_alike and not all(text.startswith(other) for other in others)
    return shortest if branches else longest
