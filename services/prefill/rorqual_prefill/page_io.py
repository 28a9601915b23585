"""Bytes of KV pages as the host sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from rorqual_engine.kv import PagedKvCache


class PageIo:
    """Reads and fills pages: in place on the CPU, through one buffer elsewhere.

    fill_many is for one thread at a time.
    """

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        self._in_place = cache.device.type == "cpu"
        self._staging = np.empty((0, cache.layout.page_bytes), np.uint8)

    def read(self, page: int) -> np.ndarray:
        """uint8 [page_bytes]; the page itself on the CPU, else a copy."""
        array: np.ndarray = self._cache.page_bytes_view(page).cpu().numpy()
        return array

    def fill_many(
        self, pages: Sequence[int], fill: Callable[[Sequence[np.ndarray]], list[bool]]
    ) -> list[bool]:
        """Let `fill` write the pages' bytes; what it returns, page by page. Those of False are
        undefined."""
        if self._in_place:
            return fill([self._cache.page_bytes_view(page).numpy() for page in pages])
        if len(self._staging) < len(pages):
            self._staging = np.empty((len(pages), self._staging.shape[1]), np.uint8)
        is_filled = fill(list(self._staging[: len(pages)]))
        for page, source, ok in zip(pages, self._staging, is_filled, strict=False):
            if ok:
                self._cache.page_bytes_view(page).copy_(torch.from_numpy(source))
        return is_filled
