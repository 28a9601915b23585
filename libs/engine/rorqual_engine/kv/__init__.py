"""KV cache: page layout, pool and leases."""

from rorqual_engine.kv.cache import PagedKvCache, PageLease
from rorqual_engine.kv.layout import (
    LAYOUT_VERSION,
    PAGE_TOKENS,
    KvLayout,
    LayerKv,
    WindowLayout,
    uniform_layout,
)

__all__ = [
    "LAYOUT_VERSION",
    "PAGE_TOKENS",
    "KvLayout",
    "LayerKv",
    "PageLease",
    "PagedKvCache",
    "WindowLayout",
    "uniform_layout",
]
