"""Encoders around an encoder: one that cuts long texts, one that remembers what it has encoded."""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock

import numpy as np

from rorqual_recipe.tokens.cuts import CutRule
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds

PIECE_CHARS = 16 << 10
_ENTRY_BYTES = 300  # of Python and numpy, beside a text and its ids
_LARGEST_SHARE = 8


class CuttingEncoder:
    """Cuts long texts where it is safe; pieces are encoded in parallel and cached one by one."""

    def __init__(self, encoder: TextEncoder, rule: CutRule, piece_chars: int = PIECE_CHARS) -> None:
        self.name = encoder.name
        self._encoder, self._rule, self._piece_chars = encoder, rule, piece_chars

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        if max(map(len, texts), default=0) <= self._piece_chars:
            return self._encoder.encode(texts)
        pieces = [self._rule.pieces(text, self._piece_chars) for text in texts]
        encoded = iter(self._encoder.encode([piece for group in pieces for piece in group]))
        return [_joined(list(islice(encoded, len(group)))) for group in pieces]


@dataclass(slots=True)
class CacheCounts:
    """What a cache has saved since the start, in texts and in their characters."""

    num_hits: int = 0
    num_misses: int = 0
    hit_chars: int = 0
    missed_chars: int = 0


class CachingEncoder:
    """Remembers ids by the text itself, so that a hit can't be another text's.

    The texts used longest ago go first when max_bytes, texts included, are passed. Safe to use from
    several threads. The arrays it returns are shared: read only.
    """

    def __init__(self, encoder: TextEncoder, max_bytes: int) -> None:
        self.name = encoder.name
        self._encoder = encoder
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, TokenIds] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self.counts = CacheCounts()

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return self._num_bytes

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        with self._lock:
            known = [self._look_up(text) for text in texts]
        missing = list(dict.fromkeys(t for t, ids in zip(texts, known, strict=True) if ids is None))
        if not missing:
            return [ids for ids in known if ids is not None]
        fresh = dict(zip(missing, self._encoder.encode(missing), strict=True))
        with self._lock:
            for text, ids in fresh.items():
                self._keep(text, ids)
        return [fresh[text] if ids is None else ids for text, ids in zip(texts, known, strict=True)]

    def _look_up(self, text: str) -> TokenIds | None:
        ids = self._entries.get(text)
        if ids is None:
            self.counts.num_misses += 1
            self.counts.missed_chars += len(text)
            return None
        self._entries.move_to_end(text)
        self.counts.num_hits += 1
        self.counts.hit_chars += len(text)
        return ids

    def _keep(self, text: str, ids: TokenIds) -> None:
        num_bytes = _entry_bytes(text, ids)
        if text in self._entries or num_bytes > self._max_bytes // _LARGEST_SHARE:
            return
        self._entries[text] = _own_copy(ids)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _entry_bytes(*self._entries.popitem(last=False))


def _own_copy(ids: TokenIds) -> TokenIds:
    """Not a view, which would keep a whole batch's ids in memory."""
    kept = ids.copy()
    kept.flags.writeable = False
    return kept


def _entry_bytes(text: str, ids: TokenIds) -> int:
    return sys.getsizeof(text) + ids.nbytes + _ENTRY_BYTES


def _joined(parts: list[TokenIds]) -> TokenIds:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
