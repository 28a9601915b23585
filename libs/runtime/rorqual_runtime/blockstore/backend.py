"""What every block store promises, whatever it keeps its blocks in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY_BYTES = 16

ForgetReason = Literal["evicted", "expired", "corrupt"]


class Provenance(IntEnum):
    """How the block's KV was computed."""

    EXACT = 1
    REPLAYED = 2
    """After a bounded replay of the attention windows."""


class Lifetime(IntEnum):
    """Which rule chose the block's expiry."""

    OWN = 0
    """Chosen for this block."""
    CHAT = 1
    AGENT = 2


class BlockMark(NamedTuple):
    """What a block's record says about it besides its name and size."""

    provenance: Provenance = Provenance.EXACT
    lifetime: Lifetime = Lifetime.OWN
    depth: int = 0
    """Blocks before it in its chain: without those it is of no use."""


@dataclass(frozen=True, slots=True)
class BlockListing:
    """One stored block, as its index says."""

    fingerprint: str
    """`unnamed:` and its digest when the store does not know it."""
    key: bytes
    num_bytes: int
    created_unix_s: float
    expires_unix_s: float | None
    last_used_unix_s: float
    """In the future: until when it is held."""
    num_uses: int
    """Minutes in which it was read."""
    mark: BlockMark


@dataclass(frozen=True, slots=True)
class ForgottenBlock:
    """A block that this process has taken out of the store."""

    fingerprint: str
    """`unnamed:` and its digest when the store does not know it."""
    key: bytes
    reason: ForgetReason


OnForgotten = Callable[[Sequence[ForgottenBlock]], None]
"""Called in the thread that removed the blocks; must be quick, its exceptions are logged."""


@dataclass(frozen=True)
class StoreStats:
    """Counts of this process since it opened the store; sizes are of the whole store."""

    hits: int
    misses: int
    """Reads without a block; includes corrupt and expired."""
    corrupt: int
    """Records whose key, place, length or checksum was wrong, unreadable ones and index files that
    are none; all were removed."""
    expired: int
    puts: int
    """Blocks written."""
    duplicates: int
    """Puts of a block that was there already."""
    put_failures: int
    """Puts given up: disk full, no room, I/O error."""
    evicted: int
    num_bytes: int
    """Of blocks, padding and headers included."""
    num_blocks: int
    allocated_bytes: int
    """Of files, free slots included."""
    capacity_bytes: int


class BlockStoreBackend(Protocol):
    """A bounded cache of immutable blocks, safe for threads and processes at once.

    A block is named by (fingerprint, key): the fingerprint stands for model and layout, the 16-byte
    key for the content. A store may lose any block at any time but never returns wrong bytes.
    Storage failures are misses and failed puts, never exceptions.
    """

    def get(self, fingerprint: str, key: bytes, into: Buffer, *, is_use: bool = True) -> bool:
        """Fill `into` (writable, exactly the block's size). False: a miss; `into` then holds
        anything. is_use: whether it makes the block more valuable (a server may think so anyway).
        """
        ...

    def get_many(
        self, fingerprint: str, wanted: Sequence[tuple[bytes, Buffer]], *, is_use: bool = True
    ) -> list[bool]:
        """`get` for each (key, into), side by side. Returns their results in order."""
        ...

    def put(
        self,
        fingerprint: str,
        key: bytes,
        data: Buffer,
        *,
        ttl_s: float | None = None,
        mark: BlockMark = ...,
    ) -> bool:
        """Keep the block, for at most ttl_s if given. False: it was not kept."""
        ...

    def put_many(
        self,
        fingerprint: str,
        blocks: Sequence[tuple[bytes, Buffer]],
        *,
        ttl_s: float | None = None,
        mark: BlockMark = ...,
    ) -> list[bool]:
        """`put` for each (key, data), side by side; depth counts on from the mark's."""
        ...

    def has(self, fingerprint: str, key: bytes) -> bool:
        """Whether the block seems to be there; only `get` verifies its content."""
        ...

    def num_stored(self, fingerprint: str, keys: Sequence[bytes], *, num_exact: int = 0) -> int:
        """How many blocks seem to be there before the first that is not; of the first num_exact
        only exact ones count."""
        ...

    def hold(self, fingerprint: str, keys: Sequence[bytes], until_unix_s: float) -> None:
        """Somebody is about to read these: until then, at most ten minutes, they are not evicted.

        Seen by all who share the store. They expire as ever, and may be deleted; a server only
        takes it as a use of them."""
        ...

    def delete(self, fingerprint: str, key: bytes) -> bool:
        """Forget the block. False: it was not there."""
        ...

    def listing(self) -> Iterator[BlockListing]:
        """Every block of the store, in no order; those that come or go meanwhile may be missed."""
        ...

    def maintain(self, *, everything: bool = False) -> None:
        """A bounded share of the upkeep, or all of it; call it every few seconds."""
        ...

    @property
    def identity(self) -> str:
        """The same for all who share the store."""
        ...

    def is_reachable(self) -> bool:
        """Whether the store's directory or server answers now."""
        ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None: ...
