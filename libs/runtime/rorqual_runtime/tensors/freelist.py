"""Which byte ranges of a fixed span are free: good fit in O(1), neighbours merged when freed."""

from __future__ import annotations

ALIGN_BYTES = 64
_SUBCLASS_BITS = 3
_SUBCLASSES = 1 << _SUBCLASS_BITS


def round_up(num_bytes: int, align: int = ALIGN_BYTES) -> int:
    """The smallest multiple of `align` that is not below num_bytes."""
    return -(-num_bytes // align) * align


def _size_class(size_bytes: int) -> int:
    """Class whose range holds this size: eight classes to each power of two."""
    units = size_bytes // ALIGN_BYTES
    exponent = units.bit_length() - 1
    if exponent <= _SUBCLASS_BITS:
        return units
    return (exponent - _SUBCLASS_BITS) * _SUBCLASSES + (units >> (exponent - _SUBCLASS_BITS))


class FreeList:
    """Allocator of [0, span_bytes): sizes and offsets are multiples of 64.

    Free ranges never touch each other. Each is in three places: by its start, by its end (to find
    neighbours) and in the bin of its size class; a bit per bin tells which bins are not empty.
    The range freed last is taken first, for it is the warmest.
    """

    def __init__(self, span_bytes: int) -> None:
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self._bins: dict[int, dict[int, None]] = {}
        self._bin_mask = 0
        self.span_bytes = span_bytes // ALIGN_BYTES * ALIGN_BYTES
        self.free_bytes = 0
        if self.span_bytes:
            self._insert(0, self.span_bytes)

    def take(self, size_bytes: int) -> int | None:
        """Offset of a range of exactly size_bytes (a multiple of 64), or None when none fits."""
        start = self._find(size_bytes)
        if start is None:
            return None
        size = self._remove(start)
        if size > size_bytes:
            self._insert(start + size_bytes, size - size_bytes)
        return start

    def give(self, start: int, size_bytes: int) -> None:
        """Free what `take` returned and merge it with free neighbours."""
        before = self._start_of_end.get(start)
        if before is not None:
            size_bytes += self._remove(before)
            start = before
        after = start + size_bytes
        if after in self._size_at:
            size_bytes += self._remove(after)
        self._insert(start, size_bytes)

    def _find(self, size_bytes: int) -> int | None:
        own_class = _size_class(size_bytes)
        for start in reversed(self._bins.get(own_class, {})):
            if self._size_at[start] >= size_bytes:
                return start
        larger = self._bin_mask >> (own_class + 1)
        if not larger:
            return None
        first = own_class + (larger & -larger).bit_length()
        return next(reversed(self._bins[first]))

    def _insert(self, start: int, size_bytes: int) -> None:
        self._size_at[start] = size_bytes
        self._start_of_end[start + size_bytes] = start
        number = _size_class(size_bytes)
        self._bins.setdefault(number, {})[start] = None
        self._bin_mask |= 1 << number
        self.free_bytes += size_bytes

    def _remove(self, start: int) -> int:
        size_bytes = self._size_at.pop(start)
        del self._start_of_end[start + size_bytes]
        number = _size_class(size_bytes)
        self._bins[number].pop(start)
        if not self._bins[number]:
            self._bin_mask &= ~(1 << number)
        self.free_bytes -= size_bytes
        return size_bytes
