"""What every block store promises, whatever it keeps its blocks in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class StoreStats:
    """Counts of this process since it opened the store; sizes are of the whole store."""

    hits: int
    misses: int
    """Reads without a block; includes corrupt and expired."""
    corrupt: int
    """Records whose key, fingerprint, length or checksum was wrong; all were deleted."""
    expired: int
    puts: int
    """Blocks written."""
    duplicates: int
    """Puts of a block that was there already."""
    put_failures: int
    """Puts given up: disk full, no room, I/O error."""
    evicted: int
    num_bytes: int
    num_blocks: int
    capacity_bytes: int


class BlockStoreBackend(Protocol):
    """A bounded cache of immutable blocks, safe for threads and processes at once.

    A block is named by (fingerprint, key): the fingerprint stands for model and layout, the key
    for the content. A store may lose any block at any time but never returns wrong bytes. Storage
    failures are misses and failed puts, never exceptions.
    """

    def get(self, fingerprint: str, key: bytes, into: Buffer) -> bool:
        """Fill `into` (writable, exactly the block's size). False: a miss; `into` then holds
        anything."""
        ...

    def put(
        self, fingerprint: str, key: bytes, data: Buffer, *, ttl_s: float | None = None
    ) -> bool:
        """Keep the block, for at most ttl_s if given. False: it was not kept."""
        ...

    def has(self, fingerprint: str, key: bytes) -> bool:
        """Whether the block seems to be there; only `get` verifies its content."""
        ...

    def delete(self, fingerprint: str, key: bytes) -> bool:
        """Forget the block. False: it was not there."""
        ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None: ...
