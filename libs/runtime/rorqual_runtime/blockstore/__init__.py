"""Stores of KV blocks: content-addressed, verified at every read, bounded."""

from rorqual_runtime.blockstore.backend import (
    BlockListing,
    BlockMark,
    BlockStoreBackend,
    ForgottenBlock,
    Lifetime,
    OnForgotten,
    Provenance,
    StoreStats,
)
from rorqual_runtime.blockstore.notices import DamagedBlocks, ForgetNotices
from rorqual_runtime.blockstore.slot_io import IoMode
from rorqual_runtime.blockstore.store import BlockStore
from rorqual_runtime.blockstore.survey import EvictionPolicy
from rorqual_runtime.blockstore.upkeep import make_block_store, open_block_store

__all__ = [
    "BlockListing",
    "BlockMark",
    "BlockStore",
    "BlockStoreBackend",
    "DamagedBlocks",
    "EvictionPolicy",
    "ForgetNotices",
    "ForgottenBlock",
    "IoMode",
    "Lifetime",
    "OnForgotten",
    "Provenance",
    "StoreStats",
    "make_block_store",
    "open_block_store",
]
