"""Shared ownership of a generation's KV pages between the engine and the block writer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol


class PageOwner(Protocol):
    """A lease of KV pages."""

    @property
    def pages(self) -> Sequence[int]: ...

    def grow(self, num_pages: int) -> None: ...

    def release(self) -> None: ...


class PageHold:
    """Pages that are free again once every holder has let go. Thread safe.

    Starts with one holder, its maker. A page is never reused while somebody still reads it.
    """

    def __init__(self, lease: PageOwner) -> None:
        self._lease = lease
        self._num_holders = 1
        self._lock = threading.Lock()

    def grow(self, num_pages: int) -> Sequence[int]:
        """More pages, for as long as the others. The caller holds them. Raises: NoPages."""
        self._lease.grow(num_pages)
        return self._lease.pages[-num_pages:]

    def retain(self) -> None:
        """Become a holder. The caller must know that somebody else holds the pages right now."""
        with self._lock:
            assert self._num_holders > 0, "pages were retained after their release"
            self._num_holders += 1

    def release(self) -> None:
        """Stop being a holder; the last one frees the pages."""
        with self._lock:
            assert self._num_holders > 0, "pages were released twice"
            self._num_holders -= 1
            is_last = self._num_holders == 0
        if is_last:
            self._lease.release()
