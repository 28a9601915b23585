"""The KV of one generation that takes part in no step: in its pages, or in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel

from rorqual_decode.running import Running


class CarriedKv(Protocol):
    """Where it can be read, from any thread."""

    @property
    def num_pages(self) -> int: ...

    def read(self, index: int) -> np.ndarray:
        """Page `index` of the generation, uint8 [page_bytes]."""
        ...

    def read_window(self) -> np.ndarray | None:
        """The window state behind it; None where the model has no windows."""
        ...


@dataclass(frozen=True, slots=True)
class HostKv:
    """In host memory."""

    num_tokens: int
    pages: np.ndarray
    """uint8 [pages, page_bytes]"""
    window: np.ndarray | None

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def num_bytes(self) -> int:
        """All that it takes."""
        return self.pages.nbytes + (0 if self.window is None else self.window.nbytes)

    def read(self, index: int) -> np.ndarray:
        """See `CarriedKv`."""
        page: np.ndarray = self.pages[index]
        return page

    def read_window(self) -> np.ndarray | None:
        """See `CarriedKv`."""
        return self.window


@dataclass(frozen=True, slots=True)
class CacheKv:
    """In the cache's pages and window slot."""

    memory: KvMemory
    sequence: Running

    @property
    def num_pages(self) -> int:
        return self.memory.cache.layout.num_pages(self.sequence.chunk.start)

    def read(self, index: int) -> np.ndarray:
        """See `CarriedKv`."""
        return self.memory.read_page(self.sequence.pages[index])

    def read_window(self) -> np.ndarray | None:
        """See `CarriedKv`."""
        if self.sequence.window is None:
            return None
        memory, num_tokens = self.memory, self.sequence.chunk.start
        snapshot = memory.model.save_window(memory.cache, self.sequence.window, num_tokens)
        return snapshot.cpu().numpy()


@dataclass(frozen=True, slots=True)
class KvMemory:
    """The cache and its model, as one place to copy from and to. Blocks; not for the event loop."""

    model: CausalModel
    cache: PagedKvCache
    read_page: Callable[[int], np.ndarray]

    def of(self, sequence: Running) -> CacheKv:
        """What the sequence has here."""
        return CacheKv(self, sequence)

    def copy_out(self, sequence: Running) -> HostKv:
        """The same in host memory."""
        kv = self.of(sequence)
        pages = np.empty((kv.num_pages, self.cache.layout.page_bytes), np.uint8)
        for index, row in enumerate(pages):
            np.copyto(row, kv.read(index))
        return HostKv(sequence.chunk.start, pages, kv.read_window())

    def copy_in(self, kv: HostKv, pages: list[int], window: int | None) -> None:
        """Into these pages and this slot."""
        for row, page in zip(kv.pages, pages, strict=False):
            self.cache.page_bytes_view(page).copy_(torch.from_numpy(row))
        if window is not None and kv.window is not None:
            snapshot = torch.from_numpy(kv.window)
            self.model.load_window(self.cache, window, kv.num_tokens, snapshot)
