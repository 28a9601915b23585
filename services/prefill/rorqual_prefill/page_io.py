"""Bytes of KV pages as the host sees them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from rorqual_engine.kv import PagedKvCache


class PageIo:
    """Reads and fills single pages: in place on the CPU, through one buffer elsewhere.

    fill is for one thread at a time.
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self._in_place = cache.device.type == "cpu"
        staging_bytes = 0 if self._in_place else cache.layout.page_bytes
        self._staging = np.empty(staging_bytes, np.uint8)

    def read(self, page: int) -> np.ndarray:
        """uint8 [page_bytes]; the page itself on the CPU, else a copy."""
        array: np.ndarray = self._cache.page_bytes_view(page).cpu().numpy()
        return array

    def fill(self, page: int, fill: Callable[[np.ndarray], bool]) -> bool:
        """Let `fill` write the page's bytes; what it returns. On False they are undefined."""
        if self._in_place:
            return fill(self._cache.page_bytes_view(page).numpy())
        if not fill(self._staging):
            return False
        self._cache.page_bytes_view(page).copy_(torch.from_numpy(self._staging))
        return True
