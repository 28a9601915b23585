"""Stores of KV blocks: content-addressed, verified at every read, bounded."""

from rorqual_runtime.blockstore.backend import BlockStoreBackend, StoreStats
from rorqual_runtime.blockstore.store import BlockStore
from rorqual_runtime.blockstore.upkeep import open_block_store

__all__ = ["BlockStore", "BlockStoreBackend", "StoreStats", "open_block_store"]
