"""Stores of KV blocks: content-addressed, verified at every read, bounded."""

from rorqual_runtime.blockstore.backend import BlockStoreBackend, StoreStats
from rorqual_runtime.blockstore.store import BlockStore

__all__ = ["BlockStore", "BlockStoreBackend", "StoreStats"]
