"""Pages of KV and who owns them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

import torch

from rorqual_engine.errors import NoPages
from rorqual_engine.kv.layout import KvLayout

_ALIGNMENT_BYTES = 4096


class PagedKvCache:
    """A fixed pool of KV pages; every page has at most one owner, a PageLease.

    Where the layout has windows, a lease owns one window slot as well, from its first page on.

    Memory is reserved at once but, on the CPU, touched only when a page is first written.
    Leases may be taken and released from any thread.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_pages: int,
        device: str | torch.device = "cpu",
        *,
        num_windows: int | None = None,
    ) -> None:
        """num_windows: sequences that may hold a window slot at once; None = one a page."""
        if num_pages < 1:
            raise ValueError(f"need num_pages >= 1, got {num_pages}")
        self.layout = layout
        self.num_pages = num_pages
        self.device = torch.device(device)
        self.pages = _page_aligned(num_pages, layout.page_bytes, self.device)
        self.num_windows = (num_windows or num_pages) if layout.window else 0
        self.windows = torch.empty(
            (self.num_windows, layout.window_bytes), dtype=torch.uint8, device=self.device
        )
        self._free_windows = list(range(self.num_windows - 1, -1, -1))
        self._lock = threading.Lock()
        self._free = list(range(num_pages - 1, -1, -1))
        self._owned: dict[int, PageLease] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - self.num_free

    @property
    def num_used_windows(self) -> int:
        return self.num_windows - len(self._free_windows)

    @property
    def can_open(self) -> bool:
        """Whether one more lease finds a window slot, where such are needed."""
        return not self.num_windows or bool(self._free_windows)

    def allocate(self, num_pages: int) -> PageLease:
        """A lease over num_pages pages with undefined content. Raises: NoPages."""
        lease = PageLease(self)
        self._take(lease, num_pages)
        return lease

    def page_bytes_view(self, page: int) -> torch.Tensor:
        """The page itself as uint8 [page_bytes]: reads and writes go to the cache."""
        if not 0 <= page < self.num_pages:
            raise IndexError(f"page {page} of {self.num_pages}")
        return self.pages[page]

    def check_integrity(self) -> None:
        """Raises RuntimeError unless every page is either free or owned by exactly one lease."""
        with self._lock:
            owned = [page for lease in set(self._owned.values()) for page in lease.pages]
            if sorted(owned + self._free) != list(range(self.num_pages)):
                raise RuntimeError(
                    f"KV pages lost or shared: {len(owned)} owned, {len(self._free)} free, "
                    f"{self.num_pages} in all"
                )
            windows = [w for lease in set(self._owned.values()) if (w := lease.window) is not None]
            if sorted(windows + self._free_windows) != list(range(self.num_windows)):
                raise RuntimeError(
                    f"KV windows lost or shared: {len(windows)} owned, "
                    f"{len(self._free_windows)} free, {self.num_windows} in all"
                )

    def _take(self, lease: PageLease, num_pages: int) -> None:
        if num_pages < 0:
            raise ValueError(f"need num_pages >= 0, got {num_pages}")
        with self._lock:
            if num_pages > len(self._free):
                raise NoPages(num_pages, len(self._free))
            if self.num_windows and num_pages and lease.window is None:
                if not self._free_windows:
                    raise NoPages(num_pages, 0)
                lease.window = self._free_windows.pop()
            taken = [self._free.pop() for _ in range(num_pages)]
            for page in taken:
                self._owned[page] = lease
            lease.pages.extend(taken)

    def _give_back(self, lease: PageLease, pages: Sequence[int]) -> None:
        with self._lock:
            if lease.window is not None:
                self._free_windows.append(lease.window)
                lease.window = None
            for page in pages:
                if self._owned.pop(page, None) is not lease:
                    raise RuntimeError(f"KV page {page} released by a lease that did not own it")
            self._free.extend(pages)


def _page_aligned(num_pages: int, page_bytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [num_pages, page_bytes] that storage can move without a copy of its own."""
    num_bytes = num_pages * page_bytes
    memory = torch.empty(num_bytes + _ALIGNMENT_BYTES, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % _ALIGNMENT_BYTES
    return memory[start : start + num_bytes].view(num_pages, page_bytes)


class PageLease:
    """Owns pages until released; as a context manager it releases on every way out.

    hand_over() moves the pages to a new lease, so a `with` block can pass them on:

        with cache.allocate(3) as lease:
            ...
            sequence.lease = lease.hand_over()
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self.pages: list[int] = []
        self.window: int | None = None

    def __len__(self) -> int:
        return len(self.pages)

    def grow(self, num_pages: int) -> None:
        """Adds pages at the end. Raises: NoPages, and then the lease is unchanged."""
        self._cache._take(self, num_pages)

    def release(self) -> None:
        """Frees the pages; harmless when there are none left."""
        pages, self.pages = self.pages, []
        self._cache._give_back(self, pages)

    def hand_over(self) -> PageLease:
        """A new lease that owns the pages from now on; this one keeps none."""
        heir = PageLease(self._cache)
        with self._cache._lock:
            heir.pages, self.pages = self.pages, []
            heir.window, self.window = self.window, None
            for page in heir.pages:
                self._cache._owned[page] = heir
        return heir

    def __enter__(self) -> PageLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
