"""Pages for sequences as they grow: some ahead, not all that they might ever need."""

from __future__ import annotations

from collections.abc import Sequence

from rorqual_engine.errors import NoPages
from rorqual_engine.kv import PagedKvCache

from rorqual_decode.running import Running


class PageGrowth:
    """Before each step every sequence gets pages for its rows. Used by the engine thread."""

    def __init__(self, cache: PagedKvCache, *, num_ahead: int, num_guesses: int) -> None:
        """num_ahead: pages that are taken at a time. num_guesses: rows that a step may have beside
        the first."""
        self._cache = cache
        self._num_ahead = num_ahead
        self._num_rows = 1 + num_guesses

    def ready(self, sequences: Sequence[Running]) -> list[Running]:
        """Those that can take a step; the others find no pages. What is free goes to the oldest."""
        short = [s for s in sequences if self._may_be_short(s) and self.num_wanted(s)]
        if not short:
            return list(sequences)
        waiting = {id(sequence) for sequence in sorted(short, key=age) if not self._grow(sequence)}
        return [sequence for sequence in sequences if id(sequence) not in waiting]

    def _may_be_short(self, sequence: Running) -> bool:
        """Said of few, and cheaply: every step asks it of every sequence."""
        num_held = len(sequence.pages) * self._cache.layout.page_tokens
        return sequence.chunk.start + self._num_rows > num_held

    def num_wanted(self, sequence: Running) -> int:
        """Pages without which it can't take its next step."""
        num_tokens = min(sequence.chunk.start + self._num_rows, sequence.max_kv_tokens)
        return max(0, self._cache.layout.num_pages(num_tokens) - len(sequence.pages))

    def num_ahead(self, sequence: Running) -> int:
        """Pages that it would take next, where there are enough."""
        most = self._cache.layout.num_pages(sequence.max_kv_tokens) - len(sequence.pages)
        return max(0, min(self._num_ahead, most))

    def _grow(self, sequence: Running) -> bool:
        num_wanted = self.num_wanted(sequence)
        for num_pages in (max(num_wanted, self.num_ahead(sequence)), num_wanted):
            try:
                sequence.pages.extend(sequence.hold.grow(num_pages))
            except NoPages:
                continue
            return True
        return False


def age(sequence: Running) -> tuple[float, str, int]:
    """Sorts the oldest first."""
    key = sequence.spec.key
    return sequence.spec.submitted_unix_s, key.request_id, key.choice_index
