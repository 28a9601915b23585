"""Ids of texts that were encoded before."""

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from rorqual_recipe.tokens.encoder import TokenIds

_ENTRY_BYTES = 300  # of Python and numpy, beside a text and its ids
_LARGEST_SHARE = 8


@dataclass(slots=True)
class CacheCounts:
    """What a cache has saved since the start, in texts and in their characters."""

    num_hits: int = 0
    num_misses: int = 0
    hit_chars: int = 0
    missed_chars: int = 0


TextParts = tuple[str, ...]
"""One text, in the parts that it is made of."""


class TokenCache:
    """Ids by the text itself, so that a hit can't be another text's; safe to use from threads.

    The texts used longest ago go first when max_bytes, texts included, are passed; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[TextParts, TokenIds] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self.counts = CacheCounts()

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return self._num_bytes

    def find(self, texts: Sequence[TextParts]) -> list[TokenIds | None]:
        """Ids of each text, None where they aren't known. The arrays are shared: read only."""
        entries, found = self._entries, []
        with self._lock:
            for text in texts:
                ids = entries.get(text)
                if ids is not None:
                    entries.move_to_end(text)
                found.append(ids)
            self._count(texts, found)
        return found

    def keep(self, encoded: Mapping[TextParts, TokenIds]) -> None:
        """Remember texts with their ids; of the ids, copies are kept."""
        with self._lock:
            for text, ids in encoded.items():
                self._keep(text, ids)

    def _count(self, texts: Sequence[TextParts], found: Sequence[TokenIds | None]) -> None:
        for text, ids in zip(texts, found, strict=True):
            if ids is None:
                self.counts.num_misses += 1
                self.counts.missed_chars += sum(map(len, text))
            else:
                self.counts.num_hits += 1
                self.counts.hit_chars += sum(map(len, text))

    def _keep(self, text: TextParts, ids: TokenIds) -> None:
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


def _entry_bytes(text: TextParts, ids: TokenIds) -> int:
    return sum(map(sys.getsizeof, text)) + ids.nbytes + _ENTRY_BYTES
