"""Bytes of KV pages as the host sees them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from rorqual_engine.kv import PagedKvCache


class PageIo:
    """Reads and writes pages. write_many is for one thread at a time."""

    def __init__(self, cache: PagedKvCache) -> None:
        self._cache = cache
        is_gpu = cache.device.type == "cuda"
        self._stream = torch.cuda.Stream(cache.device) if is_gpu else None  # type: ignore[no-untyped-call]

    def read(self, page: int) -> np.ndarray:
        """uint8 [page_bytes]; the page itself on the CPU, else a copy."""
        array: np.ndarray = self._cache.page_bytes_view(page).cpu().numpy()
        return array

    def write_many(self, pages: Sequence[int], sources: Sequence[np.ndarray]) -> None:
        """Fill these pages; on a GPU beside the forward pass, without waiting for it.

        sources: uint8 [page_bytes] each; from page-locked memory the GPU copies by itself.
        """
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for page, source in zip(pages, sources, strict=True):
                data = torch.from_numpy(source)
                self._cache.page_bytes_view(page).copy_(data, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
