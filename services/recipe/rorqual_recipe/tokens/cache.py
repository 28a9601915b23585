"""Ids of texts that were encoded before."""

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

_ENTRY_BYTES = 300  # of Python, beside a text and its ids
_SAMPLES_BYTES = 1500  # at most, of one long part
_LONG_CHARS = 1024
_SAMPLE_CHARS = 64
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


class _Entry(NamedTuple):
    text: TextParts
    ids: bytes
    num_chars: int
    num_bytes: int


class TokenCache:
    """Ids by the text itself, so that a hit can't be another text's; safe to use from threads.

    A long text is looked up by samples of it and then compared in full, which is faster than a hash
    over all of it; of two texts with the same samples the later one is kept. The texts used longest
    ago go first when max_bytes, texts included, are passed; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self.counts = CacheCounts()

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return self._num_bytes

    def find(self, texts: Sequence[TextParts]) -> list[bytes | None]:
        """Ids of each text as int32 bytes, None where they aren't known."""
        keys = list(map(_key, texts))
        with self._lock:
            entries = list(map(self._find, keys, texts))
            self._count(texts, entries)
        return [entry.ids if entry is not None else None for entry in entries]

    def keep(self, encoded: Iterable[tuple[TextParts, bytes]]) -> None:
        """Remember texts with their ids."""
        with self._lock:
            for text, ids in encoded:
                self._keep(text, ids)

    def _find(self, key: Hashable, text: TextParts) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None or entry.text != text:
            return None
        self._entries.move_to_end(key)
        return entry

    def _count(self, texts: Sequence[TextParts], entries: Sequence[_Entry | None]) -> None:
        hits = [entry.num_chars for entry in entries if entry is not None]
        self.counts.num_hits += len(hits)
        self.counts.hit_chars += sum(hits)
        if len(hits) == len(texts):
            return
        missed = [text for text, entry in zip(texts, entries, strict=True) if entry is None]
        self.counts.num_misses += len(missed)
        self.counts.missed_chars += sum(map(_num_chars, missed))

    def _keep(self, text: TextParts, ids: bytes) -> None:
        num_bytes = _entry_bytes(text, ids)
        if num_bytes > self._max_bytes // _LARGEST_SHARE:
            return
        key = _key(text)
        replaced = self._entries.pop(key, None)
        self._num_bytes += num_bytes - (replaced.num_bytes if replaced else 0)
        self._entries[key] = _Entry(text, ids, _num_chars(text), num_bytes)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1].num_bytes


def _num_chars(text: TextParts) -> int:
    return sum(map(len, text))


def _key(text: TextParts) -> Hashable:
    for part in text:
        if len(part) > _LONG_CHARS:
            return tuple([p if len(p) <= _LONG_CHARS else _samples(p) for p in text])
    return text


def _samples(part: str) -> Hashable:
    size = len(part)
    places = (0, size // 3, size // 3 * 2, size - _SAMPLE_CHARS)
    return (size, *[part[place : place + _SAMPLE_CHARS] for place in places])


def _entry_bytes(text: TextParts, ids: bytes) -> int:
    num_long = sum(len(part) > _LONG_CHARS for part in text)
    own = sum(map(sys.getsizeof, text)) + len(ids)
    return own + _ENTRY_BYTES + _SAMPLES_BYTES * num_long
